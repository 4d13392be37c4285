//! Processes for which the processor keeps a shadow stack of return addresses (Intel's CET, "SHSTK").
//!
//! Most machines have none, so the signs by which gprofinject knows them are simulated: a mount namespace has another `/proc/cpuinfo`, or another
//! `status` of a process. Whether returns are those of calls is found by `tests/shadow/emulate.c`, which executes a program step by step and keeps
//! a shadow stack itself.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::{compile, run, tool};

use crate::libraries::{self, has, whole, whole_of};

gprofinject_tests::trials! {
    together:
        entries_are_hooked_where_it_comes,
        nothing_changes_where_it_does_not_come,
        static_programs,
        what_needs_exits_or_copies,
        programs_that_are_executed,
        a_program_that_asks_for_it_itself,
        the_agents_library_is_marked_where_it_comes,
        a_process_that_has_one;
    busy:
        returns_are_those_of_calls;
}

/// Functions whose hooks on exits, or whose relocated calls, would return to other places than the last call has said: `early` begins with a call,
/// `jumps` ends in a jump through a pointer to a function that uses its return address, and `sorted` is called back.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#define OPAQUE __attribute__((noipa))
OPAQUE int leaf(int x) { return x + 1; }
OPAQUE void *returns(int x) { return (char *)__builtin_return_address(0) + x; }
static void *(*volatile pointer)(int) = returns;
OPAQUE void *jumps(int x) { return pointer(x + 1); }
OPAQUE __attribute__((naked)) int early(void *to) { __asm__("call *(%rdi)\n nop\n ret"); }
static int (*volatile first)(int) = leaf;
static int (*volatile second)(void *) = early;
OPAQUE int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
OPAQUE int sorted(int n) { int v[3] = {3, n, 2}; qsort(v, 3, sizeof *v, order); return v[0]; }
OPAQUE int deep(int n) { return n < 2 ? n : (deep(n - 1) * 2) ^ deep(n - 2); }
OPAQUE void on(int signal) { leaf(signal); }
int main(void) {
    int sum = 0;
    signal(SIGUSR1, on);
    for (int i = 0; i < 10; i++) { sum += sorted(i) + deep(5); sum += jumps(i) != 0; sum += second((void *)&first) != 0; }
    raise(SIGUSR1);
    printf("%d\n", sum);
    return 3;
}
"#;
const OUTPUT: &str = "247\n";
/// The calls that the source makes. `early` cannot be hooked without moving its call, because its address is taken.
const CALLS: [(&str, &str, u64); 5] =
    [("main", "sorted", 10), ("main", "deep", 10), ("main", "jumps", 10), ("deep", "deep", 140), ("early", "leaf", 10)];

const ASKS: &str = "GLIBC_TUNABLES=glibc.cpu.hwcaps=SHSTK";
const SAYS: &str = "shadow stack (SHSTK): only entries are hooked";

fn program(flags: &[&str]) -> Place {
    let place = Place::new();
    place.c("prog", PROGRAM, &[&["-O2"], flags].concat());
    place
}

/// Returns a command for the shell in a mount namespace in which the processor says that it has shadow stacks, with gprofinject as $G. `None`
/// if there can be none.
fn simulated(place: &Place, test: &str, script: &str) -> Option<Command> {
    if !skip::have_for(test, &["unshare"]) {
        return None;
    }
    let known = fs::read_to_string("/proc/cpuinfo").unwrap();
    let line = known.lines().find(|line| line.starts_with("flags")).unwrap();
    fs::write(place.path("cpuinfo"), known.replacen(line, &format!("{line} user_shstk"), 1)).unwrap();
    let script = format!("mount --bind cpuinfo /proc/cpuinfo || exit 77; {script}");
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).current_dir(place.folder.path());
    command.env("G", tool::gprofinject().unwrap());
    command.env_remove("GMON_OUT_PREFIX").env_remove("GLIBC_TUNABLES");
    let possible = Command::new("unshare").args(["-rm", "mount", "--bind", "/dev/null", "/proc/cpuinfo"]).output();
    if !possible.unwrap().status.success() {
        skip::skipped(test, "no mount namespace can be made");
        return None;
    }
    Some(command)
}

fn is_program(program: &gmon_run::Program) -> bool {
    program.name.ends_with("prog")
}

