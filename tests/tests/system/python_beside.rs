//! Python functions where something else matters as well: BLAS, into which lines of Python call through numpy, and processors that have
//! more to do than they can.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gmon_run::{PYTHON, Recording};
use gprofinject_skip as skip;
use gprofinject_tests::tool;

use crate::python::{any, python, said, shares, spent, wrong_lines};

gprofinject_tests::trials! {
    together: calls_of_blas, of_several_interpreters, by_another_name;
    alone: where_no_processor_is_idle;
}

/// The number of runs of which one has to agree: there are some 2,000 samples.
const TRIES: usize = 4;
/// The points of a percentage by which a share may differ.
const POINTS: f64 = 4.0;

/// Returns a Python that has numpy.
fn with_numpy(test: &str) -> Option<PathBuf> {
    let system = Some(PathBuf::from("/usr/bin/python3"));
    let versions = (8..=13).rev().map(|minor| tool::installed(&format!("python3.{minor}")));
    let has_numpy = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import sys, numpy; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 13))"]);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let found = [system].into_iter().chain(versions).flatten().find(has_numpy);
    if found.is_none() {
        skip::skipped(test, "no numpy");
    }
    found
}

/// Returns the samples in BLAS by the function of the program that has called it (numpy has functions in Python itself), and the number
/// of those in none.
fn callers_of_blas(recording: &Recording) -> (BTreeMap<String, u64>, u64) {
    let mut callers: BTreeMap<String, u64> = BTreeMap::new();
    let mut without = 0;
    // For each node, the innermost Python function, and whether BLAS is further in.
    let mut nodes: Vec<(Option<&str>, bool)> = Vec::new();
    for stack in &recording.stacks {
        let (mut python, mut is_in_blas) = stack.parent.map_or((None, false), |parent| nodes[parent as usize]);
        if let Some(function) = stack.function.map(|function| &recording.functions[function as usize]) {
            let module = &recording.modules[function.module as usize];
            if module.path == PYTHON && function.file.ends_with("/blas.py") {
                (python, is_in_blas) = (function.name.split(" (").next(), false);
            }
            is_in_blas |= module.name().contains("blas");
        }
        if is_in_blas {
            match python {
                Some(name) => *callers.entry(name.to_owned()).or_default() += stack.samples,
                None => without += stack.samples,
            }
        }
        nodes.push((python, is_in_blas));
    }
    (callers, without)
}

/// A matrix product is the time of the line that asks numpy for it, and its C functions have the Python function as their caller.
fn calls_of_blas() {
    const TEST: &str = "python_beside::calls_of_blas";
    let Some(python) = with_numpy(TEST) else { return };
    let program = tool::folder().join("known/blas.py");
    for options in [&["-v", "--hooks", "none"][..], &["-v"]] {
        let mut wrong = Vec::new();
        for _ in 0..TRIES {
            let said = said(options, &python, &[program.to_str().unwrap()]);
            wrong = wrong_lines(&program, &said);
            let spent = spent(&said.stdout);
            let (callers, without) = callers_of_blas(&said.recording);
            let of = |name: &str| callers.get(name).copied().unwrap_or(0) as f64;
            let all = callers.values().sum::<u64>() + without;
            let products = spent["train"] + spent["predict"];
            for (function, name) in [("Model.train", "train"), ("predict", "predict")] {
                let (found, share) = (100.0 * of(function) / all as f64, 100.0 * spent[name] / products);
                if (found - share).abs() > 2.0 * POINTS {
                    wrong.push(format!("{function}: {found:.1} % of the samples in BLAS, not {share:.1}"));
                }
            }
            if all < 500 || callers.contains_key("order") {
                wrong.push(format!("{all} samples in BLAS, {callers:?}"));
            }
            if wrong.is_empty() {
                break;
            }
            wrong.push(said.stderr);
        }
        assert!(wrong.is_empty(), "{options:?}: {}", wrong.join("\n"));
    }
}

