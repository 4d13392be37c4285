//! Python functions on the stacks of samples: of a program that knows how long it spends in each (`tests/known/shares.py`), under each version
//! of CPython that there is, and of what only looks like an interpreter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gmon_run::{PYTHON, Recording};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, measured, run, tool};

gprofinject_tests::trials! {
    together:
        of_3_8,
        of_3_9,
        of_3_10,
        of_3_11,
        of_3_12,
        of_3_13,
        from_the_first_line_on,
        lines,
        lines_by_trampolines,
        lines_shown,
        of_a_child,
        of_a_process_that_runs,
        hooked,
        by_trampolines,
        without_an_interpreter,
        of_a_forged_interpreter;
}

const LIMIT: Duration = Duration::from_secs(120);
/// The number of runs of which one has to agree: there are some 2,500 samples.
const TRIES: usize = 4;
/// The points of a percentage by which a share may differ.
const POINTS: f64 = 4.0;
/// What other tests do on the same processors makes some frames too late.
const UNKNOWN: f64 = 0.25;

/// Returns the program of a version of CPython.
pub(crate) fn python(test: &str, minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let kept = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let kept = kept.map(|entry| entry.path().join("bin").join(&name)).find(|path| path.is_file());
    let found = kept.or_else(|| tool::installed(&name));
    if found.is_none() {
        skip::skipped(test, &format!("no {name}"));
    }
    found
}

/// Returns any version that there is.
pub(crate) fn any(test: &str) -> Option<PathBuf> {
    let found = (8..=13).rev().find_map(|minor| tool::installed(&format!("python3.{minor}")));
    if found.is_none() {
        skip::skipped(test, "no python3");
    }
    found
}

fn program() -> String {
    tool::folder().join("known/shares.py").to_str().unwrap().to_owned()
}

/// What a run has said and recorded.
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) recording: Recording,
}

pub(crate) fn said(options: &[&str], program: &Path, args: &[&str]) -> Said {
    said_with(None, options, program, args)
}

/// The same, with a cache of plans in a folder.
fn said_with(caches: Option<&Path>, options: &[&str], program: &Path, args: &[&str]) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let output = folder.path().join("gmon.out");
    let command = match caches {
        Some(caches) => tool::cached(caches, options, &output, program, &args),
        None => tool::command(options, &output, program, &args),
    };
    let mut command = command.unwrap();
    command.current_dir(folder.path());
    let outcome = run::run(command, None, LIMIT).unwrap();
    let stderr = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{options:?}: {stderr}");
    let recording = measured::read(&folder.path().join("gmon.pb.gz")).unwrap();
    Said { stdout: outcome.stdout_text(), stderr, recording }
}

/// Returns the share of the samples with each Python function on their stacks, in percent of those whose callers are known, by the last
/// component of its name, and the part of all that these are.
pub(crate) fn shares(recording: &Recording) -> (BTreeMap<String, f64>, f64) {
    let mut paths: Vec<(BTreeSet<String>, bool)> = Vec::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let (mut known, mut all) = (0, 0);
    for stack in &recording.stacks {
        let parent = stack.parent.map(|parent| paths[parent as usize].clone());
        let (mut path, is_known) = parent.unwrap_or_else(|| (BTreeSet::new(), stack.function.is_some()));
        let function = stack.function.map(|function| &recording.functions[function as usize]);
        if let Some(function) = function.filter(|function| recording.modules[function.module as usize].path == PYTHON) {
            let (name, place) = function.name.rsplit_once(" (").unwrap();
            path.insert(name.rsplit('.').next().unwrap().to_owned());
            assert!(place.ends_with(&format!(":{})", function.line)) && !function.file.is_empty(), "{function:?}");
        }
        all += stack.samples;
        if is_known {
            known += stack.samples;
            path.iter().for_each(|name| *sums.entry(name.clone()).or_default() += stack.samples);
        }
        paths.push((path, is_known));
    }
    let share = |sum: u64| 100.0 * sum as f64 / known.max(1) as f64;
    (sums.into_iter().map(|(name, sum)| (name, share(sum))).collect(), known as f64 / f64::from(all.max(1) as u32))
}

/// Returns the same as the program knows it.
fn known(stdout: &str) -> BTreeMap<String, f64> {
    let number = |text: &str| text.parse::<f64>().unwrap();
    let all = stdout.lines().find_map(|line| line.strip_prefix("all ")).map(number).unwrap();
    let spent = stdout.lines().filter_map(|line| line.strip_prefix("spent ")?.split_once(' '));
    spent.map(|(name, spent)| (name.to_owned(), 100.0 * number(spent) / all)).collect()
}

