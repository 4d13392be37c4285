//! Recording times of programs that know their own (`tests/known`): who contains whom, sums, numbers of calls, and times.
//!
//! The times that a program knows are right on a busy machine too, but it may be interrupted where it does not look. So each
//! comparison of times may be repeated. `tests/times.sh` prints how far the times are from the known ones.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gmon_run::{ClockSource, Costs, Recording};
use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject as Attached;
use gprofinject_tests::known::{self, Known};
use gprofinject_tests::place::Place;
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        callers,
        recursion,
        jumps,
        exceptions,
        waiting,
        durations,
        latencies,
        tail_calls,
        callbacks,
        many_arcs,
        threads,
        cancelled_threads,
        signals,
        ends,
        forks,
        coroutines,
        calibrations,
        static_programs,
        from_the_midst,
        functions_of_libraries_only,
        go_programs_cannot_be_measured;
    alone:
        short_calls;
}

const LIMIT: Duration = Duration::from_secs(120);
/// Each time has to be right in one of so many runs: other programs take the processor at any moment of a run.
const TRIES: usize = 30;
/// The part by which a time may differ.
const PART: f64 = 0.1;

/// A program of `tests/known`, in a folder of its own.
struct Subject {
    folder: tempfile::TempDir,
    name: String,
    /// The ticks per second of the programs' own clock, by the last run that measured with it.
    rate: Cell<f64>,
}

impl Subject {
    fn new(name: &str, flags: &[&str]) -> Subject {
        Subject::by("gcc", name, flags)
    }

    fn by(compiler: &str, name: &str, flags: &[&str]) -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let extension = if compiler == "g++" { "cc" } else { "c" };
        let mut command = Command::new(compiler);
        // Only `tails` has tail calls.
        let is_tails = if name == "tails" { "-foptimize-sibling-calls" } else { "-fno-optimize-sibling-calls" };
        // In static programs, nothing tells gprofinject that another program has the processor.
        let is_static = flags.iter().any(|flag| flag.starts_with("-static")) || compiler.contains("musl");
        let wall = is_static.then_some("-DKNOWN_WALL");
        command.args(["-O2", "-pthread", is_tails]).args(wall).args(flags).arg("-o").arg(folder.path().join(name));
        command.arg(tool::folder().join(format!("known/{name}.{extension}")));
        compile::compile(command).unwrap();
        Subject { folder, name: name.to_owned(), rate: Cell::new(1e9) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program with these options. Returns what it knows, and what was measured.
    fn run(&self, options: &[&str], args: &[&str], status: i32) -> (Known, Recording) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut command = tool::command(options, &self.path("gmon.out"), &self.path(&self.name), &args).unwrap();
        command.current_dir(self.folder.path());
        let outcome = run::run(command, None, LIMIT).unwrap();
        let said = outcome.stderr_text();
        assert!(!outcome.timed_out, "{options:?} {args:?} hangs: {said}");
        assert_eq!(outcome.code(), status, "{options:?} {args:?}: {said}");
        let measured = measured::read(&self.path("gmon.pb.gz"));
        let mut measured = measured.unwrap_or_else(|error| panic!("{options:?} {args:?}: {error:#}: {said}"));
        match measured.clock.source {
            ClockSource::Tsc => self.rate.set(measured.clock.ticks_per_second),
            ClockSource::ClockGettime => measured.clock.ticks_per_second = self.rate.get(),
            ClockSource::Instructions => panic!("{options:?} {args:?} counted instructions"),
        }
        (Known::read(&outcome.stdout_text()), measured)
    }

