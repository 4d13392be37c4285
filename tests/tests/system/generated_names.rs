//! The names of code that is made at run time: of a program that knows what it makes and how long it runs there (`tests/known/made.c`), and
//! of virtual machines, which perf samples as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gmon_run::Recording;
use gprofinject_skip as skip;
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        of_a_map,
        of_a_map_that_is_written_at_the_end,
        of_a_dump_with_times,
        by_the_agents_timers,
        without_a_map,
        of_maps_that_are_not_the_processs_own,
        in_other_namespaces,
        callers,
        callers_without_number,
        copied_code,
        node,
        java,
        python;
}

const LIMIT: Duration = Duration::from_secs(120);
/// The number of runs of which one has to agree.
const TRIES: usize = 4;
/// The points of a percentage by which a share may differ.
const POINTS: f64 = 5.0;

struct Subject {
    folder: tempfile::TempDir,
}

/// What one run has said.
struct Said {
    /// Microseconds by name.
    spent: BTreeMap<String, u64>,
    recording: Recording,
    stderr: String,
}

impl Subject {
    fn new() -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("gcc");
        command.args(["-O2", "-o"]).arg(folder.path().join("p")).arg(tool::folder().join("known/made.c"));
        compile::compile(command).unwrap();
        Subject { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command and returns what it prints and what was recorded of it.
    fn run(&self, options: &[&str], command: &[&str]) -> Said {
        let args: Vec<String> = command[1..].iter().map(|&arg| arg.to_owned()).collect();
        let program = if command[0] == "p" { self.path("p") } else { tool::installed(command[0]).unwrap() };
        let mut command = tool::command(options, &self.path("gmon.out"), &program, &args).unwrap();
        command.current_dir(self.folder.path()).env_remove("XDG_CACHE_HOME");
        let outcome = run::run(command, None, LIMIT).unwrap();
        let stderr = outcome.stderr_text();
        assert_eq!(outcome.code(), 0, "{options:?}: {stderr}");
        let mut spent: BTreeMap<String, u64> = BTreeMap::new();
        for line in outcome.stdout_text().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["spent", name, time] = words[..] {
                *spent.entry(name.to_owned()).or_default() += time.parse::<u64>().unwrap();
            }
        }
        let recording = measured::read(&self.path("gmon.pb.gz")).unwrap();
        Said { spent, recording, stderr }
    }

    /// Runs the program until the shares agree with what it knows: the share of each name, and the functions that make it up.
    fn check(&self, options: &[&str], mode: &str, expected: &[(&str, &[&str])]) {
        let mut wrong = Vec::new();
        for _ in 0..TRIES {
            let said = self.run(options, &["p", mode]);
            let all: u64 = said.spent.values().sum();
            let found = said.recording.shares();
            let known = |names: &[&str]| names.iter().map(|&name| said.spent[name]).sum::<u64>();
            let compare = |(name, of): &(&str, &[&str])| {
                let share = 100.0 * known(of) as f64 / all as f64;
                let found = found.get(*name).copied().unwrap_or(0.0);
                let differs = (found - share).abs() > POINTS;
                differs.then(|| format!("{name}: {found:.1} %, not {share:.1}"))
            };
            wrong = expected.iter().filter_map(compare).collect();
            if wrong.is_empty() {
                return;
            }
            wrong.push(format!("{found:?}: {}", said.stderr));
        }
        panic!("{mode} {options:?}: {}", wrong.join("\n"));
    }
}

trait Shares {
    /// Returns the share of all samples in each function of generated code, in percent.
    fn shares(&self) -> BTreeMap<String, f64>;
    /// The same, also in what it calls, as far as stacks show it.
    fn inclusive_shares(&self) -> BTreeMap<String, f64>;
}

impl Shares for Recording {
    fn shares(&self) -> BTreeMap<String, f64> {
        let elsewhere: u64 = self.programs.iter().map(|program| program.elsewhere).sum();
        let all = elsewhere + self.hits.iter().map(|hits| hits.samples).sum::<u64>();
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        for hits in &self.hits {
            let function = &self.functions[hits.function as usize];
            if self.modules[function.module as usize].is_generated() {
                *shares.entry(function.name.clone()).or_default() += 100.0 * hits.samples as f64 / all as f64;
            }
        }
        shares
    }

    fn inclusive_shares(&self) -> BTreeMap<String, f64> {
        let mut paths: Vec<BTreeSet<&str>> = Vec::new();
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        let all = self.stacks.iter().map(|stack| stack.samples).sum::<u64>() as f64;
        for stack in &self.stacks {
            let mut path = stack.parent.map_or_else(BTreeSet::new, |parent| paths[parent as usize].clone());
            path.extend(stack.function.map(|function| self.functions[function as usize].name.as_str()));
            for name in &path {
                *shares.entry((*name).to_owned()).or_default() += 100.0 * stack.samples as f64 / all;
            }
            paths.push(path);
        }
        shares
    }
}