/// Processes that keep all processors busy.
struct Burden(Vec<Child>);

impl Burden {
    fn new() -> Burden {
        let count = 2 * std::thread::available_parallelism().map_or(2, usize::from);
        Burden((0..count).map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()).collect())
    }
}

impl Drop for Burden {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a thread executes is read at once, also if others would have had their turn before gprofinject: where it waited for the kernel to take
/// the processor from the program, it read what the program was doing then, which was often a system call.
fn where_no_processor_is_idle() {
    const TEST: &str = "python_beside::where_no_processor_is_idle";
    let Some(python) = python(TEST, 11).or_else(|| any(TEST)) else { return };
    let is_permitted = Command::new("chrt").args(["-r", "1", "true"]).stderr(Stdio::null()).status();
    if !is_permitted.is_ok_and(|status| status.success()) {
        return skip::skipped(TEST, "no realtime priority is permitted (CAP_SYS_NICE)");
    }
    let program = tool::folder().join("known/busy.py");
    let burden = Burden::new();
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let said = said(&["-v", "--hooks", "none"], &python, &[program.to_str().unwrap()]);
        wrong = wrong_lines(&program, &said);
        if wrong.is_empty() {
            break;
        }
        wrong.push(said.stderr);
    }
    drop(burden);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The main interpreter works as long as another one in the same thread, which it has called.
const INTERPRETERS: &str = "\
import time
source = '''
import time
def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def NAME(): spin(0.4)
NAME()
'''
exec(source.replace('NAME', 'in_main'))
try: import _xxsubinterpreters as interpreters
except ImportError: import _interpreters as interpreters
def calls(): (getattr(interpreters, 'run_string', None) or interpreters.exec)(other, source.replace('NAME', 'in_other'))
other = interpreters.create()
calls()
exec(source.replace('NAME', 'in_main'))
calls()
";

fn of_several_interpreters() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("p.py");
    fs::write(&program, INTERPRETERS).unwrap();
    for python in (8..=13).filter_map(|minor| python("python_beside::of_several_interpreters", minor)) {
        let right = |found: &BTreeMap<String, f64>| {
            let is = |name: &str, share: f64| (found.get(name).copied().unwrap_or(0.0) - share).abs() < 2.0 * POINTS;
            is("in_main", 50.0) && is("in_other", 50.0) && is("calls", 50.0) && is("spin", 100.0)
        };
        let run = || shares(&said(&["--hooks", "none"], &python, &[program.to_str().unwrap()]).recording).0;
        let found: Vec<_> = (0..TRIES).map(|_| run()).take_while(|found| !right(found)).collect();
        assert!(found.len() < TRIES, "{}: {found:?}", python.display());
    }
}

/// An interpreter is part of a program: Debian's python3, copied as `python -m venv --copies` does, and by a name that says nothing.
fn by_another_name() {
    const TEST: &str = "python_beside::by_another_name";
    let python = Path::new("/usr/bin/python3");
    // One with libpython3.N.so is recognised by the name of that.
    if !fs::read(python).is_ok_and(|bytes| bytes.len() > 1 << 20) {
        return skip::skipped(TEST, "no /usr/bin/python3 that contains its interpreter");
    }
    let program = tool::folder().join("known/early.py");
    let folder = tempfile::tempdir().unwrap();
    for name in ["python", "server"] {
        let copy = folder.path().join(name);
        fs::copy(python, &copy).unwrap();
        let program = format!("PYTHONHOME=/usr exec {} {}", copy.display(), program.display());
        let shell = tool::installed("sh").unwrap();
        let run = || shares(&said(&["--hooks", "none"], &shell, &["-c", &program]).recording).0;
        let share = |_| run().get("fib").copied().unwrap_or(0.0);
        let found: Vec<f64> = (0..TRIES).map(share).take_while(|share| *share < 75.0).collect();
        assert!(found.len() < TRIES, "{name}: {found:?}");
    }
}