    /// Runs the program until each of its times has been right, and checks everything else each time.
    fn check(&self, options: &[&str], args: &[&str], status: i32) {
        let is_folded = !options.contains(&"--no-fold");
        let mut never_right: Option<BTreeMap<String, String>> = None;
        for _ in 0..TRIES {
            let (known, measured) = self.run(options, args, status);
            assert!(!known.spent.is_empty() && !known.calls.is_empty(), "{options:?} {args:?} prints nothing");
            let comparison = known::compare(&known, &measured, is_folded);
            let what = format!("{} {options:?} {args:?}", self.name);
            assert!(comparison.wrong.is_empty(), "{what}: {}", comparison.wrong.join("\n"));
            let mut differing = comparison.differing(PART);
            let also = known::compare(&known.without_others(), &measured, is_folded).differing(PART);
            differing.retain(|what, _| also.contains_key(what));
            if let Some(before) = &never_right {
                differing.retain(|what, _| before.contains_key(what));
            }
            if differing.is_empty() {
                return;
            }
            never_right = Some(differing);
        }
        let wrong: Vec<String> = never_right.into_iter().flatten().map(|(_, shown)| shown).collect();
        panic!("{} {options:?} {args:?}: {}", self.name, wrong.join("\n"));
    }

    /// Checks without and with call paths.
    fn check_both(&self, args: &[&str], status: i32) {
        self.check(&["-q", "--times"], args, status);
        self.check(&["-q", "--paths"], args, status);
    }

    /// The same where only long calls are measured too. No call of the program of which the time is known is short.
    fn check_all(&self, args: &[&str], status: i32) {
        self.check_both(args, status);
        self.check(&["-q", "--times", "--min-time=100"], args, status);
        self.check(&["-q", "--paths", "--min-time=100"], args, status);
    }
}

fn callers() {
    let subject = Subject::new("callers", &[]);
    subject.check_all(&[], 0);
    subject.check(&["-q", "--times", "--clock=gettime"], &[], 0);
    // gprof's arithmetic would have each caller take half.
    let (_, measured) = subject.run(&["-q", "--times"], &[], 0);
    let of = |name: &str| {
        let is = |function: u32| measured.functions[function as usize].name == name;
        let arc = measured.arcs.iter().find(|arc| is(arc.callee) && arc.caller.is_some());
        let arcs = measured.arcs.iter().filter(|arc| arc.caller.is_some_and(is));
        (arc.unwrap().calls, arcs.map(|arc| arc.inclusive_ns).sum::<u64>())
    };
    let ((easy_calls, easy), (hard_calls, hard)) = (of("easy"), of("hard"));
    assert_eq!((easy_calls, hard_calls), (10, 10));
    // A call of easy may lose the processor for some time.
    assert!(hard > 4 * easy, "{easy} and {hard}");
}

fn recursion() {
    let subject = Subject::new("recursion", &[]);
    subject.check_all(&[], 0);
    subject.check(&["-q", "--paths", "--no-fold"], &[], 0);
}

fn jumps() {
    Subject::new("jumps", &[]).check_all(&[], 0);
}

fn exceptions() {
    Subject::by("g++", "exceptions", &[]).check_all(&[], 0);
}

fn waiting() {
    let subject = Subject::new("waiting", &[]);
    subject.check(&["-q", "--times"], &[], 0);
    let (known, measured) = subject.run(&["-q", "--times"], &[], 0);
    let costs = Costs::of(&measured).functions;
    let cpu_and_self = |name: &str| {
        let n = measured.functions.iter().position(|function| function.name == name).unwrap();
        let row = measured.rows.iter().find(|row| row.function as usize == n).unwrap();
        (costs[n].samples * measured.sample_period_ns, row.self_ns)
    };
    let (cpu, own) = cpu_and_self("nap");
    assert!(own >= 200_000_000 && cpu < own / 10, "nap: {cpu} of {own} ns");
    let (cpu, own) = cpu_and_self("burn");
    assert!(cpu > own / 10, "burn: {cpu} of {own} ns");
    // The CPU time of a thread includes that in functions that are not hooked.
    let cpu_and_life = |name: &str| {
        let n = measured.functions.iter().position(|function| function.name == name).unwrap();
        let row = measured.rows.iter().find(|row| row.function as usize == n).unwrap();
        let thread = &measured.threads[row.thread as usize];
        assert!(row.samples <= thread.samples && row.samples == costs[n].samples, "{name}: {row:?}");
        (thread.samples * measured.sample_period_ns, row.samples * measured.sample_period_ns, thread.life_ns)
    };
    let (cpu, _, life) = cpu_and_life("sleeper");
    assert!(life >= 200_000_000 && cpu < life / 10, "sleeper: {cpu} of {life} ns");
    let (cpu, own, life) = cpu_and_life("spinner");
    let by_the_kernel = known.cpu_ns["spinner"];
    assert!(cpu.abs_diff(by_the_kernel) < by_the_kernel / 10, "spinner: {cpu} of {life} ns, not {by_the_kernel}");
    assert!(own > 0 && own < cpu - cpu / 20, "spinner: {own} of {cpu} ns are its own");
    let (all, sampled) = measured.rows.iter().fold((0, 0), |(all, sampled), row| {
        (all + costs[row.function as usize].samples, sampled + row.samples)
    });
    assert_eq!(sampled, all, "each function runs on one thread, so its samples are that thread's");
}