const HOT: &str = "long Hot.loop(long)";
const COLD: &str = "Cold::<lambda> \u{fffd}[31m";
const NAMELESS: &str = gmon_run::GENERATED;
/// `Outer` only calls the same code as `Cold` is.
const OF_MAP: [(&str, &[&str]); 4] = [(HOT, &["Hot"]), (COLD, &["Cold", "Outer"]), ("stale", &[]), (NAMELESS, &[])];

fn of_a_map() {
    let subject = Subject::new();
    for options in [&["-q"][..], &["-q", "--hooks", "none"], &["-q", "--hooks", "entry", "--libs", "none"]] {
        subject.check(options, "map", &OF_MAP);
    }
    // The code has frame pointers, so that its callers are known.
    let said = subject.run(&["-q"], &["p", "map"]);
    let (found, all) = (said.recording.inclusive_shares(), said.spent.values().sum::<u64>());
    let outer = 100.0 * said.spent["Outer"] as f64 / all as f64;
    assert!((found["Outer"] - outer).abs() < POINTS, "{outer}: {found:?}");
    assert!(found["main"] > 95.0, "{found:?}");
}

fn of_a_map_that_is_written_at_the_end() {
    Subject::new().check(&["-q"], "exit", &OF_MAP);
}

/// Other functions are made at the addresses of earlier ones.
fn of_a_dump_with_times() {
    let expected: [(&str, &[&str]); 4] =
        [("first", &["first"]), ("second", &["second"]), ("third", &["third"]), (NAMELESS, &[])];
    let subject = Subject::new();
    subject.check(&["-q"], "dump", &expected);
    subject.check(&["-q", "--hooks", "none"], "dump", &expected);
    let said = subject.run(&["-q"], &["p", "dump"]).recording.inclusive_shares();
    assert!(said["second"] > 1.2 * said["third"] && said["third"] > said["first"], "{said:?}");
}

fn by_the_agents_timers() {
    Subject::new().check(&["-q", "--sampler", "timer"], "exit", &OF_MAP);
}

fn without_a_map() {
    let subject = Subject::new();
    subject.check(&["-q"], "none", &[(NAMELESS, &["Hot", "Cold", "Outer"])]);
    let said = subject.run(&["-q"], &["p", "none"]);
    let generated = said.recording.shares();
    assert_eq!(generated.len(), 1, "{generated:?}");
    assert!(said.recording.programs.iter().all(|program| program.elsewhere < 20));
}

fn of_maps_that_are_not_the_processs_own() {
    let subject = Subject::new();
    let is_root = rustix::process::geteuid().is_root();
    let mut modes = vec![("link", "no regular file"), ("old", "older than the process")];
    match is_root {
        true => modes.push(("foreign", "belongs to user 54321")),
        false => skip::skipped("generated_names::foreign", "only root can give files to others"),
    }
    for (mode, why) in modes {
        let said = subject.run(&["-v"], &["p", mode]);
        let line = said.stderr.lines().find(|line| line.contains(".map is not read"));
        assert!(line.is_some_and(|line| line.contains(why)), "{mode}: {}", said.stderr);
        assert_eq!(said.recording.shares().keys().collect::<Vec<_>>(), [NAMELESS], "{mode}");
    }
}

/// As in a container: the process has other numbers, and another /tmp.
fn in_other_namespaces() {
    const TEST: &str = "generated_names::in_other_namespaces";
    if !rustix::process::geteuid().is_root() {
        return skip::skipped(TEST, "only root can make namespaces");
    }
    if !skip::have_for(TEST, &["unshare"]) {
        return;
    }
    let subject = Subject::new();
    let program = subject.path("p").display().to_string();
    let folder = subject.folder.path().display().to_string();
    // The folder with the program may be in /tmp itself.
    let shell = format!("mkdir -p /run/gpi-test.$$ && mount -t tmpfs none /run/gpi-test.$$ && cp {program} /run/gpi-test.$$/p && \
                         cd /run/gpi-test.$$ && mount -t tmpfs none /tmp && ./p map; test ! -e {folder} && ls /tmp");
    let said = subject.run(&["-v"], &["unshare", "--fork", "--pid", "--mount", "--mount-proc", "sh", "-c", &shell]);
    let found = said.recording.shares();
    assert!(found[HOT] > 30.0 && found[COLD] > 20.0, "{found:?}: {}", said.stderr);
}