fn hooks(place: &Place) -> String {
    let text = fs::read_to_string(place.path("stats")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
    stats["hooks"].as_str().unwrap().to_owned()
}

fn entries_are_hooked_where_it_comes() {
    let place = program(&[]);
    for tunables in
        [ASKS, "GLIBC_TUNABLES=glibc.malloc.check=0:glibc.cpu.x86_shstk=on", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-IBT,SHSTK"]
    {
        for options in ["", "--hooks both", "--hooks entry", "--libs all", "--sampler timer"] {
            let script = format!("export {tunables}; exec $G --no-cache --stats stats {options} ./prog");
            let Some(command) = simulated(&place, "entries_are_hooked_where_it_comes", &script) else { return };
            let outcome = finish(command);
            let said = outcome.stderr_text();
            assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, OUTPUT), "{options}: {said}");
            assert_eq!(hooks(&place), "entry", "{options}: {said}");
            has(&whole(&place), &CALLS, options);
            // Where entries are asked for, nothing is missing.
            let times = usize::from(options != "--hooks entry");
            assert_eq!(said.matches(SAYS).count(), times, "{options}: {said}");
        }
    }
    let list = format!("export {ASKS}; exec $G --no-cache --list ./prog");
    let outcome = finish(simulated(&place, "", &list).unwrap());
    let listed = outcome.stdout_text();
    let early = listed.lines().find(|line| line.split_whitespace().nth(2) == Some("early")).unwrap();
    assert!(early.contains("refused: shadow-stack"), "{listed}");
    assert!(listed.contains(SAYS), "{listed}");
}

fn nothing_changes_where_it_does_not_come() {
    let place = program(&[]);
    for tunables in ["A=1", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK", "GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"] {
        let script = format!("export {tunables}; exec $G --no-cache --stats stats ./prog");
        let Some(command) = simulated(&place, "nothing_changes_where_it_does_not_come", &script) else { return };
        let outcome = finish(command);
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), hooks(&place).as_str(), said.contains(SAYS)), (3, "both", false), "{said}");
    }
    // On a machine that has none, nothing follows from what is asked for.
    if fs::read_to_string("/proc/cpuinfo").unwrap().split_ascii_whitespace().all(|word| word != "user_shstk") {
        let mut command = place.command(&["--stats", "stats", "./prog"]);
        command.env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=SHSTK");
        assert_eq!((finish(command).code(), hooks(&place).as_str()), (3, "both"));
    }
}

fn static_programs() {
    let place = program(&["-static"]);
    let script = format!("export {ASKS}; exec $G --no-cache --stats stats ./prog");
    let Some(command) = simulated(&place, "static_programs", &script) else { return };
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, OUTPUT), "{said}");
    assert_eq!((hooks(&place).as_str(), said.matches(SAYS).count()), ("entry", 1), "{said}");
    has(&whole(&place), &CALLS, &said);
}

/// Durations need exits, and basic blocks are counted in copies.
fn what_needs_exits_or_copies() {
    let place = program(&[]);
    for (options, says) in [
        ("--times", "cannot be measured, because their ends are not seen"),
        ("--count blocks", "basic blocks of ./prog are not counted: the processor's shadow stack"),
        ("--times --clock instructions", "instructions of ./prog are not counted: the processor's shadow stack"),
    ] {
        let script = format!("export {ASKS}; exec $G --no-cache --stats stats {options} ./prog");
        let Some(command) = simulated(&place, "what_needs_exits_or_copies", &script) else { return };
        let outcome = finish(command);
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), hooks(&place).as_str()), (3, "entry"), "{options}: {said}");
        assert!(said.contains(says), "{options}: {said}");
        has(&whole(&place), &CALLS, options);
    }
}

/// They inherit what is asked for, and it is said once.
fn programs_that_are_executed() {
    let place = program(&[]);
    let script = format!("export {ASKS}; exec $G --no-cache sh -c './prog; ./prog; exit 5'");
    let Some(command) = simulated(&place, "programs_that_are_executed", &script) else { return };
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text()), (5, OUTPUT.repeat(2)), "{said}");
    assert_eq!(said.matches(SAYS).count(), 1, "{said}");
    let recording = gprofinject_tests::measured::read(&place.path("gmon.pb.gz")).unwrap();
    assert_eq!(recording.programs.len(), 2, "{said}");
}

/// gprofinject cannot know beforehand what a program puts into the environment of another one.
fn a_program_that_asks_for_it_itself() {
    let place = program(&[]);
    let script = format!("exec $G --no-cache sh -c '{ASKS} ./prog; ./prog; exit 5'");
    let Some(command) = simulated(&place, "a_program_that_asks_for_it_itself", &script) else { return };
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text()), (5, OUTPUT.repeat(2)), "{said}");
    assert!(said.contains("GLIBC_TUNABLES turn the processor's shadow stack (SHSTK) on"), "{said}");
    has(&whole_of(&place, is_program), &[("main", "jumps", 10)], &said);
}

