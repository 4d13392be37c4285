//! Traces: numbers of events and numbers of counted calls, times and those of `--times`, and what the clock and the scheduler say.

use std::process::Command;
use std::time::{Duration, Instant};

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::traced::{rows, shown, stats, traced};
use gprofinject_tests::{compile, tool};

gprofinject_tests::trials! {
    together:
        as_many_calls_as_are_counted,
        the_times_are_those_of_times,
        the_times_of_known_programs_are_those_of_times,
        sleeping_is_waiting,
        the_clocks_rate_is_known_from_the_beginning;
}

const LOGGED: &str = include_str!("../../data/logged.c");

/// Programs of the system and of this test, each with arguments.
fn programs(place: &Place) -> Vec<Vec<String>> {
    place.c("logged", LOGGED, &["-O1", "-pthread"]);
    place.c(
        "marks",
        "#include <stdio.h>\n#include <setjmp.h>\n\
         __attribute__((noinline, noclone)) void *where(void) { return __builtin_return_address(0); }\n\
         int main(void) { int n = 0; for (int i = 0; i < 1000; i++) n += where() != 0; printf(\"%d\\n\", n); return 0; }",
        &["-O1"],
    );
    // Control runs on from one function into the next.
    for name in ["run-on", "run-on-sometimes"] {
        let folder = tool::folder().join("programs");
        let source = std::fs::read_to_string(folder.join(format!("{name}.c"))).unwrap();
        place.c(name, &source, &["-O2", "-I", folder.to_str().unwrap()]);
    }
    // Children that end at once, children that execute programs, and at last the process itself, after a vain attempt.
    std::fs::write(
        place.path("script"),
        "for i in 1 2 3; do a=$(echo one; /bin/true | cat; echo $(/bin/echo two)); done\n\
         shopt -s execfail; exec /nonexistent/program 2>/dev/null\n\
         echo $a; exec /bin/echo three\n",
    )
    .unwrap();
    let mut all = vec![vec!["./logged".to_owned()], vec!["./marks".to_owned()]];
    all.extend(["./run-on", "./run-on-sometimes"].map(|program| vec![program.to_owned()]));
    all.push(["bash", "script"].map(str::to_owned).to_vec());
    std::fs::write(
        place.path("a.lua"),
        "local t = {} for i = 1, 300 do t[i] = i * 7919 % 307 end table.sort(t) print(t[1], #t, pcall(error, 'e'))\n\
         local w = coroutine.wrap(function() for i = 1, 50 do coroutine.yield(i) end end) for i = 1, 50 do w() end",
    )
    .unwrap();
    for (tool, args) in [
        ("lua5.4", &["a.lua"][..]),
        ("perl", &["-e", "my %h; $h{$_ % 7} .= $_ for 1 .. 500; print join(',', sort keys %h), qq(\\n)"]),
        ("git", &["--version"]),
        ("python3", &["-S", "-c", "print(sum(i * i for i in range(300)))"]),
    ] {
        if skip::have(tool) {
            all.push([tool].iter().chain(args).map(|&arg| arg.to_owned()).collect());
        } else {
            skip::skipped(&format!("traced: {tool}"), &format!("no {tool}"));
        }
    }
    all
}

fn as_many_calls_as_are_counted() {
    let place = Place::new();
    for program in programs(&place) {
        for options in [&["--libs", "none"][..], &[], &["--libs", "all"], &["--clock", "gettime"], &["--paths"]] {
            let program: Vec<&str> = program.iter().map(String::as_str).collect();
            traced(&place, &[&["-q", "--stats=stats", "--trace-full", "wait"], options].concat(), &program, 0);
            let stats = stats(&place);
            let others: u64 = stats["processes"].as_array().unwrap().iter().map(|p| p["calls"].as_u64().unwrap()).sum();
            let counted = stats["calls"].as_u64().unwrap() + others;
            assert_eq!(stats["trace"]["calls"].as_u64(), Some(counted), "{program:?} {options:?}");
            assert_eq!(stats["trace"]["lost"].as_u64(), Some(0), "{program:?} {options:?}");
            let rows = rows(&shown(&place, "trace", &["--stats", "--json"]));
            let timed: u64 = rows.values().map(|row| row["calls"].as_u64().unwrap()).sum();
            // Calls whose ends are not seen have no times.
            let text = shown(&place, "trace", &["--fields", "tid"]);
            let others = text.lines().filter(|line| line.contains("its end is not seen")).count() as u64;
            assert_eq!(timed + others, counted, "{program:?} {options:?}");
        }
    }
}