/// With entry hooks, calls are known by their return addresses.
fn callers() {
    let subject = Subject::new();
    let said = subject.run(&["-q", "--hooks", "entry"], &["p", "map"]);
    let recording = &said.recording;
    let name = |function: u32| recording.functions[function as usize].name.as_str();
    let calls = recording.calls.iter().filter(|calls| name(calls.callee) == "helper");
    let mut callers: BTreeMap<&str, u64> = BTreeMap::new();
    calls.for_each(|calls| *callers.entry(calls.caller.map_or("?", name)).or_default() += calls.calls);
    assert_eq!(callers.keys().copied().collect::<Vec<_>>(), [COLD, HOT], "{callers:?}");
    let ratio = callers[HOT] as f64 / callers[COLD] as f64;
    assert!((2.0..4.0).contains(&ratio), "{callers:?}: three times as long");
    // The program's own view has no name for them.
    let own = fs::read(subject.path("gmon.out")).unwrap();
    assert!(gmon::read(&own).unwrap().arcs.iter().map(|arc| arc.count).sum::<u64>() > 1000);
}

/// Callers at any number of addresses take no more than their share of memory, and no call is lost.
fn callers_without_number() {
    let subject = Subject::new();
    for hooks in ["entry", "both"] {
        let recording = subject.run(&["-q", "--hooks", hooks], &["p", "many"]).recording;
        let is_helper = |function: u32| recording.functions[function as usize].name == "helper";
        let calls = recording.calls.iter().filter(|calls| is_helper(calls.callee));
        assert_eq!(calls.map(|calls| calls.calls).sum::<u64>(), 400_000, "{hooks}");
    }
}

/// CPython copies the code of its trampoline, which therefore has no hook.
fn copied_code() {
    const TEST: &str = "generated_names::copied_code";
    let Some(python) = python_with_perf(TEST) else { return };
    let subject = Subject::new();
    fs::write(subject.path("a.py"), "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(18))\n").unwrap();
    for hooks in ["both", "entry"] {
        let mut command = tool::command(
            &["-q", "--hooks", hooks],
            &subject.path("gmon.out"),
            &python,
            &["-X", "perf", "a.py"].map(str::to_owned),
        )
        .unwrap();
        command.current_dir(subject.folder.path()).env_remove("PYTHONHASHSEED");
        let outcome = run::run(command, None, LIMIT).unwrap();
        assert_eq!((outcome.code(), outcome.stdout_text().trim()), (0, "2584"), "{hooks}: {}", outcome.stderr_text());
        let recording = measured::read(&subject.path("gmon.pb.gz")).unwrap();
        let is_f = |function: u32| recording.functions[function as usize].name.starts_with("py::f:");
        let calls = recording.calls.iter().filter(|calls| calls.caller.is_some_and(is_f));
        if hooks == "entry" {
            // Each call of f enters the interpreter once, by its own trampoline.
            assert_eq!(calls.map(|calls| calls.calls).sum::<u64>(), 8361);
        }
    }
}

/// Returns CPython 3.12 or later.
fn python_with_perf(test: &str) -> Option<PathBuf> {
    let versions = ["3.12", "3.13"].map(|version| format!("python{version}"));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let kept = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let kept = kept.map(|entry| entry.path().join("bin/python3.12")).find(|path| path.is_file());
    let found = versions.iter().find_map(|name| tool::installed(name)).or(kept);
    if found.is_none() {
        skip::skipped(test, "no python3.12");
    }
    found
}

/// Returns the share of each function that perf shows for code without a file, in percent.
fn by_perf(subject: &Subject, command: &[&str]) -> BTreeMap<String, f64> {
    let data = subject.path("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-F", "999", "-e", "cpu-clock:u", "-o"]).arg(&data).args(command);
    record.current_dir(subject.folder.path());
    assert_eq!(run::run(record, None, LIMIT).unwrap().code(), 0);
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--sort", "dso,symbol", "-F", "overhead,dso,symbol", "-i"]).arg(&data);
    let text = run::run(report, None, LIMIT).unwrap().stdout_text();
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("[JIT]") || line.contains("/perf-")) {
        let Some((head, name)) = line.split_once(" [.] ") else { continue };
        let share: f64 = head.trim().split('%').next().unwrap().parse().unwrap();
        let name = name.trim_end().trim_end_matches(['-', ' ']);
        *shares.entry(name.to_owned()).or_default() += share;
    }
    shares
}

/// Compares the hottest functions by name with what perf shows by the same map.
fn compare(subject: &Subject, command: &[&str], options: &[&str]) {
    const HOTTEST: usize = 10;
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let theirs = by_perf(subject, command);
        let ours = subject.run(options, command).recording.shares();
        let mut hottest: Vec<(&String, &f64)> = theirs.iter().collect();
        hottest.sort_by(|a, b| b.1.total_cmp(a.1));
        hottest.truncate(HOTTEST);
        assert!(hottest.len() >= 4 && *hottest[0].1 > 5.0, "{theirs:?}");
        let of = |name: &str| ours.get(name).copied().unwrap_or(0.0);
        let differs = hottest.iter().filter(|(name, share)| (of(name) - **share).abs() > 8.0);
        wrong = differs.map(|(name, share)| format!("{name}: {:.1} %, perf {share:.1} %", of(name))).collect();
        let all: f64 = ours.values().sum();
        let nameless = ours.get(NAMELESS).copied().unwrap_or(0.0);
        if nameless > all / 20.0 {
            wrong.push(format!("{nameless:.1} of {all:.1} % have no name"));
        }
        if wrong.is_empty() {
            return;
        }
    }
    panic!("{command:?}: {}", wrong.join("\n"));
}

