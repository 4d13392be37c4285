//! The slowest calls (`--slow`) of a program that knows its own (`tests/known/slow.c`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use gmon_run::{Recording, SlowCall, SlowEnd};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        of_threads,
        of_children,
        of_a_program_that_is_killed,
        more_paths_than_there_is_room_for,
        calls_that_lose_events,
        of_a_running_process,
        least_durations,
        mistakes_are_refused;
}

const LIMIT: Duration = Duration::from_secs(120);
/// The number of runs of which one has to agree, because the program's own clock includes what happens on a busy machine beside a call.
const TRIES: usize = 4;

/// A slow call as the program knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Own {
    ns: u64,
    kind: String,
    tid: u32,
}

/// Reads what the program has printed, the slowest calls first.
fn own(output: &str) -> Vec<Own> {
    let mut all: Vec<Own> = output
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["slow", ns, kind, tid] = words[..] else { return None };
            Some(Own { ns: ns.parse().ok()?, kind: kind.to_owned(), tid: tid.parse().ok()? })
        })
        .collect();
    all.sort_by(|a, b| b.cmp(a));
    all
}

struct Subject {
    folder: tempfile::TempDir,
}

impl Subject {
    fn new() -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("gcc");
        command.args(["-O2", "-pthread", "-fno-optimize-sibling-calls", "-o"]).arg(folder.path().join("p"));
        command.arg(tool::folder().join("known/slow.c"));
        compile::compile(command).unwrap();
        Subject { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn try_run(&self, options: &[&str], args: &[&str]) -> Outcome {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut command = tool::command(options, &self.path("gmon.out"), &self.path("p"), &args).unwrap();
        command.current_dir(self.folder.path());
        run::run(command, None, LIMIT).unwrap()
    }

    fn recording(&self) -> Recording {
        measured::read(&self.path("gmon.pb.gz")).unwrap()
    }

    fn run(&self, options: &[&str], args: &[&str]) -> (Vec<Own>, Recording) {
        let outcome = self.try_run(options, args);
        assert_eq!(outcome.code(), 0, "{options:?}: {}", outcome.stderr_text());
        (own(&outcome.stdout_text()), self.recording())
    }
}

/// Returns the name of the function in whose node a call has spent most of its own time.
fn culprit(recording: &Recording, call: &SlowCall) -> String {
    let slow = &recording.slow;
    let node = slow.nodes[slow.tree(call.node)].iter().max_by_key(|node| node.self_ns).unwrap();
    let function = node.function.map(|function| recording.functions[function as usize].name.clone());
    function.unwrap_or_default()
}

/// Returns how the slowest calls differ from those that the program knows.
fn differences(own: &[Own], recording: &Recording) -> Vec<String> {
    let mut wrong = Vec::new();
    let calls = &recording.slow.calls;
    if calls.len() != own.len().min(10) {
        wrong.push(format!("{} calls of {}", calls.len(), own.len()));
    }
    for (call, own) in calls.iter().zip(own) {
        // The program's own clock has all that happens around the call too.
        let is_near = call.duration_ns <= own.ns && own.ns - call.duration_ns < 300_000;
        if call.tid != own.tid || !is_near {
            wrong.push(format!("{} ns on thread {}, expected {own:?}", call.duration_ns, call.tid));
        }
        let (expected, end) = match own.kind.as_str() {
            "nap" => ("nap", SlowEnd::Returned),
            "left" => ("nap", SlowEnd::Left),
            _ => ("work", SlowEnd::Returned),
        };
        if culprit(recording, call) != expected || call.end != end || call.is_incomplete {
            wrong.push(format!("{own:?}: {}, {:?}", culprit(recording, call), call.end));
        }
        // The scheduler's records may not be readable on this machine.
        let waiting = call.waiting_ns.filter(|_| expected == "nap");
        if waiting.is_some_and(|waiting| waiting < call.duration_ns * 9 / 10 || waiting > call.duration_ns) {
            wrong.push(format!("{own:?}: waiting {waiting:?}"));
        }
        let slow = &recording.slow;
        // Each of the nodes is rounded.
        let sum = slow.inclusive(slow.tree(call.node))[0];
        if sum.abs_diff(call.duration_ns) > 1000 + call.duration_ns / 100 {
            wrong.push(format!("{own:?}: the nodes have {sum} ns of {}", call.duration_ns));
        }
    }
    let typical = &recording.slow.typical;
    let median = typical.first().map(|typical| recording.slow.nodes[typical.node as usize].median_ns);
    // An ordinary call works for 20 us.
    if median.is_none_or(|median| !(16_000..40_000).contains(&median)) {
        wrong.push(format!("a median of {median:?} ns"));
    }
    wrong
}

/// Runs the program until its slowest calls agree with what it knows. Returns the last recording.
fn check(options: &[&str], args: &[&str]) -> Recording {
    let subject = Subject::new();
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let (own, recording) = subject.run(options, args);
        wrong = differences(&own, &recording);
        if wrong.is_empty() {
            return recording;
        }
    }
    panic!("{options:?}: {}", wrong.join("\n"));
}

