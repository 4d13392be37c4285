//! Programs that musl's dynamic linker loads: their libraries and plugins, musl itself, threads, children and executed
//! programs, and an interpreter with another name.

use std::fs;

use gprofinject_skip as skip;
use gprofinject_tests::attached;
use gprofinject_tests::callgrind;
use gprofinject_tests::family::{Subject, WAYS_TO_EXECUTE, WAYS_TO_FORK};
use gprofinject_tests::place::{HELLO, LIMIT, Place};
use gprofinject_tests::run;
use gprofinject_tests::tool::{self, Hooks};

use crate::libraries::{ARCS, agrees, built_by, has, own, same, whole};
use crate::library_control::{ask, profiled};
use crate::plugins::{plugins_are_counted, with_plugins_by};

gprofinject_tests::trials! {
    together:
        calls_across_modules,
        callgrind_agrees,
        plugins,
        plugins_in_threads,
        each_way_to_fork,
        each_way_to_execute,
        an_interpreter_of_another_name,
        preloaded_libraries,
        plugins_while_many_threads_run,
        libraries_with_counts,
        pauses,
        what_is_listed;
}

/// musl has no headers of the kernel's; these are the same for every C library.
const KERNEL: [&str; 4] = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];

/// Returns whether programs can be compiled for musl's dynamic linker and run.
pub(crate) fn available(test: &str) -> bool {
    let have = skip::have("musl-gcc") && {
        let place = Place::new();
        let program = place.compile("musl-gcc", "hello", HELLO, &[]).unwrap();
        run::run(std::process::Command::new(program), None, LIMIT).is_ok()
    };
    if !have {
        skip::skipped(test, "no musl-gcc, or no dynamic linker of musl's");
    }
    have
}

/// musl's qsort calls the function that compares in another order than glibc's, and how often is not a property of the
/// program.
fn is_certain(&(_, callee, _): &&(&str, &str, u64)) -> bool {
    !["compare", "own"].contains(callee)
}

fn calls_across_modules() {
    if !available("musl::calls_across_modules") {
        return;
    }
    for flags in [&["-O2"][..], &["-O0"], &["-Os", "-fcf-protection"], &["-O2", "-fno-plt", "-fno-pie", "-no-pie"]] {
        let place = built_by("musl-gcc", flags);
        let expected: Vec<_> = ARCS.iter().filter(is_certain).copied().collect();
        same(&place, &["-q", "--libs", "none", "--hooks", "both"], &[]);
        let alone = own(&place);
        for libs in ["auto", "all"] {
            same(&place, &["-q", "--libs", libs, "--hooks", "both"], &[]);
            has(&whole(&place), &expected, &format!("{flags:?} {libs}"));
            assert_eq!(own(&place), alone, "{flags:?} {libs}: the program's own view");
        }
        // Without exit hooks, a call by a jump has the caller to which the function will return. At -O0 there are none.
        if flags == ["-O0"] {
            for libs in ["auto", "all"] {
                same(&place, &["-q", "--libs", libs, "--hooks", "entry"], &[]);
                has(&whole(&place), &expected, &format!("{libs}, entry"));
            }
        }
    }
}

fn callgrind_agrees() {
    const TEST: &str = "musl::callgrind_agrees";
    if !available(TEST) {
        return;
    }
    if !callgrind::available() {
        return skip::skipped(TEST, "no valgrind");
    }
    for flags in [&["-O2"][..], &["-O0"], &["-O3", "-fno-plt"]] {
        let place = built_by("musl-gcc", flags);
        same(&place, &["-q", "--libs", "auto", "--hooks", "both"], &[]);
        agrees(&place, &["prog", "liblow.so", "libhigh.so"], &[]);
    }
}

fn plugins() {
    if !available("musl::plugins") {
        return;
    }
    let place = with_plugins_by("musl-gcc");
    for libs in ["auto", "all"] {
        for hooks in Hooks::ALL {
            let outcome = same(&place, &["-v", "--libs", libs, hooks.option()], &["0", "40"]);
            let said = outcome.stderr_text();
            assert!(!said.contains("was not hooked") && !said.contains("no answer"), "{said}");
            plugins_are_counted(&place, 20);
        }
    }
}

fn plugins_in_threads() {
    if !available("musl::plugins_in_threads") {
        return;
    }
    let place = with_plugins_by("musl-gcc");
    for libs in ["auto", "all"] {
        same(&place, &["-q", "--libs", libs], &["4", "250"]);
        plugins_are_counted(&place, 500);
        same(&place, &["-q", "--libs", libs], &["4", "100", "2"]);
        plugins_are_counted(&place, 200);
    }
}