/// The durations that half of the calls and 99 of 100 do not exceed are those that the program knows, or in the same interval of
/// the histogram, which is a quarter wide at most.
fn durations() {
    let subject = Subject::new("durations", &[]);
    subject.check_all(&[], 0);
    subject.check(&["-q", "--times", "--clock=gettime"], &[], 0);
}

/// What a function has begun counts in it, although the processor goes on before it is complete.
fn latencies() {
    Subject::new("latency", &[]).check_both(&[], 0);
}

fn tail_calls() {
    Subject::new("tails", &[]).check_all(&[], 0);
}

fn callbacks() {
    let subject = Subject::new("callbacks", &[]);
    subject.check_all(&[], 0);
    subject.check(&["-q", "--paths", "--libs=all"], &[], 0);
}

/// Each arc and each path has a record of its own, however many there are.
fn many_arcs() {
    const FUNCTIONS: usize = 400;
    let subject = Subject::new("many", &[]);
    for options in [&["-q", "--times"][..], &["-q", "--paths", "--no-fold"]] {
        let (known, measured) = subject.run(options, &[], 0);
        let wrong = known::compare(&known, &measured, false).wrong;
        assert!(wrong.is_empty(), "{options:?}: {}", wrong.join("\n"));
        let is_one = |function: u32| {
            let name = measured.functions[function as usize].name.strip_prefix('f');
            name.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let arcs: Vec<u64> = measured
            .arcs
            .iter()
            .filter(|arc| is_one(arc.callee) && arc.caller.is_some_and(is_one))
            .map(|arc| arc.calls)
            .collect();
        assert_eq!(arcs, [1; FUNCTIONS * FUNCTIONS], "{options:?}");
        if options.contains(&"--paths") {
            let ones = measured.nodes.iter().filter(|node| node.function.is_some_and(is_one));
            assert_eq!(ones.count(), FUNCTIONS + FUNCTIONS * FUNCTIONS);
            assert_eq!(measured.nodes_lost, 0);
        }
    }
}

fn threads() {
    Subject::new("threads", &[]).check_all(&[], 0);
}

/// Without the kernel's events, nobody notices the end of such a thread.
fn cancelled_threads() {
    let subject = Subject::new("cancelled", &[]);
    for how in ["cancel", "raw"] {
        subject.check_all(&[how], 0);
    }
}

fn signals() {
    let subject = Subject::new("signals", &[]);
    subject.check_all(&[], 0);
    subject.check_all(&["alternate"], 0);
}

fn ends() {
    let subject = Subject::new("ends", &[]);
    for (how, status) in
        [("exit", 3), ("executes", 3), ("_exit", 3), ("kill", 128 + 9), ("term", 128 + 15), ("abort", 128 + 6), ("segv", 128 + 11)]
    {
        subject.check_all(&[how], status);
    }
}

fn forks() {
    let subject = Subject::new("forks", &[]);
    subject.check_all(&[], 0);
    subject.check_all(&["4"], 0);
}

fn coroutines() {
    let subject = Subject::new("coroutines", &[]);
    for switch in [&[][..], &["assembly"], &["symmetric"], &["assembly", "symmetric"]] {
        for place in ["apart", "adjacent", "heap", "local"] {
            subject.check_all(&[switch, &[place]].concat(), 0);
        }
    }
}

/// With `--min-time`, short calls are only counted: all numbers of calls are as they are without it, also where calls of both kinds are mixed
/// with signal handlers, jumps and tail calls. A function whose calls become long is measured from then on.
fn short_calls() {
    let subject = Subject::new("mixed", &[]);
    let calls_of = |recording: &Recording| {
        let name = |function: u32| recording.functions[function as usize].name.clone();
        let mut all: BTreeMap<(Option<String>, String), u64> = BTreeMap::new();
        for calls in &recording.calls {
            *all.entry((calls.caller.map(name), name(calls.callee))).or_default() += calls.calls;
        }
        all
    };
    let (_, whole) = subject.run(&["-q", "--times"], &[], 0);
    for options in [&["-q", "--times", "--min-time=100"], &["-q", "--paths", "--min-time=100"]] {
        let mut tries = 0;
        loop {
            tries += 1;
            let (mut known, measured) = subject.run(options, &[], 0);
            let later = vec![String::from("shifting")];
            let spun = known.spent.remove(&later).unwrap();
            known.others.remove(&later);
            let comparison = known::compare(&known, &measured, true);
            assert!(comparison.wrong.is_empty(), "{options:?}: {}", comparison.wrong.join("\n"));
            assert_eq!(calls_of(&measured), calls_of(&whole), "{options:?}: arcs of gmon.out");
            let of = |name: &str| {
                let rows = measured.rows.iter().filter(|row| measured.functions[row.function as usize].name == name);
                rows.fold((0, 0, 0), |(calls, counted, own), row| {
                    (calls + row.calls, counted + row.counted, own + row.self_ns)
                })
            };
            for short in ["tiny", "hop", "fib"] {
                let (calls, counted, _) = of(short);
                assert!(counted > calls / 2 && counted < calls, "{options:?}: {short}: {counted} of {calls} are counted only");
            }
            for long in ["far", "handle", "inner"] {
                assert_eq!(of(long).1, 0, "{options:?}: {long}");
            }
            // One call in 1024 is measured nevertheless, and when it is long, all of the next ones are.
            let own = of("shifting").2 as f64 * measured.clock.ticks_per_second / 1e9 / spun as f64;
            let differing = comparison.differing(PART);
            let is_right = differing.is_empty() && (0.75..1.05).contains(&own);
            if is_right {
                break;
            }
            assert!(tries < TRIES, "{options:?}: {own} of the later calls of shifting, {differing:?}");
        }
    }
}

/// The same with functions of the C library measured as well, and with musl.
fn static_programs() {
    let mut kinds = vec![("gcc", vec!["-static"]), ("gcc", vec!["-static-pie"])];
    if skip::path_of("musl-gcc").is_some() {
        kinds.extend([("musl-gcc", vec![]), ("musl-gcc", vec!["-static"])]);
    } else {
        skip::skipped("measured::static_programs", "no musl-gcc");
    }
    for (compiler, flags) in kinds {
        for (name, args, status) in [
            ("callers", &[][..], 0),
            ("jumps", &[], 0),
            ("callbacks", &[], 0),
            ("ends", &["exit"], 3),
            ("ends", &["kill"], 128 + 9),
            // Of the other functions of `forks`, part of the time is in the C library.
            ("forks", &["4"], 0),
        ] {
            Subject::by(compiler, name, &flags).check(&["-q", "--paths"], args, status);
        }
    }
}

/// Attaching while calls are running: their frames have no hooks, so they are not measured, and those that they make are.
fn from_the_midst() {
    let mut subject = Attached::new("", &[]);
    subject.step(100);
    for leave in ["-INT", "-TERM"] {
        let attached = subject.attached(&["--times"]);
        subject.step(1000);
        subject.ask("--pause");
        subject.step(777);
        subject.ask("--resume");
        subject.step(20);
        let (status, said) = attached.end(leave);
        assert_eq!((status, subject.calls("step")), (Some(0), 1020), "{said}");
        let file = subject.place.path("gmon.pb.gz");
        let measured = measured::read(&file).unwrap();
        let wrong = known::consistency(&measured);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let n = measured.functions.iter().position(|function| function.name == "step").unwrap();
        let calls: u64 = measured.rows.iter().filter(|row| row.function as usize == n).map(|row| row.calls).sum();
        assert_eq!(calls, 1020);
        subject.step(100);
        assert!(subject.is_clean(), "{said}");
    }
    subject.finish();
}

/// A thread that is off the processor now and then calibrates the overhead of its calls each time that it comes back after a while. A trace has one overhead
/// for all of its calls.
fn calibrations() {
    let place = Place::new();
    let source = "#include <time.h>\n#include <unistd.h>\n\
        __attribute__((noinline)) void spin(void) {\n\
            struct timespec begun, now;\n\
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);\n\
            do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);\n\
            while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 5000000);\n\
        }\n\
        int main(void) { for (int i = 0; i < 80; i++) { spin(); usleep(1000); } return 0; }\n";
    place.c("program", source, &["-O2"]);
    let ways: [(&[&str], bool); 3] =
        [(&["--times"], true), (&["--paths", "--min-time"], true), (&["--times", "--trace", "t"], false)];
    for (options, is_again) in ways {
        let options = [&["-q", "--stats", "stats", "-o", "gmon.out"], options, &["./program"]].concat();
        let outcome = place.run(&options);
        assert_eq!((outcome.code(), outcome.stderr_text()), (0, String::new()), "{options:?}");
        let stats: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap();
        let calibrations = stats["measured"]["calibrations"].as_u64().unwrap();
        // In 480 ms there are 25 ms nineteen times, and those of a slow clock fewer.
        assert!(if is_again { calibrations >= 5 } else { calibrations == 0 }, "{options:?}: {calibrations}");
        let measured = measured::read(&place.path("gmon.pb.gz")).unwrap();
        let n = measured.functions.iter().position(|function| function.name == "spin").unwrap();
        let spins = measured.rows.iter().filter(|row| row.function as usize == n);
        let spun: u64 = spins.map(|row| row.self_ns).sum();
        // What calibrations take is in no duration, and nothing else is missing.
        assert!(spun >= 390_000_000, "{options:?}: {spun} ns");
    }
}

/// Nothing is said of the program if the user has asked for none of its functions.
fn functions_of_libraries_only() {
    let place = Place::new();
    let source = "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 50; i++) free(calloc(i + 1, 8)); return 0; }\n";
    place.c("program", source, &["-fno-builtin"]);
    let options = ["-q", "--times", "--libs", "libc.so*", "-I", "calloc", "-o", "gmon.out", "./program"];
    let outcome = place.run(&options);
    assert_eq!((outcome.code(), outcome.stderr_text()), (0, String::new()));
    let measured = measured::read(&place.path("gmon.pb.gz")).unwrap();
    let n = measured.functions.iter().position(|function| function.name.contains("calloc")).unwrap();
    let calls: u64 = measured.rows.iter().filter(|row| row.function as usize == n).map(|row| row.calls).sum();
    assert!((50..60).contains(&calls), "{calls}"); // libc may call it as well
}

/// Only entries of Go's functions can be hooked, so there is no end to measure. The program runs and is counted, and the user is
/// told.
fn go_programs_cannot_be_measured() {
    if !skip::have_for("measured::go_programs_cannot_be_measured", &["go"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = "package main\nfunc main() { println(len(\"go\")) }\n";
    std::fs::write(folder.path().join("tiny.go"), source).unwrap();
    let mut go = Command::new("go");
    go.args(["build", "-o", "tiny", "tiny.go"]).current_dir(folder.path()).env("GO111MODULE", "off");
    go.env("GOCACHE", tool::target_folder().join("go-cache"));
    compile::compile(go).unwrap();
    let program = folder.path().join("tiny");
    let mut command = tool::command(&["--times"], &folder.path().join("gmon.out"), &program, &[]).unwrap();
    command.current_dir(folder.path());
    let outcome = run::run(command, None, LIMIT).unwrap();
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(said.contains("cannot be measured"), "{said}");
    assert!(said.contains("2\n"), "{said}");
}