fn of_threads() {
    let recording = check(&["--slow", "serve"], &["threads", "4"]);
    let typical = &recording.slow.typical;
    assert_eq!((typical.len(), typical[0].calls, typical[0].others), (1, 800, 0));
    // A recursive call is in the node of the first one.
    let deep = recording.slow.nodes.iter().filter(|node| {
        node.function.is_some_and(|function| recording.functions[function as usize].name == "deep")
    });
    assert!(deep.clone().count() > 0 && deep.clone().all(|node| node.calls % 6 == 0), "{:?}", deep.collect::<Vec<_>>());
}

fn of_children() {
    let recording = check(&["--slow", "ser?e"], &["forks", "4"]);
    assert_eq!(recording.slow.typical[0].calls, 800);
    let pids: Vec<u32> = recording.slow.calls.iter().map(|call| call.pid).collect();
    assert!(pids.iter().any(|pid| *pid != pids[0]), "{pids:?}");
}

/// The call within which the process kills itself is the slowest.
fn of_a_program_that_is_killed() {
    let subject = Subject::new();
    let outcome = subject.try_run(&["--slow", "serve", "--slow-top", "2"], &["killed"]);
    assert!(outcome.code() > 128, "{}", outcome.stderr_text());
    let recording = subject.recording();
    let slow = &recording.slow;
    assert_eq!((slow.calls.len(), slow.typical[0].calls, slow.typical[0].others), (2, 10, 1));
    let call = &slow.calls[0];
    assert_eq!((call.end, call.is_incomplete, culprit(&recording, call).as_str()), (SlowEnd::Open, false, "nap"));
    assert!(call.duration_ns >= 50_000_000, "{call:?}");
}

/// A call that takes more paths than a tree has nodes is cut, and its numbers stay right.
fn more_paths_than_there_is_room_for() {
    let subject = Subject::new();
    let (_, recording) = subject.run(&["--slow", "serve"], &["paths"]);
    let slow = &recording.slow;
    assert_eq!((slow.calls.len(), slow.typical[0].calls), (5, 5));
    for call in &slow.calls {
        let nodes = &slow.nodes[slow.tree(call.node)];
        let calls: u64 = nodes.iter().map(|node| node.calls).sum();
        // serve, work, first_outer and second_outer; for each 100 of outer, as many of all_inner, 10,000 of inner. What `work` calls is the
        // C library's.
        let others: u64 = nodes.iter().filter(|node| node.function.is_none()).map(|node| node.calls).sum();
        assert!((20_404..21_000).contains(&calls) && others > 3000 && nodes.len() <= 16_384, "{calls} {others}");
        // Each of the nodes is rounded.
        let sum = slow.inclusive(slow.tree(call.node))[0];
        let duration = call.duration_ns;
        assert!(sum.abs_diff(duration) < 1 + duration / 50, "{sum} of {duration}, {call:?}");
    }
}