fn the_times_are_those_of_times() {
    let place = Place::new();
    for program in programs(&place).into_iter().filter(|program| !program[0].ends_with("logged")) {
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        compare_with_times(&place, &[], &program);
    }
}

/// Runs a program with `--times` and `--trace`, and compares what both say of each function. Both are made of the same readings of the
/// clock, by the agent and by the reader of the trace, in code that has nothing in common.
fn compare_with_times(place: &Place, options: &[&str], program: &[&str]) {
    const COUNTS: [&str; 3] = ["calls", "primitive", "open"];
    const TIMES: [&str; 6] = ["self_ns", "self_raw_ns", "inclusive_ns", "inclusive_raw_ns", "min_ns", "max_ns"];
    let what = format!("{program:?} {options:?}");
    // The overhead of a call would be fitted to samples, of which a trace has none.
    traced(place, &[&["-q", "--times", "--rate=0", "--stats=stats"], options].concat(), program, 0);
    let others = stats(place)["processes"].as_array().unwrap().len();
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(["flat", "--json"]).arg(place.path("gmon.pb.gz"));
    let (measured, traced) = (
        rows(&place::finish(command).stdout_text()),
        rows(&shown(place, "trace", &["--stats", "--json"])),
    );
    let mut compared = 0;
    for (name, row) in &measured {
        let Some(other) = traced.get(name) else { continue };
        compared += 1;
        for count in COUNTS {
            assert_eq!(row[count], other[count], "{what}: {name:?}: {count}");
        }
        // When the calls end that are open at the end is not known as well to one as to the other.
        if row["open"].as_u64() != Some(0) {
            continue;
        }
        for time in TIMES {
            // A call that has not ended has neither a shortest nor a longest one.
            let [one, two] = [row, other].map(|row| row[time].as_f64().unwrap_or(-1.0));
            // Both are of the same rate. That a process executes another program is noticed at different moments, though.
            let bound = if others == 0 { 0.0 } else { 1e6 * others as f64 + one.abs() * 1e-3 };
            assert!((one - two).abs() <= bound, "{what}: {name:?}: {time}: {one} and {two}");
        }
        if others == 0 {
            assert_eq!(row["histogram"], other["histogram"], "{what}: {name:?}");
        }
    }
    assert!(compared > 5, "{what}: {compared} functions");
}

/// Recursion, jumps, exceptions, tail calls, callbacks, signal handlers, forks, coroutines, threads and rings that fill.
fn the_times_of_known_programs_are_those_of_times() {
    let place = Place::new();
    let runs: [(&str, &[&str], &[&str]); 16] = [
        ("callers", &[], &[]),
        ("recursion", &[], &[]),
        ("recursion", &["--clock=gettime"], &[]),
        ("jumps", &[], &[]),
        ("exceptions", &[], &[]),
        ("tails", &[], &[]),
        ("callbacks", &[], &[]),
        ("callbacks", &["--libs=all"], &[]),
        ("signals", &[], &[]),
        ("signals", &[], &["alternate"]),
        ("forks", &[], &[]),
        ("coroutines", &[], &["apart"]),
        ("coroutines", &[], &["assembly", "heap"]),
        ("coroutines", &[], &["symmetric", "local"]),
        ("short", &[], &[]),
        ("many", &[], &[]),
    ];
    for (name, options, args) in runs {
        let (compiler, extension) = if name == "exceptions" { ("g++", "cc") } else { ("gcc", "c") };
        let calls = if name == "tails" { "-foptimize-sibling-calls" } else { "-fno-optimize-sibling-calls" };
        let mut command = Command::new(compiler);
        command.args(["-O2", "-pthread", calls, "-o"]).arg(place.path(name));
        command.arg(tool::folder().join(format!("known/{name}.{extension}")));
        compile::compile(command).unwrap();
        compare_with_times(&place, options, &[&[format!("./{name}").as_str()], args].concat());
    }
}

