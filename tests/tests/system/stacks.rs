//! Sampled stacks: the functions on them of a program that knows where it spends its time (`tests/known/stacks.cc`), and of programs that
//! perf samples as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gmon_run::Recording;
use gprofinject_skip as skip;
use gprofinject_tests::known::Known;
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        known_stacks,
        of_programs_without_optimisation,
        of_static_programs,
        of_musl,
        without_hooks,
        with_entry_hooks,
        without_libraries,
        deeper_than_what_is_copied,
        frames_of_earlier_calls,
        without_perf_events;
}

const LIMIT: Duration = Duration::from_secs(120);
/// The number of runs of which one has to agree: there are some 1,500 samples, so the standard deviation of a share is up to 1.3 points.
const TRIES: usize = 4;
/// The points of a percentage by which a share may differ.
const POINTS: f64 = 4.0;

struct Subject {
    folder: tempfile::TempDir,
}

impl Subject {
    fn new(flags: &[&str]) -> Subject {
        Subject::by("g++", "stacks.cc", flags)
    }

    fn by(compiler: &str, source: &str, flags: &[&str]) -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(compiler);
        command.args(["-O2", "-pthread", "-fno-optimize-sibling-calls"]).args(flags);
        command.arg("-o").arg(folder.path().join("p")).arg(tool::folder().join("known").join(source));
        compile::compile(command).unwrap();
        Subject { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, options: &[&str]) -> (Known, Recording) {
        let mut command = tool::command(options, &self.path("gmon.out"), &self.path("p"), &[]).unwrap();
        command.current_dir(self.folder.path());
        let outcome = run::run(command, None, LIMIT).unwrap();
        assert_eq!(outcome.code(), 0, "{options:?}: {}", outcome.stderr_text());
        (Known::read(&outcome.stdout_text()), measured::read(&self.path("gmon.pb.gz")).unwrap())
    }

    /// Runs the program until all shares of inclusive time agree with what it knows.
    fn check(&self, options: &[&str]) {
        let mut wrong = Vec::new();
        for _ in 0..TRIES {
            let (known, recording) = self.run(options);
            wrong = differences(&known, &recording);
            if wrong.is_empty() {
                return;
            }
        }
        panic!("{options:?}: {}", wrong.join("\n"));
    }
}

/// The shares of inclusive time, in percent, by the name of the function without its parameters.
fn shares(recording: &Recording) -> BTreeMap<String, f64> {
    let mut paths: Vec<BTreeSet<String>> = Vec::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut all = 0;
    for stack in &recording.stacks {
        let mut path = stack.parent.map_or_else(BTreeSet::new, |parent| paths[parent as usize].clone());
        path.insert(stack.function.map_or("?".to_owned(), |function| name(recording, function)));
        path.iter().for_each(|name| *sums.entry(name.clone()).or_default() += stack.samples);
        all += stack.samples;
        paths.push(path);
    }
    sums.into_iter().map(|(name, sum)| (name, 100.0 * sum as f64 / all as f64)).collect()
}

fn name(recording: &Recording, function: u32) -> String {
    match recording.functions[function as usize].name.as_str() {
        "_ZN5Round4drawEv" => "Round::draw".to_owned(),
        name => name.to_owned(),
    }
}

fn differences(known: &Known, recording: &Recording) -> Vec<String> {
    let found = shares(recording);
    let all: u64 = known.spent.values().sum();
    let mut wrong = Vec::new();
    let mut compare = |name: &str, expected: f64| {
        let found = found.get(name).copied().unwrap_or(0.0);
        if (found - expected).abs() > POINTS {
            wrong.push(format!("{name}: {found:.1} %, not {expected:.1}"));
        }
    };
    assert!(known.spent.len() >= 11, "{known:?}");
    for (name, ticks) in known.inclusive() {
        compare(&name, 100.0 * ticks as f64 / all as f64);
    }
    // Of nearly all stacks, all callers are known.
    if found.get("?").is_some_and(|share| *share > POINTS) {
        wrong.push(format!("{found:?}"));
    }
    wrong
}

fn known_stacks() {
    let subject = Subject::new(&[]);
    subject.check(&["-q"]);
    // Each time, the innermost function is the one that the stack begins with.
    let (_, recording) = subject.run(&["-q"]);
    let hits: u64 = recording.hits.iter().map(|hits| hits.samples).sum();
    let stacks: u64 = recording.stacks.iter().map(|stack| stack.samples).sum();
    assert!(stacks <= hits && stacks * 100 >= hits * 98, "{stacks} of {hits}");
    for (index, function) in (0..).zip(&recording.functions) {
        let hits: u64 = recording.hits.iter().filter(|hits| hits.function == index).map(|hits| hits.samples).sum();
        let own = recording.stacks.iter().filter(|stack| stack.function == Some(index));
        let own: u64 = own.map(|stack| stack.samples).sum();
        assert!(own <= hits && hits - own <= hits / 20 + 2, "{}: {own} of {hits}", function.name);
    }
}

fn of_programs_without_optimisation() {
    Subject::new(&["-O0"]).check(&["-q"]);
    Subject::new(&["-Os", "-no-pie", "-fno-pie", "-fno-omit-frame-pointer"]).check(&["-q"]);
}

