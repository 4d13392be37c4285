//! Measured times of programs that know their own (`tests/known`): who contains whom, sums, numbers of calls, and times.
//!
//! The times that a program knows are right on a busy machine too, but it may be interrupted where it does not look. So each
//! comparison of times may be repeated. `tests/times.sh` prints how far the times are from the known ones.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gmon_measured::Measured;
use gprofinject_skip as skip;
use gprofinject_tests::known::{self, Known};
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        callers,
        recursion,
        jumps,
        exceptions,
        waiting,
        tail_calls,
        callbacks,
        threads,
        signals,
        ends,
        forks,
        coroutines,
        static_programs;
}

const LIMIT: Duration = Duration::from_secs(120);
/// Of so many runs, the times of one have to be right.
const TRIES: usize = 5;
/// The part by which a time may differ.
const PART: f64 = 0.1;

/// A program of `tests/known`, in a folder of its own.
struct Subject {
    folder: tempfile::TempDir,
    name: String,
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
        command.args(["-O2", "-pthread", is_tails]).args(flags).arg("-o").arg(folder.path().join(name));
        command.arg(tool::folder().join(format!("known/{name}.{extension}")));
        compile::compile(command).unwrap();
        Subject { folder, name: name.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program with these options. Returns what it knows, and what was measured.
    fn run(&self, options: &[&str], args: &[&str], status: i32) -> (Known, Measured) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut command = tool::command(options, &self.path("gmon.out"), &self.path(&self.name), &args).unwrap();
        command.current_dir(self.folder.path());
        let outcome = run::run(command, None, LIMIT).unwrap();
        let said = outcome.stderr_text();
        assert!(!outcome.timed_out, "{options:?} {args:?} hangs: {said}");
        assert_eq!(outcome.code(), status, "{options:?} {args:?}: {said}");
        let measured = measured::read(&self.path("gmon.pb.gz"));
        let measured = measured.unwrap_or_else(|error| panic!("{options:?} {args:?}: {error:#}: {said}"));
        (Known::read(&outcome.stdout_text()), measured)
    }

    /// Runs the program until its times are right, and checks everything else each time.
    fn check(&self, options: &[&str], args: &[&str], status: i32) {
        let is_folded = !options.contains(&"--no-fold");
        let mut differing = Vec::new();
        for _ in 0..TRIES {
            let (known, measured) = self.run(options, args, status);
            assert!(!known.spent.is_empty() && !known.calls.is_empty(), "{options:?} {args:?} prints nothing");
            let comparison = known::compare(&known, &measured, is_folded);
            let what = format!("{} {options:?} {args:?}", self.name);
            assert!(comparison.wrong.is_empty(), "{what}: {}", comparison.wrong.join("\n"));
            differing = comparison.differing(PART);
            if differing.is_empty() {
                return;
            }
        }
        panic!("{} {options:?} {args:?}: {}", self.name, differing.join("\n"));
    }

    /// Checks without and with call paths.
    fn check_both(&self, args: &[&str], status: i32) {
        self.check(&["-q", "--times"], args, status);
        self.check(&["-q", "--paths"], args, status);
    }
}

fn callers() {
    let subject = Subject::new("callers", &[]);
    subject.check_both(&[], 0);
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
    assert!(hard > 20 * easy, "{easy} and {hard}");
}

fn recursion() {
    let subject = Subject::new("recursion", &[]);
    subject.check_both(&[], 0);
    subject.check(&["-q", "--paths", "--no-fold"], &[], 0);
}

fn jumps() {
    Subject::new("jumps", &[]).check_both(&[], 0);
}

fn exceptions() {
    Subject::by("g++", "exceptions", &[]).check_both(&[], 0);
}

fn waiting() {
    let subject = Subject::new("waiting", &[]);
    subject.check(&["-q", "--times"], &[], 0);
    let (_, measured) = subject.run(&["-q", "--times"], &[], 0);
    let cpu_and_self = |name: &str| {
        let n = measured.functions.iter().position(|function| function.name == name).unwrap();
        let row = measured.rows.iter().find(|row| row.function as usize == n).unwrap();
        (measured.functions[n].samples * measured.sample_period_ns, row.self_ns)
    };
    let (cpu, own) = cpu_and_self("nap");
    assert!(own >= 200_000_000 && cpu < own / 10, "nap: {cpu} of {own} ns");
    let (cpu, own) = cpu_and_self("burn");
    assert!(cpu > own / 10, "burn: {cpu} of {own} ns");
}

fn tail_calls() {
    Subject::new("tails", &[]).check_both(&[], 0);
}

fn callbacks() {
    let subject = Subject::new("callbacks", &[]);
    subject.check_both(&[], 0);
    subject.check(&["-q", "--paths", "--libs=all"], &[], 0);
}

fn threads() {
    Subject::new("threads", &[]).check_both(&[], 0);
}

fn signals() {
    let subject = Subject::new("signals", &[]);
    subject.check_both(&[], 0);
    subject.check_both(&["alternate"], 0);
}

fn ends() {
    let subject = Subject::new("ends", &[]);
    for (how, status) in
        [("exit", 3), ("_exit", 3), ("kill", 128 + 9), ("term", 128 + 15), ("abort", 128 + 6), ("segv", 128 + 11)]
    {
        subject.check_both(&[how], status);
    }
}

fn forks() {
    let subject = Subject::new("forks", &[]);
    subject.check_both(&[], 0);
    subject.check_both(&["4"], 0);
}

fn coroutines() {
    let subject = Subject::new("coroutines", &[]);
    for switch in [&[][..], &["assembly"], &["symmetric"], &["assembly", "symmetric"]] {
        for place in ["apart", "adjacent", "heap", "local"] {
            subject.check_both(&[switch, &[place]].concat(), 0);
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
            ("threads", &[], 0),
            ("ends", &["exit"], 3),
            ("ends", &["kill"], 128 + 9),
            ("forks", &[], 0),
        ] {
            Subject::by(compiler, name, &flags).check(&["-q", "--paths"], args, status);
        }
    }
}