/// gprofinject is killed in its first second: what it has written by then says how fast the clock is.
fn the_clocks_rate_is_known_from_the_beginning() {
    const NAPPING: &str = r#"
#include <stdio.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline)) static void nap(void) { nanosleep(&(struct timespec){0, 10000000}, 0); }
int main(void) { while (getppid() != 1) nap(); return 0; }
"#;
    const NAP_NS: f64 = 1e7;
    let place = Place::new();
    place.c("prog", NAPPING, &["-O1", "-fno-optimize-sibling-calls"]);
    let mut command = tool::command(&["-q", "--trace", "trace"], &place.path("gmon.out"), &place.path("prog"), &[]).unwrap();
    let mut injector = command.current_dir(place.path("")).spawn().unwrap();
    // A thread's events are written after a quarter of a second.
    let deadline = Instant::now() + Duration::from_secs(20);
    let has_calls = || {
        let mut command = Command::new(tool::gmon().unwrap());
        command.args(["trace", "--stats", "--json", "-f", "nap"]).arg(place.path("trace"));
        let outcome = place::finish(command);
        outcome.code() == 0 && outcome.stdout_text().contains("\"nap\"")
    };
    while !has_calls() {
        assert!(Instant::now() < deadline, "no calls are written");
        std::thread::sleep(Duration::from_millis(20));
    }
    injector.kill().unwrap();
    injector.wait().unwrap();
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(["trace", "--stats", "--json", "-f", "nap"]).arg(place.path("trace"));
    let outcome = place::finish(command);
    assert!(!outcome.stderr_text().contains("a tick is shown as a nanosecond"), "{}", outcome.stderr_text());
    let least = rows(&outcome.stdout_text()).into_values().next().unwrap()["min_ns"].as_f64().unwrap();
    // Ticks that are taken for nanoseconds would be two to five times as long.
    assert!((NAP_NS..1.8 * NAP_NS).contains(&least), "{least} ns");
}

/// The scheduler has a thread wait within each call that sleeps, for as long as it sleeps at least.
fn sleeping_is_waiting() {
    const SLEEPING: &str = r#"
#include <pthread.h>
#include <time.h>
__attribute__((noinline)) static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, 0); }
__attribute__((noinline)) static void spin(void) { for (volatile int i = 0; i < 1000000; i++); }
static void *thread(void *arg) { for (int i = 0; i < 10; i++) { nap(); spin(); } return arg; }
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, thread, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;
    let place = Place::new();
    place.c("prog", SLEEPING, &["-O1", "-pthread", "-fno-optimize-sibling-calls"]);
    traced(&place, &["-q"], &["./prog"], 0);
    let json: serde_json::Value = serde_json::from_str(&shown(&place, "trace", &["--json"])).unwrap();
    let steps = json["steps"].as_array().unwrap();
    if !steps.iter().any(|step| step["event"] == "runs") {
        return skip::skipped("traced: sleeping_is_waiting", "perf is not permitted here");
    }
    let number = |step: &serde_json::Value, key: &str| step[key].as_u64().unwrap();
    let naps: Vec<_> = steps.iter().filter(|step| step["function"] == "nap").collect();
    assert_eq!(naps.len(), 30);
    for nap in naps {
        let waits = steps.iter().filter(|step| {
            step["event"] == "waits"
                && step["tid"] == nap["tid"]
                && number(step, "begin_ns") >= number(nap, "begin_ns")
                && number(step, "end_ns") <= number(nap, "end_ns")
        });
        let waited: u64 = waits.map(|step| number(step, "end_ns") - number(step, "begin_ns")).sum();
        // Switches are timed by another clock, of whose rate they have an error.
        assert!(waited > 1_900_000, "{waited} ns in {nap}");
    }
}