/// Returns what is wrong in a run of the program.
fn differences(stdout: &str, recording: &Recording) -> Vec<String> {
    let (found, part) = shares(recording);
    let known = known(stdout);
    assert!(known.len() > 15, "{stdout}");
    let of = |name: &String| found.get(name).copied().unwrap_or(0.0);
    let mut wrong: Vec<String> = known
        .iter()
        .filter(|(name, share)| (of(name) - **share).abs() > POINTS)
        .map(|(name, share)| format!("{name}: {:.1} %, not {share:.1}", of(name)))
        .collect();
    if part < 1.0 - UNKNOWN {
        wrong.push(format!("{part:.2} of the stacks are known"));
    }
    wrong
}

/// Runs the program until the shares agree with what it knows.
fn check(run: impl Fn() -> Said) {
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let said = run();
        wrong = differences(&said.stdout, &said.recording);
        if wrong.is_empty() {
            return;
        }
        wrong.push(said.stderr);
    }
    panic!("{}", wrong.join("\n"));
}

fn of_version(test: &str, minor: u32) {
    let Some(python) = python(test, minor) else { return };
    check(|| said(&["-v", "--hooks", "none"], &python, &[&program()]));
}

fn of_3_8() {
    of_version("python::of_3_8", 8);
}

fn of_3_9() {
    of_version("python::of_3_9", 9);
}

fn of_3_10() {
    of_version("python::of_3_10", 10);
}

fn of_3_11() {
    of_version("python::of_3_11", 11);
}

fn of_3_12() {
    of_version("python::of_3_12", 12);
}

fn of_3_13() {
    of_version("python::of_3_13", 13);
}

/// A shell starts the interpreter.
fn of_a_child() {
    const TEST: &str = "python::of_a_child";
    let Some(python) = any(TEST) else { return };
    let command = format!("{} {}; true", python.display(), program());
    let shell = tool::installed("sh").unwrap();
    check(|| said(&["-v", "--hooks", "none"], &shell, &["-c", &command]));
}

fn hooked() {
    const TEST: &str = "python::hooked";
    let Some(python) = any(TEST) else { return };
    check(|| said(&["-v"], &python, &[&program()]));
}

fn program_with_lines() -> PathBuf {
    tool::folder().join("known/lines.py")
}

/// Returns the numbers of the lines that the program names.
fn named_lines(source: &str) -> BTreeMap<String, u32> {
    let named = (1..).zip(source.lines());
    let named = named.filter_map(|(number, line)| Some((line.split_once("# line: ")?.1.to_owned(), number)));
    named.filter(|(name, _)| !name.contains('"')).collect()
}

/// Returns the samples of a line of a program in all functions: in the interpreter itself, and in all.
fn samples_of(recording: &Recording, program: &Path, line: u32) -> (u64, u64) {
    let is_it = |function: u32| Path::new(&recording.functions[function as usize].file).file_name() == program.file_name();
    let of = recording.lines.iter().filter(|of| of.line == line && is_it(of.function));
    of.fold((0, 0), |(own, inclusive), of| (own + of.own, inclusive + of.inclusive - of.nested))
}

/// A program may work before a sample has shown that it is one of Python's: the first samples come when its interpreter is not ready, and at a
/// low rate when all of its code is hooked. What is left is the interpreter's start.
fn from_the_first_line_on() {
    let program = tool::folder().join("known/early.py");
    let caches = tempfile::tempdir().unwrap();
    for python in (8..=13).filter_map(|minor| python("python::from_the_first_line_on", minor)) {
        let run = |rate| {
            said_with(Some(caches.path()), &["--rate", rate], &python, &[program.to_str().unwrap()]).recording
        };
        // This run plans, and the program begins later than with a plan that was kept.
        run("1000");
        for rate in ["97", "1000"] {
            let share = |_| shares(&run(rate)).0.get("fib").copied().unwrap_or(0.0);
            let found: Vec<f64> = (0..TRIES).map(share).take_while(|share| *share < 75.0).collect();
            assert!(found.len() < TRIES, "{} at {rate} samples a second: {found:?}", python.display());
        }
    }
}

/// Returns how long a program says that it has spent on each line with a name.
pub(crate) fn spent(stdout: &str) -> BTreeMap<&str, f64> {
    let spent = stdout.lines().filter_map(|line| line.strip_prefix("spent ")?.split_once(' '));
    spent.map(|(name, spent)| (name, spent.parse().unwrap())).collect()
}