fn each_way_to_fork() {
    if !available("musl::each_way_to_fork") {
        return;
    }
    let forks = Subject::by("musl-gcc", "forks", &KERNEL);
    for way in WAYS_TO_FORK {
        forks.check(&[way], &[[3, 7, 0], [5, 0, 0]]);
    }
    forks.check(&["vfork-exit"], &[[5, 7, 0]]);
    forks.check(&["clone-vm-vfork"], &[[8, 7, 0]]);
}

fn each_way_to_execute() {
    if !available("musl::each_way_to_execute") {
        return;
    }
    let execs = Subject::by("musl-gcc", "execs", &KERNEL);
    let own = execs.name().to_owned();
    for way in WAYS_TO_EXECUTE {
        execs.check(&[way, &own, "again", "x"], &[[3, 0, 0], [0, 11, 0]]);
    }
}

/// The dynamic linker is recognised by its contents if its name says nothing.
fn an_interpreter_of_another_name() {
    if !available("musl::an_interpreter_of_another_name") {
        return;
    }
    let place = Place::new();
    let loader = place.path("own.loader");
    fs::copy("/lib/ld-musl-x86_64.so.1", &loader).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    place.compile("musl-gcc", "prog", HELLO, &[&flag]).unwrap();
    let outcome = same(&place, &["-v", "--libs", "all"], &[]);
    let said = outcome.stderr_text();
    assert!(said.contains("functions of 1 library"), "{said}");
    has(&whole(&place), &[("main", "f", 100), ("main", "printf", 1)], "another name");
}