const JAVASCRIPT: &str = "\
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
function mix(a) { let s = 0; for (let i = 0; i < a.length; i++) s = (s * 31 + a[i] * 7) | 0; return s; }
function text(n) { let s = ''; for (let i = 0; i < n; i++) s += String.fromCharCode(65 + i % 26); return s.length; }
function sorted(n) { const a = []; for (let i = 0; i < n; i++) a.push((i * 7919) % 10007); return a.sort((x, y) => x - y)[0]; }
const a = new Array(10000).fill(3);
let t = 0;
for (let i = 0; i < 300; i++) { t += fib(24) + text(20000) + sorted(4000); for (let j = 0; j < 40; j++) t += mix(a); }
";

fn node() {
    if !skip::have_for("generated_names::node", &["node", "perf"]) {
        return;
    }
    let subject = Subject::new();
    fs::write(subject.path("a.js"), JAVASCRIPT).unwrap();
    compare(&subject, &["node", "--perf-basic-prof", "a.js"], &["-q"]);
}

const JAVA: &str = "\
public class Work {
  static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
  static int mix(int[] a) { int s = 0; for (int x : a) s = s * 31 + x * 7; return s; }
  static int maps(int n) { var m = new java.util.HashMap<String, Integer>(); for (int i = 0; i < n; i++) m.merge(\"k\" + i % 100, 1, Integer::sum); return m.size(); }
  static int sorted(int n) { var a = new Integer[n]; for (int i = 0; i < n; i++) a[i] = (i * 7919) % 10007; java.util.Arrays.sort(a); return a[0]; }
  public static void main(String[] args) {
    int[] a = new int[10000]; int t = 0;
    for (int i = 0; i < 1000; i++) { t += fib(24) + maps(5000) + sorted(5000); for (int j = 0; j < 40; j++) t += mix(a); }
    System.out.println(t);
  }
}
";

fn java() {
    const TEST: &str = "generated_names::java";
    if !skip::have_for(TEST, &["java", "javac", "perf"]) {
        return;
    }
    let subject = Subject::new();
    fs::write(subject.path("Work.java"), JAVA).unwrap();
    let mut compiler = Command::new("javac");
    compiler.arg("Work.java").current_dir(subject.folder.path());
    assert_eq!(run::run(compiler, None, LIMIT).unwrap().code(), 0);
    let command = ["java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", "-cp", ".", "Work"];
    // DumpPerfMapAtExit is JDK 17.
    let mut version = Command::new("java");
    version.args(&command[1..3]).arg("-version");
    if run::run(version, None, LIMIT).unwrap().code() != 0 {
        return skip::skipped(TEST, "no java with DumpPerfMapAtExit");
    }
    compare(&subject, &command, &["-q", "--hooks", "none"]);
}

/// The time is the interpreter's, and the functions are its callers.
fn python() {
    const TEST: &str = "generated_names::python";
    let Some(python) = python_with_perf(TEST) else { return };
    let subject = Subject::new();
    let program = "def mix(n):\n    s = 0\n    for i in range(n): s = (s * 31 + i) & 0xffff\n    return s\n\
                   def short():\n    return mix(300000)\ndef long():\n    return mix(900000)\n\
                   def both():\n    return short() + long()\nfor i in range(12): both()\n";
    fs::write(subject.path("a.py"), program).unwrap();
    let mut command = tool::command(
        &["-q", "--hooks", "none"],
        &subject.path("gmon.out"),
        &python,
        &["-X", "perf", "a.py"].map(str::to_owned),
    )
    .unwrap();
    command.current_dir(subject.folder.path());
    assert_eq!(run::run(command, None, LIMIT).unwrap().code(), 0);
    let recording = measured::read(&subject.path("gmon.pb.gz")).unwrap();
    let found = recording.inclusive_shares();
    let of = |name: &str| {
        let all = found.iter().filter(|(other, _)| other.starts_with(&format!("py::{name}:")));
        all.map(|(_, share)| share).sum::<f64>()
    };
    let (short, long, both) = (of("short"), of("long"), of("both"));
    assert!(both > 85.0 && (short + long - both).abs() < 2.0, "{short} {long} {both}: {found:?}");
    assert!((long / short - 3.0).abs() < 0.6, "{short} {long}: three times as long");
}