/// Returns which lines of a program have another share of the samples than it knows.
pub(crate) fn wrong_lines(program: &Path, said: &Said) -> Vec<String> {
    let lines = named_lines(&fs::read_to_string(program).unwrap());
    let spent = spent(&said.stdout);
    assert!(spent.len() == lines.len() && lines.len() > 2, "{spent:?} {lines:?}");
    let all = samples_of(&said.recording, program, lines["all"]).1;
    assert!(all > 500, "{all} samples\n{}", said.stderr);
    let mut wrong = Vec::new();
    for (name, line) in &lines {
        let (own, inclusive) = samples_of(&said.recording, program, *line);
        let share = 100.0 * inclusive as f64 / all as f64;
        let known = 100.0 * spent[name.as_str()] / spent["all"];
        if (share - known).abs() > POINTS {
            wrong.push(format!("{name}: {share:.1} %, not {known:.1}"));
        }
        // All of these lines call something that takes the time.
        if own * 5 > inclusive {
            wrong.push(format!("{name}: {own} of {inclusive} samples in the interpreter itself"));
        }
    }
    wrong
}

fn check_lines(what: &str, run: impl Fn() -> Said) {
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let said = run();
        wrong = wrong_lines(&program_with_lines(), &said);
        if wrong.is_empty() {
            return;
        }
        wrong.push(said.stderr);
    }
    panic!("{what}: {}", wrong.join("\n"));
}

/// The lines on which each version spends its time: in calls of C functions, of Python functions, in recursion, comprehensions, generators, and where
/// exceptions are handled.
fn lines() {
    for minor in 8..=13 {
        let Some(python) = python("python::lines", minor) else { continue };
        let program = program_with_lines();
        check_lines(&format!("3.{minor}"), || {
            said(&["-v", "--hooks", "none"], &python, &[program.to_str().unwrap()])
        });
    }
}

/// CPython's trampolines have the names of functions, but not their lines.
fn lines_by_trampolines() {
    let Some(python) = python("python::lines_by_trampolines", 12) else { return };
    let program = program_with_lines();
    check_lines("--python", || said(&["-v", "--python", "--hooks", "none"], &python, &[program.to_str().unwrap()]));
}

/// `gmon lines` shows the times beside the source, the first line of each function, and what it cannot show in words.
fn lines_shown() {
    const TEST: &str = "python::lines_shown";
    let Some(python) = any(TEST) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.py");
    fs::copy(program_with_lines(), &path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let output = folder.path().join("gmon.out");
    let args = [path.to_str().unwrap().to_owned()];
    let mut command = tool::command(&["--hooks", "none"], &output, &python, &args).unwrap();
    command.current_dir(folder.path());
    assert_eq!(run::run(command, None, LIMIT).unwrap().code(), 0);
    let gmon = |args: &[&str]| {
        let mut command = Command::new(tool::gmon().unwrap());
        command.arg("lines").args(args).current_dir(folder.path());
        run::run(command, None, LIMIT).unwrap()
    };
    let shown = gmon(&["-m", "[Python]", "-f", "work"]);
    assert_eq!(shown.code(), 0, "{}", shown.stderr_text());
    let shown = shown.stdout_text();
    let of_work = (1..).zip(text.lines()).skip_while(|(_, line)| *line != "def work():");
    for (number, line) in of_work.filter(|(_, line)| line.starts_with("        s")) {
        assert!(shown.contains(&format!("{number:>6}  {line}")), "{line}\n{shown}");
    }
    let of_sum = shown.lines().find(|line| line.contains("# line: sum")).unwrap();
    let time: f64 = of_sum.split_whitespace().next().unwrap().parse().unwrap();
    assert!(time > 0.0 && !shown.contains("def generated"), "{shown}");

    let json = gmon(&["-m", "[Python]", "-F", "lines.py", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout_text()).unwrap();
    let recording = measured::read(&folder.path().join("gmon.pb.gz")).unwrap();
    let lines = json["modules"][0]["files"][0]["lines"].as_array().unwrap();
    for (name, number) in named_lines(&text) {
        let line = lines.iter().find(|line| line["line"] == number).unwrap();
        let (own, inclusive) = samples_of(&recording, &path, number);
        assert_eq!(line["self_ns"], own * recording.sample_period_ns, "{name}");
        assert_eq!(line["inclusive_ns"], inclusive * recording.sample_period_ns, "{name}");
    }

    let none = gmon(&["-m", "[Python]", "-f", "generate"]);
    let said = "[Python]: no function is called generate; similar names: generated";
    assert!(none.code() == 2 && none.stderr_text().contains(said), "{}", none.stderr_text());
    // What the interpreter says may be anything: only sources of Python are shown.
    fs::rename(&path, folder.path().join("secret")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("secret"), &path).unwrap();
    let hidden = gmon(&["-m", "[Python]", "-F", "lines.py"]);
    assert!(hidden.stdout_text().contains("lines.py (source not found)"), "{}", hidden.stdout_text());
    assert!(!hidden.stdout_text().contains("# line: sum"), "{}", hidden.stdout_text());
}

/// Frames that were open before the hooks came return as they do alone, and others to exit labels.
fn of_a_process_that_runs() {
    let text = "import time\ndef spin(until):\n    while time.process_time() < until: pass\n\
                def often(): spin(time.process_time() + 0.03)\ndef seldom(): spin(time.process_time() + 0.01)\n\
                while True:\n    often()\n    seldom()\n";
    for python in (8..=13).filter_map(|minor| python("python::of_a_process_that_runs", minor)) {
        for hooks in ["none", "both"] {
            let right = |found: &BTreeMap<String, f64>| {
                let is = |name: &str, share: f64, most| (found.get(name).copied().unwrap_or(0.0) - share).abs() < most;
                is("often", 75.0, 6.0) && is("seldom", 25.0, 6.0) && is("spin", 100.0, 6.0) && is("<module>", 100.0, 3.0)
            };
            let found: Vec<_> = (0..TRIES).map(|_| shares_while_it_runs(&python, text, hooks)).take_while(|found| !right(found)).collect();
            assert!(found.len() < TRIES, "{} {hooks}: {found:?}", python.display());
        }
    }
}

/// Attaches to a program that has worked for a while.
fn shares_while_it_runs(python: &Path, text: &str, hooks: &str) -> BTreeMap<String, f64> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("p.py"), text).unwrap();
    let mut running = Command::new(python).arg(folder.path().join("p.py")).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let pid = running.id().to_string();
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["--pid", &pid, "--duration", "1.5", "--hooks", hooks, "-o"]).arg(folder.path().join("gmon.out"));
    let outcome = run::run(command, None, LIMIT);
    running.kill().unwrap();
    running.wait().unwrap();
    let outcome = outcome.unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    shares(&measured::read(&folder.path().join("gmon.pb.gz")).unwrap()).0
}