/// Whether or not events are lost: a call that is not marked as incomplete has all of its calls.
fn calls_that_lose_events() {
    const LEAVES: u64 = 100_000;
    let subject = Subject::new();
    for full in ["drop-new", "drop-old", "wait"] {
        let options = ["--slow", "serve", "--slow-top", "400", "--trace-full", full];
        let (own, recording) = subject.run(&options, &["leaves", "100000"]);
        let slow = &recording.slow;
        let known = slow.typical[0].calls + slow.typical[0].others;
        assert!(known <= 400 && (known == 400 || full != "wait"), "{full}: {known}");
        let slowest = own[0].ns;
        for call in &slow.calls {
            let leaves = slow.nodes[slow.tree(call.node)].iter().filter(|node| {
                node.function.is_some_and(|function| recording.functions[function as usize].name == "leaf")
            });
            let calls: u64 = leaves.map(|node| node.calls).sum();
            assert!(calls == LEAVES || call.is_incomplete && calls < LEAVES, "{full}: {calls} {call:?}");
            assert!(call.duration_ns <= slowest, "{full}: {call:?}, {slowest}");
        }
        let incomplete = slow.calls.iter().filter(|call| call.is_incomplete).count();
        assert!(full != "wait" || incomplete == 0, "{incomplete}");
        println!("{full}: {incomplete} of {} incomplete, {known} known", slow.calls.len());
    }
}

fn of_a_running_process() {
    let subject = Subject::new();
    let mut program = Command::new(subject.path("p"))
        .arg("loop")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        while output.read_line(&mut text).is_ok_and(|read| read > 0) {}
        text
    });
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.args(["--slow", "serve", "--duration", "1.5", "-o"]).arg(subject.path("gmon.out"));
    command.args(["--pid", &program.id().to_string()]);
    let outcome = run::run(command, None, LIMIT).unwrap();
    let _ = program.kill();
    let _ = program.wait();
    let text = reader.join().unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let recording = subject.recording();
    let own = own(&text);
    assert_eq!(recording.slow.calls.len(), 10);
    for call in recording.slow.calls.iter().filter(|call| call.end != SlowEnd::Open) {
        let is_it = |own: &&Own| own.ns >= call.duration_ns && own.ns - call.duration_ns < 3_000_000;
        let kind = own.iter().filter(is_it).any(|own| match own.kind.as_str() {
            "nap" | "left" => culprit(&recording, call) == "nap",
            _ => culprit(&recording, call) == "work",
        });
        assert!(kind, "{call:?} {own:?}");
    }
}

fn least_durations() {
    let subject = Subject::new();
    let (own, recording) = subject.run(&["--slow", "serve", "--slow-above", "5000"], &["threads", "2"]);
    let slow = &recording.slow;
    assert!(slow.calls.len() >= own.len() && slow.calls.iter().all(|call| call.duration_ns >= 5_000_000));
    let (_, recording) = subject.run(&["--slow", "serve", "--slow-above", "5000", "--slow-top", "3"], &["threads", "2"]);
    assert_eq!((recording.slow.calls.len(), recording.slow.typical[0].left_out >= 5), (3, true));
    let outcome = subject.try_run(&["--slow", "serve", "--slow-above", "9000000"], &["threads", "2"]);
    assert!(outcome.stderr_text().contains("none of 400 calls was slow enough"), "{}", outcome.stderr_text());
}

fn mistakes_are_refused() {
    let subject = Subject::new();
    for (options, said) in [
        (&["--slow", "sevre"][..], "--slow 'sevre' matches no function"),
        (&["--slow", "sevre"], "'serve'"),
        (&["--slow", "serve", "-X", "serve"], "serve is not measured"),
        (&["--slow", "serve", "--trace", "t"], "leave --trace or --slow out"),
        (&["--slow-top", "3"], "add --slow FUNCTION"),
        (&["--slow", "serve", "--hooks", "entry"], "--slow measures from the entry"),
        (&["--slow", "serve", "--trace-depth", "3"], "add --trace FILE"),
    ] {
        let outcome = subject.try_run(options, &["threads"]);
        assert_eq!(outcome.code(), 125, "{options:?}");
        assert!(outcome.stderr_text().contains(said), "{options:?}: {}", outcome.stderr_text());
        assert!(fs::metadata(subject.path("gmon.out")).is_err(), "{options:?} has run the program");
    }
}