/// What the user preloads is a library of the process as any other one, and the environment is the user's own.
fn preloaded_libraries() {
    if !available("musl::preloaded_libraries") {
        return;
    }
    let place = Place::new();
    let library = |name: &str, source: &str| place.compile("musl-gcc", name, source, &["-fPIC", "-shared"]).unwrap();
    library("pre.so", "int f(int x) { return x + 2; }");
    let own = library("own.so", "int f(int x) { return x; }");
    const USER: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\nint f(int x);\n\
        int main(int c, char **v) {\n\
            if (c == 1) { setenv(\"LD_PRELOAD\", \"./pre.so\", 1); execl(v[0], v[0], \"again\", (char *)0); }\n\
            int t = 0;\n\
            for (int i = 0; i < 50; i++) t += f(i);\n\
            printf(\"%d %s\\n\", t, getenv(\"LD_PRELOAD\"));\n\
        }\n";
    place.compile("musl-gcc", "prog", USER, &[own.to_str().unwrap()]).unwrap();
    let outcome = same(&place, &["-q", "--libs", "auto"], &[]);
    // f of the preloaded library is called: the sum of 0 to 49, and 2 more for each.
    assert_eq!(outcome.stdout_text(), "1325 ./pre.so\n");
    let calls = whole(&place);
    has(&calls, &[("main", "f", 50)], "preloaded");
}

/// The memory that the agent takes for each thread does not part the plugins from their arenas.
fn plugins_while_many_threads_run() {
    if !available("musl::plugins_while_many_threads_run") {
        return;
    }
    const USER: &str = "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n\
        static pthread_barrier_t all, loaded;\n\
        __attribute__((noinline)) int own(int x) { return x + 1; }\n\
        static void *run(void *x) {\n\
            own(1);\n\
            pthread_barrier_wait(&all);\n\
            pthread_barrier_wait(&loaded);\n\
            return x;\n\
        }\n\
        int main(void) {\n\
            enum { N = 60 };\n\
            pthread_t threads[N];\n\
            pthread_barrier_init(&all, 0, N + 1);\n\
            pthread_barrier_init(&loaded, 0, N + 1);\n\
            for (int i = 0; i < N; i++) pthread_create(&threads[i], 0, run, 0);\n\
            pthread_barrier_wait(&all);\n\
            void *plugin = dlopen(\"./plugin.so\", RTLD_NOW);\n\
            int (*f)(int) = (int (*)(int))dlsym(plugin, \"f\");\n\
            int t = 0;\n\
            for (int i = 0; i < 70; i++) t += f(i);\n\
            pthread_barrier_wait(&loaded);\n\
            for (int i = 0; i < N; i++) pthread_join(threads[i], 0);\n\
            printf(\"%d\\n\", t);\n\
        }\n";
    let place = Place::new();
    place.compile("musl-gcc", "plugin.so", "int f(int x) { return x + 2; }", &["-fPIC", "-shared"]).unwrap();
    place.compile("musl-gcc", "prog", USER, &["-O1"]).unwrap();
    for options in [&["--libs", "auto"][..], &["--libs", "all", "--hooks", "both"], &["--count", "blocks"]] {
        let said = same(&place, options, &[]).stderr_text();
        assert!(!said.contains("not hooked"), "{options:?}: {said}");
        has(&whole(&place), &[("main", "f", 70)], &format!("{options:?}"));
    }
}

/// The counters of threads take tens of gigabytes of address space, beyond which no arena can be.
fn libraries_with_counts() {
    if !available("musl::libraries_with_counts") {
        return;
    }
    let place = built_by("musl-gcc", &["-O2", "-g"]);
    // Where the kernel places mappings is chance.
    for _ in 0..5 {
        let said = same(&place, &["-v", "--count", "lines"], &[]).stderr_text();
        assert!(said.contains("libraries") && !said.contains("is not hooked"), "{said}");
    }
}

/// Builds `processes/paused.c`, with a library that has what its unwinder needs.
pub(crate) fn built_to_pause(place: &Place) {
    let source = |name: &str| fs::read_to_string(tool::folder().join("processes").join(name)).unwrap();
    let headers = "-Wl,--eh-frame-hdr";
    let find = place.compile("musl-gcc", "libfind.so", &source("find.c"), &["-fPIC", "-shared", headers]).unwrap();
    let flags = ["-O1", "-w", "-pthread", "-fexceptions", headers, find.to_str().unwrap()];
    place.compile("musl-gcc", "prog", &source("paused.c"), &flags).unwrap();
}

/// The ways to leave the frames of `processes/paused.c`, and what it prints then.
pub(crate) fn ways_to_leave(place: &Place) -> Vec<(&'static str, String)> {
    let ways = ["j", "u", "b"];
    let input: String = ways.iter().map(|way| format!("{way}\n\n")).collect();
    fs::write(place.path("input"), input).unwrap();
    let alone = run::run(std::process::Command::new(place.path("prog")), Some(&place.path("input")), LIMIT).unwrap();
    let text = alone.stdout_text();
    let said = |way: &str| text.lines().find(|line| line.starts_with(&format!("{way} "))).unwrap().to_owned() + "\n";
    assert_eq!(said("j") + &said("u"), "j cleaned 0, 0 frames, 0 ends\nu cleaned 11, 0 frames, 0 ends\n");
    ways.into_iter().map(|way| (way, said(way))).collect()
}

/// Pauses and resumes the program with frames on the stack, which it leaves during pauses and after them. Threads are made
/// all the time.
pub(crate) fn paused_with_frames(subject: &mut attached::Subject, pid: &str, ways: &[(&str, String)]) {
    let tell = |subject: &mut attached::Subject, lines: &[&str]| {
        for line in lines {
            subject.tell(line);
            subject.hear("done\n");
        }
    };
    tell(subject, &["c 10", "t 3"]);
    for (way, said) in ways {
        let begin = |subject: &mut attached::Subject| {
            subject.tell(way);
            subject.hear("waiting\n");
        };
        let end = |subject: &mut attached::Subject| {
            subject.tell("");
            subject.hear(said);
            subject.hear("done\n");
        };
        begin(subject);
        ask(subject, pid, "--pause");
        end(subject);
        begin(subject);
        end(subject);
        tell(subject, &["c 1000", "t 2"]);
        begin(subject);
        ask(subject, pid, "--resume");
        end(subject);
        tell(subject, &["c 10", "t 3"]);
    }
}

/// What [`paused_with_frames`] lets the program call while hooks are not paused.
pub(crate) const PAUSED_CALLS: [(&str, &str, u64); 5] = [
    ("main", "own", 40),
    ("work", "own", 120),
    ("inner", "own", 3),
    ("middle", "own", 1),
    ("outer", "own", 1),
];

/// An unwinder and longjmp find their way through hooked frames during a pause, threads have words of their own, and all
/// hooks come back.
fn pauses() {
    if !available("musl::pauses") {
        return;
    }
    for options in [["--hooks=both", "--libs=auto"], ["--hooks=both", "--libs=all"], ["--hooks=entry", "--libs=all"]] {
        let place = Place::new();
        built_to_pause(&place);
        let ways = ways_to_leave(&place);
        let mut command = place.command(&options);
        command.arg("./prog").env("XDG_RUNTIME_DIR", place.folder.path());
        let mut subject = attached::Subject::start(place, command);
        let pid = profiled(&subject);
        paused_with_frames(&mut subject, &pid, &ways);
        ask(&subject, &pid, "--dump");
        let calls = whole(&subject.place);
        has(&calls, &PAUSED_CALLS, &format!("{options:?}"));
        if options[1] == "--libs=all" {
            has(&calls, &[("own", "atol", 165)], &format!("{options:?}"));
        }
        subject.finish();
    }
}

fn what_is_listed() {
    if !available("musl::what_is_listed") {
        return;
    }
    let place = built_by("musl-gcc", &["-O2"]);
    let listed = place.run(&["--list", "./prog"]);
    let (text, said) = (listed.stdout_text(), listed.stderr_text());
    assert!(text.contains("libhigh.so: hooked") && text.contains("liblow.so: hooked"), "{text}{said}");
    assert!(text.contains("libc.so: left out by --libs auto"), "{text}{said}");
}