/// glibc turns the shadow stack on only if all libraries are marked for it. readelf shows the mark of the one that the process has loaded.
fn the_agents_library_is_marked_where_it_comes() {
    let place = Place::new();
    let test = "the_agents_library_is_marked_where_it_comes";
    if !skip::have_for(test, &["readelf"]) {
        return;
    }
    let copies = r"cp $(sed -n 's/.* //;/libgprofinject/p' /proc/self/maps | head -1) kept";
    for (tunables, is_marked) in [(ASKS, true), ("A=1", false)] {
        let script = format!("export {tunables}; rm -f kept; exec $G --no-cache sh -c \"{}\"", copies.replace('$', "\\$"));
        let Some(command) = simulated(&place, test, &script) else { return };
        let outcome = finish(command);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let notes = Command::new("readelf").args(["-nW"]).arg(place.path("kept")).output().unwrap();
        let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
        assert_eq!(notes.contains("SHSTK"), is_marked, "{tunables}: {notes}");
    }
}

/// The kernel tells it in the `status` of a process.
fn a_process_that_has_one() {
    const WAITS: &str = "#include <stdio.h>\n#include <unistd.h>\n\
        __attribute__((noipa)) int leaf(int x) { return x + 1; }\n\
        __attribute__((noipa)) int step(int x) { return leaf(x) * 2; }\n\
        int main(void) { puts(\"ready\"); fflush(stdout); for (int x = 0;; x = step(x)) usleep(1000); }\n";
    let place = Place::new();
    place.c("waits", WAITS, &["-O2"]);
    for (features, expected) in [("shstk ", "entry"), ("wrss shstk", "entry"), ("", "both"), ("shstkx", "both")] {
        let script = format!(
            "./waits >ready & P=$!; while ! [ -s ready ]; do sleep 0.01; done; \
             sed '$ a x86_Thread_features:\\t{features}\\nx86_Thread_features_locked:\\t' /proc/$P/status >status; \
             mount --bind status /proc/$P/status || exit 77; \
             $G --no-cache --stats stats --pid $P --duration 0.3 --rate 0; S=$?; kill $P; wait $P 2>/dev/null; exit $S"
        );
        let Some(command) = simulated(&place, "a_process_that_has_one", &script) else { return };
        let outcome = finish(command);
        let said = outcome.stderr_text();
        if outcome.code() == 77 {
            return skip::skipped("a_process_that_has_one", "nothing can be mounted over /proc/PID/status");
        }
        assert_eq!((outcome.code(), hooks(&place).as_str()), (0, expected), "{features}: {said}");
        assert_eq!(said.contains(SAYS), expected == "entry", "{features}: {said}");
    }
}

/// Runs a program step by step. Returns the numbers of returns that do not agree with a shadow stack, and of returns.
fn emulated(place: &Place, before: &str) -> Option<(usize, u64)> {
    let alone = finish(Command::new(place.path("prog")));
    let command = simulated(place, "returns_are_those_of_calls", &format!("rm -f report; {before} ./emulate report ./prog"))?;
    let outcome = run::run(command, None, Duration::from_secs(300)).unwrap();
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text()), (alone.code(), alone.stdout_text()), "{before}: {said}");
    let report = fs::read_to_string(place.path("report")).unwrap();
    let returns = report.lines().find_map(|line| line.strip_prefix("returns ")).unwrap().parse().unwrap();
    Some((report.lines().filter(|line| !line.starts_with("returns ")).count(), returns))
}

/// With what gprofinject does where a shadow stack comes, each return is that of the last call. With hooks on exits or relocated calls it is not:
/// the emulator finds that.
fn returns_are_those_of_calls() {
    let compiled = |place: &Place| {
        let mut compiler = Command::new("gcc");
        compiler.args(["-O2", "-o"]).arg(place.path("emulate")).arg(tool::folder().join("shadow/emulate.c"));
        compile::compile(compiler).unwrap();
    };
    let (place, with_libraries) = (program(&[]), libraries::built(&["-O2"]));
    [&place, &with_libraries].into_iter().for_each(compiled);
    let Some((wrong, alone)) = emulated(&place, "") else { return };
    assert_eq!(wrong, 0);
    let hooked = |place: &Place, tunables: &str, options: &str| {
        emulated(place, &format!("{tunables} $G --no-cache -X 'emulate!*' {options}")).unwrap()
    };
    for options in ["", "--sampler timer"] {
        let (wrong, returns) = hooked(&place, ASKS, options);
        // The agent's own calls are among them.
        assert!(wrong == 0 && returns > alone, "{options}: {wrong} of {returns}, {alone} alone");
        has(&whole_of(&place, is_program), &[("deep", "deep", 140), ("main", "jumps", 10)], options);
    }
    assert_eq!(hooked(&with_libraries, ASKS, "").0, 0);
    has(&whole_of(&with_libraries, is_program), &[("low", "inner", 266), ("inner", "leaf", 266)], "with libraries");
    assert!(hooked(&place, "", "--hooks both").0 > 10);
    assert!(hooked(&place, "", "--hooks entry").0 >= 10);
}