/// Python 3.12 names its functions itself, if it is asked to; older ones do not.
fn by_trampolines() {
    const TEST: &str = "python::by_trampolines";
    const OLD: &str = "does not name its functions (--python is for 3.12 and later)";
    if let Some(old) = python(TEST, 11) {
        let said = said(&["--python", "--hooks", "none"], &old, &[&program(), "0.02"]);
        assert!(said.stderr.contains(OLD), "{}", said.stderr);
        assert!(shares(&said.recording).0.contains_key("half"));
    }
    if let Some(new) = python(TEST, 12) {
        let said = said(&["--python", "--hooks", "none"], &new, &[&program(), "0.02"]);
        assert!(!said.stderr.contains(OLD), "{}", said.stderr);
        let is_named = |name: &str| said.recording.functions.iter().any(|function| function.name.starts_with(name));
        assert!(is_named("py::half:") && is_named("py::by_key:"), "{:?}", said.recording.functions);
    }
}

const NO_INTERPRETER: &str = "\
#include <time.h>
int main(void) { while (clock() < CLOCKS_PER_SEC / 3) {} return 0; }
";

/// Programs may have any names.
fn without_an_interpreter() {
    let program = compiled("python3.9", NO_INTERPRETER);
    let said = said(&[], &program.path().join("python3.9"), &[]);
    assert!(said.stderr.contains("python3.9 does not export _PyRuntime"), "{}", said.stderr);
    let program = compiled("python3.20", NO_INTERPRETER.replace("int main", "long _PyRuntime, PyCode_Type; int main").as_str());
    let said = self::said(&[], &program.path().join("python3.20"), &[]);
    assert!(said.stderr.contains("python3.20 is not of Python 3.8 to 3.13"), "{}", said.stderr);
}

/// An interpreter of each version whose structures lead to each other in circles, and change all the time.
const FORGED: &str = "\
#include <time.h>
long _PyRuntime[100000], PyCode_Type[64];
long *const ring = _PyRuntime;
int main(void) {
    unsigned long random = 88172645463325252ul;
    for (int i = 0; i < 100000; i++) ring[i] = (long)(ring + i * 7 % 99000);
    while (clock() < CLOCKS_PER_SEC / 3) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        ring[random % 100000] = random % 3 ? (long)(ring + random / 3 % 99000) : random % 5 ? (long)random : (long)PyCode_Type;
    }
    return 0;
}
";

fn of_a_forged_interpreter() {
    for minor in 8..=13 {
        let name = format!("python3.{minor}");
        let program = compiled(&name, FORGED);
        let said = said(&[], &program.path().join(&name), &[]);
        assert!(said.recording.hits.iter().map(|hits| hits.samples).sum::<u64>() > 50, "{}", said.stderr);
    }
}

/// Compiles a program of this name in a folder.
fn compiled(name: &str, source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("p.c"), source).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-O1", "-rdynamic", "-o"]).arg(folder.path().join(name)).arg(folder.path().join("p.c"));
    compile::compile(command).unwrap();
    folder
}