fn of_static_programs() {
    Subject::new(&["-static"]).check(&["-q"]);
}

fn of_musl() {
    if !skip::have_for("stacks::of_musl", &["musl-gcc"]) {
        return;
    }
    // There are no exceptions without a C++ library.
    let subject = Subject::by("musl-gcc", "recursion.c", &[]);
    let (known, recording) = subject.run(&["-q"]);
    assert!(!known.spent.is_empty() && !recording.stacks.is_empty());
}

fn without_hooks() {
    Subject::new(&[]).check(&["-q", "--hooks", "none"]);
}

fn with_entry_hooks() {
    Subject::new(&[]).check(&["-q", "--hooks", "entry"]);
}

fn without_libraries() {
    Subject::new(&[]).check(&["-q", "--libs", "none"]);
}

/// Of a stack that is deeper than what the kernel copies, the innermost functions are known.
fn deeper_than_what_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <time.h>\n\
        __attribute__((noinline)) int deep(int n) { volatile char room[1000]; room[n] = 1;\n\
        if (n) return deep(n - 1) + room[n];\n\
        while (clock() < CLOCKS_PER_SEC / 5) for (int i = 0; i < 100000; i++) __asm__ volatile(\"\");\n\
        return 0; }\n\
        int main(void) { return deep(100) == 1; }\n";
    fs::write(folder.path().join("p.c"), source).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-O1", "-fno-optimize-sibling-calls", "-o", "p", "p.c"]).current_dir(folder.path());
    compile::compile(command).unwrap();
    let subject = Subject { folder };
    let (_, recording) = subject.run(&["-q"]);
    let shares = shares(&recording);
    let share = |name: &str| shares.get(name).copied().unwrap_or(0.0);
    assert!(share("deep") > 90.0 && share("?") > 90.0 && share("main") < 10.0, "{shares:?}");
}

/// A large frame of which little is written keeps what earlier calls have left there. Where the stack is not copied to its end, these are
/// not on it: each function is called by one that has called it.
fn frames_of_earlier_calls() {
    const SOURCE: &str = r#"
#include <time.h>
#define N __attribute__((noinline))
volatile int depth, sum;
N void third(int n) { volatile char c[32]; c[n & 7] = 1; sum += c[n & 7]; if (n > 1) third(n - 1); sum++; }
N void second(int n) { third(n); sum++; }
N void first(int n) { volatile char c[700]; c[n] = 1; second(n); sum += c[n]; }
N void earlier(int n) { volatile char c[900]; c[n] = 1; first(3); if (n) earlier(n - 1); sum += c[n]; }
N void busy(void) { clock_t end = clock() + CLOCKS_PER_SEC / 20; while (clock() < end) sum++; sum++; }
N void step(int n);
N void interpret(int n) { volatile char c[11000]; c[n] = 1; step(n); sum += c[n]; }
N void step(int n) { if (n) { earlier(25); interpret(n - 1); } else busy(); sum++; }
int main(void) { for (int i = 0; i < 6; i++) step(6); return 0; }
"#;
    const FUNCTIONS: [&str; 7] = ["third", "second", "first", "earlier", "busy", "interpret", "step"];
    for flags in [&["-O1"][..], &["-O2", "-fPIC", "-Wl,-z,lazy", "-Wl,--export-dynamic"]] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("p.c"), SOURCE).unwrap();
        let mut command = Command::new("gcc");
        command.args(["-fno-optimize-sibling-calls", "-o", "p", "p.c"]).args(flags).current_dir(folder.path());
        compile::compile(command).unwrap();
        let subject = Subject { folder };
        let (_, recording) = subject.run(&["-q"]);
        let counted: BTreeSet<_> = recording.calls.iter().map(|calls| (calls.caller, calls.callee)).collect();
        let callers = recording.stacks.iter().filter_map(|stack| {
            let caller = recording.stacks[stack.parent? as usize].function?;
            Some((caller, stack.function?))
        });
        let names = |(caller, callee)| (name(&recording, caller), name(&recording, callee));
        let callers = callers.filter(|&(_, callee)| FUNCTIONS.contains(&name(&recording, callee).as_str()));
        let (right, wrong): (Vec<_>, Vec<_>) =
            callers.partition(|&(caller, callee)| counted.contains(&(Some(caller), callee)));
        let wrong: Vec<_> = wrong.into_iter().map(names).collect();
        assert!(wrong.is_empty(), "{flags:?}: {wrong:?}");
        assert!(right.iter().any(|&pair| names(pair) == ("step".to_owned(), "busy".to_owned())), "{flags:?}");
        let shares = shares(&recording);
        let share = |name: &str| shares.get(name).copied().unwrap_or(0.0);
        assert!(share("step") > 90.0 && share("?") > 90.0 && share("main") < 10.0, "{flags:?}: {shares:?}");
    }
}

/// Where perf events cannot be had, samples have no stacks.
fn without_perf_events() {
    let subject = Subject::new(&[]);
    let (_, recording) = subject.run(&["-q", "--sampler", "timer"]);
    assert!(recording.stacks.is_empty() && !recording.hits.is_empty());
}
