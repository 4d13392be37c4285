//! `--clock instructions`: what each call executes is what callgrind counts, and it is the same in each run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::callgrind;
use gprofinject_tests::elf::Program;
use gprofinject_tests::{compile, generate, run, tool};
use serde_json::Value;
use tempfile::TempDir;

use crate::blocks;

gprofinject_tests::trials! {
    together:
        calls_of_all_kinds,
        ways_through_functions,
        exceptions,
        a_static_program,
        lua,
        speedtest1,
        bzip2,
        threads_and_forks_are_the_same_in_each_run,
        exceptions_through_copies_of_the_unwinder,
        results_know_their_unit,
        contradictions;
}

const LIMIT: Duration = Duration::from_secs(120);

/// Of a function: its calls, the instructions that it executed itself, and those with everything that it called.
type Counted = (u64, u64, u64);

/// Calls to each other of functions that call nothing of any library: inclusive numbers are known, too. `main` is left by a call.
const CALLS: &str = r#"
#include <stdlib.h>
#define F __attribute__((noinline, noclone))
volatile int sink;
F int leaf(int n) { int s = 0; for (int i = 0; i < n; i++) s += i ^ n; return s; }
F int middle(int n) { return leaf(n) + leaf(n / 2) + 1; }
F int tail(int n) { sink++; return leaf(n + 3); }
F int chosen(int (*f)(int), int n) { return f(n) * 2; }
F int odd(int n); F int even(int n) { return n == 0 ? 1 : odd(n - 1) + 1; } F int odd(int n) { return n == 0 ? 0 : even(n - 1) + 1; }
F int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
F int table(int n) { switch (n) { case 0: return leaf(1); case 1: return 7 * n; case 2: return middle(3); case 3: return n - 5;
  case 4: return leaf(9); case 5: return n ^ 3; case 6: return tail(2); default: return -n; } }
F void all(void) { for (int i = 0; i < 50; i++) { sink += middle(i) + tail(i) + chosen(leaf, i) + chosen(tail, i) + even(i) + table(i % 9); }
  sink += fib(15); }
int main(void) { all(); all(); exit(sink == 0); }
"#;

/// Its functions.
const NAMES: [&str; 10] =
    ["leaf", "middle", "tail", "chosen", "odd", "even", "fib", "table", "all", "main"];

fn calls_of_all_kinds() {
    let folder = tempfile::tempdir().unwrap();
    for compiler in ["gcc", "clang"] {
        for flags in ["-O0", "-O1", "-O2 -no-pie -fno-pie", "-O2 -fno-omit-frame-pointer", "-O2 -fcf-protection"] {
            if !skip::have(compiler) {
                skip::skipped("calls_of_all_kinds", &format!("no {compiler}"));
                continue;
            }
            let program = compiled(folder.path(), compiler, CALLS, flags);
            let what = format!("{compiler} {flags}");
            for paths in ["--times", "--paths"] {
                let compared = compare(&what, &program, &[], None, &[paths, "--libs", "none"], 9, &[]);
                let Some((ours, theirs)) = compared else { return };
                for name in ["leaf", "middle", "tail", "chosen", "table", "all"] {
                    let (calls, _, inclusive) = ours[name];
                    let expected: u64 =
                        theirs.calls.iter().filter(|call| call.callee.name == name).map(|call| call.inclusive).sum();
                    assert!(calls > 1 && inclusive == expected, "{what} {paths}: {name}: {inclusive}, callgrind {expected}");
                }
                // Of recursive calls, the outermost ones.
                let fib: u64 = theirs.calls.iter().filter(|c| c.callee.name == "fib" && c.caller.name == "all").map(|c| c.inclusive).sum();
                assert_eq!(ours["fib"].2, fib, "{what} {paths}");
            }
        }
    }
}

fn ways_through_functions() {
    source("flow.c", &[]);
}

fn exceptions() {
    source("exceptions.cc", &[]);
}

/// Compares the numbers of a program of `blocks`, built in several ways.
fn source(name: &str, flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let is_plus_plus = name.ends_with(".cc");
    for (compiler, level) in [("gcc", "-O0"), ("gcc", "-O2"), ("gcc", "-Os"), ("clang", "-O2")] {
        let compiler = if is_plus_plus { format!("{}++", compiler.replace("gcc", "g")) } else { compiler.into() };
        if !skip::have(&compiler) {
            skip::skipped(name, &format!("no {compiler}"));
            continue;
        }
        let program = folder.path().join("program");
        let mut command = Command::new(&compiler);
        command.args(["-g", "-w", level]).args(flags).arg("-o").arg(&program);
        command.arg(tool::folder().join("blocks").join(name));
        compile::compile(command).unwrap();
        compare(&format!("{name} {compiler} {level}"), &program, &[], None, &["--libs", "none"], 5, &[]);
    }
}

fn a_static_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "gcc", CALLS, "-O2 -static");
    compare("static", &program, &[], None, &[], 10, &NAMES);
}

fn lua() {
    let script = tool::folder().join("data/bench.lua").display().to_string();
    corpus("lua", &[script, "1".into()], None);
}

fn speedtest1() {
    corpus("speedtest1", &["--size", "1", ":memory:"].map(String::from), None);
}

fn bzip2() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, generate::compressible(100_000)).unwrap();
    corpus("bzip2", &["-c".into()], Some(&data));
}

fn corpus(name: &str, args: &[String], stdin: Option<&Path>) {
    match tool::corpus() {
        Ok(corpus) => {
            let program = corpus.join(format!("{name}-O2"));
            compare(name, &program, args, stdin, &["--libs", "none"], 20, &[]);
        }
        Err(error) => skip::skipped(name, &format!("no corpus: {error:#}")),
    }
}

/// Compares what each function of a program executed itself with callgrind's numbers, if at least `least` functions have any. Functions
/// with repeated instructions are left out, because callgrind counts each repetition, and all but `only`, if there are any.
fn compare(
    what: &str,
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
    options: &[&str],
    least: usize,
    only: &[&str],
) -> Option<(BTreeMap<String, Counted>, callgrind::Profile)> {
    let (ours, _) = counted(program, args, stdin, options);
    if !callgrind::available() || !skip::have("objdump") {
        skip::skipped(what, "no valgrind, or no objdump");
        return None;
    }
    let (theirs, _) = callgrind::run(program, args, stdin).unwrap();
    let object = theirs.object(program).unwrap();
    let repeats = with_repetitions(program);
    let is_compared = |name: &str| !repeats.contains(name) && (only.is_empty() || only.contains(&name));
    // callgrind takes the parts of a function for several.
    let is_part = |part: &str, of: &str| part.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(".cold"));
    let expected = |name: &str| {
        let parts = theirs.own.iter().filter(|(node, _)| node.object == object && is_part(&node.name, name));
        parts.map(|(_, own)| *own).reduce(|sum, own| sum + own)
    };
    // If the end of a function is not seen, its instructions are its callers'.
    let unseen: BTreeSet<&str> = ours
        .iter()
        .filter(|(name, counted)| counted.0 > 0 && counted.1 == 0 && expected(name) > Some(0))
        .map(|(name, _)| name.as_str())
        .collect();
    let of_unseen = theirs.calls.iter().filter(|call| unseen.contains(call.callee.name.as_str()));
    let callers: BTreeSet<&str> = of_unseen.map(|call| call.caller.name.as_str()).collect();
    assert!(unseen.len() <= ours.len() / 10, "{what}: {unseen:?}");
    let (mut same, mut wrong) = (0, Vec::new());
    let (mut all, mut all_expected) = (0, 0);
    for (name, &(calls, own, _)) in ours.iter().filter(|(name, _)| is_compared(name)) {
        let Some(expected) = expected(name).filter(|_| calls > 0) else { continue };
        (all, all_expected) = (all + own, all_expected + expected);
        match own == expected {
            true => same += 1,
            false if unseen.contains(name.as_str()) || callers.contains(name.as_str()) => {}
            false => wrong.push(format!("{name}: {own} in {calls} calls, callgrind {expected}")),
        }
    }
    assert!(wrong.is_empty(), "{what}: {wrong:#?}, {same} are right");
    assert_eq!(all, all_expected, "{what}");
    assert!(same >= least, "{what}: {same} functions");
    Some((ours, theirs))
}

/// Returns the names of functions with instructions that repeat themselves.
fn with_repetitions(program: &Path) -> BTreeSet<String> {
    let functions = Program::read(program).unwrap();
    let repeats = |text: &str| text.starts_with("rep") && !text.contains("ret");
    let found = blocks::instructions(program).into_iter().filter(|(_, text)| repeats(text));
    found.filter_map(|(address, _)| Some(functions.containing(address)?.name().to_owned())).collect()
}

/// Counts the instructions of a program, and returns the numbers of its own functions by their names in the symbol table, and the run.
fn counted(
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
    options: &[&str],
) -> (BTreeMap<String, Counted>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let gmon = folder.path().join("gmon.out");
    let options = [&["-q", "--clock", "instructions"], options].concat();
    let mut command = tool::command(&options, &gmon, program, args).unwrap();
    command.current_dir(folder.path());
    let profiled = run::run(command, stdin, LIMIT).unwrap();
    let mut alone = Command::new(program);
    alone.args(args);
    let alone = run::run(alone, stdin, LIMIT).unwrap();
    assert_eq!((profiled.code(), profiled.stderr_text()), (alone.code(), alone.stderr_text()));
    (functions(&folder.path().join("gmon.pb.gz"), Some(program)), folder)
}

/// Returns the numbers of all functions of a run, or of those of one module.
fn functions(run: &Path, module: Option<&Path>) -> BTreeMap<String, Counted> {
    let table = gmon(&["flat", "--json", "-n", "0", run.to_str().unwrap()]);
    let table: Value = serde_json::from_str(&table).unwrap();
    assert_eq!(table["time"], "instructions");
    let module = module.map(|module| module.canonicalize().unwrap().display().to_string());
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.filter(|row| module.as_ref().is_none_or(|module| row["module"] == **module));
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    rows.map(|row| {
        let counted = (number(row, "calls"), number(row, "self_ns"), number(row, "inclusive_ns"));
        (row["name"].as_str().unwrap().to_owned(), counted)
    })
    .collect()
}

fn gmon(args: &[&str]) -> String {
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(args);
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert_eq!(outcome.code(), 0, "{args:?}: {}", outcome.stderr_text());
    outcome.stdout_text()
}

fn compiled(folder: &Path, compiler: &str, source: &str, flags: &str) -> PathBuf {
    let (program, file) = (folder.join("program"), folder.join("program.c"));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new(compiler);
    command.args(flags.split(' ')).arg("-o").arg(&program).arg(&file);
    compile::compile(command).unwrap();
    program
}

const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#define F __attribute__((noinline, noclone))
F long spin(long n) { long s = 0; for (long i = 0; i < n; i++) s += i * n ^ s; return s; }
F long step(long n) { return spin(n % 50) + spin(n % 7); }
volatile long sink;
F void *work(void *of) { long s = 0; for (long i = 0; i < (long)of; i++) s += step(i); sink = s; return of; }
int main(void) {
  pthread_t threads[4];
  for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)(20000 + 5000 * i));
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
  for (int i = 0; i < 10; i++) { pid_t child = fork(); if (child == 0) { work((void *)1000); _exit(0); } work((void *)10); waitpid(child, 0, 0); }
  return 0;
}
"#;

/// Four threads on fewer processors, and forks: each run has the same numbers, and so has another gprofinject beside it.
fn threads_and_forks_are_the_same_in_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "gcc", THREADS, "-O1 -pthread");
    let options = ["--libs", "none", "--paths"];
    let (first, _) = counted(&program, &[], None, &options);
    assert_eq!(first["work"].0, 4 + 20, "{first:?}");
    assert_eq!(first["step"].0, 20_000 + 25_000 + 30_000 + 35_000 + 10 * 1010, "{first:?}");
    for _ in 0..4 {
        assert_eq!(counted(&program, &[], None, &options).0, first);
    }
    // In the C library, what a child executes is not the parent's, from its first instruction on.
    let with_libraries = || {
        let mut command =
            tool::command(&["-q", "--clock=instructions", "--libs=all"], &folder.path().join("gmon.out"), &program, &[])
                .unwrap();
        command.current_dir(folder.path());
        let profiled = run::run(command, None, LIMIT).unwrap();
        assert_eq!((profiled.code(), profiled.stderr_text()), (0, String::new()));
        functions(&folder.path().join("gmon.pb.gz"), None)
    };
    let runs = [with_libraries(), with_libraries(), with_libraries()];
    for name in ["work", "step", "spin", "__fork", "wait4"] {
        let known = first.get(name).or(runs[0].get(name));
        assert!(known.is_some_and(|known| known.1 > 0), "{name}");
        assert!(runs.iter().all(|run| run.get(name) == known), "{name}: {:?}", runs.map(|run| run.get(name).copied()));
    }
}

/// libgcc's unwinder asks the agent for the CFA of a frame, as its own function and not as one of a program's: also from its copies.
fn exceptions_through_copies_of_the_unwinder() {
    if !skip::have("g++") {
        return skip::skipped("exceptions_through_copies_of_the_unwinder", "no g++");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut command = Command::new("g++");
    command.args(["-O2", "-w", "-o"]).arg(&program).arg(tool::folder().join("blocks/exceptions.cc"));
    compile::compile(command).unwrap();
    for options in [&["--clock=instructions"][..], &["--times", "--count=blocks"], &["--hooks=both", "--count=blocks"]] {
        let options = [options, &["-q", "--libs", "all"]].concat();
        let mut command = tool::command(&options, &folder.path().join("gmon.out"), &program, &[]).unwrap();
        command.current_dir(folder.path());
        let profiled = run::run(command, None, LIMIT).unwrap();
        let alone = run::run(Command::new(&program), None, LIMIT).unwrap();
        assert_eq!((profiled.code(), profiled.stdout), (alone.code(), alone.stdout), "{options:?}");
    }
}

/// Tables, exports, comparisons and sums say that these are instructions; gprof, too.
fn results_know_their_unit() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "gcc", CALLS, "-O1");
    let (ours, run) = counted(&program, &[], None, &["--libs", "none", "--paths", "--rate", "0"]);
    let file = run.path().join("gmon.pb.gz");
    let file = file.to_str().unwrap();
    let flat = gmon(&["flat", file]);
    assert!(flat.contains("instructions, counted as each call executed them") && !flat.contains(" ns "), "{flat}");
    for command in ["graph", "paths"] {
        let text = gmon(&[command, file]);
        assert!(!text.contains(" us ") && !text.contains(" ms "), "{command}: {text}");
    }
    let none = gmon(&["diff", file, file]);
    assert!(none.contains("instructions"), "{none}");
    let export = |format: &str| {
        let out = run.path().join(format);
        gmon(&["export", "--to", format, "-o", out.to_str().unwrap(), file]);
        std::fs::read(out).unwrap()
    };
    let callgrind = String::from_utf8(export("callgrind")).unwrap();
    assert!(callgrind.contains("events: Ir\n"), "{callgrind}");
    let summary = |line: &str| line.strip_prefix("totals: ").map(str::to_owned);
    let total: u64 = ours.values().map(|&(_, own, _)| own).sum();
    assert_eq!(callgrind.lines().find_map(summary), Some(total.to_string()), "{callgrind}");
    if skip::have("gprof") {
        let mut gprof = Command::new("gprof");
        gprof.args(["-b", "-p"]).arg(&program).arg(run.path().join("gmon.out"));
        let shown = run::run(gprof, None, LIMIT).unwrap().stdout_text();
        assert!(shown.contains("Ginstructions"), "{shown}");
    }
    // Instructions and times have no sum.
    let (times, merged) = (run.path().join("times.out"), run.path().join("merged.pb.gz"));
    run::run(tool::command(&["-q", "--times"], &times, &program, &[]).unwrap(), None, LIMIT).unwrap();
    let mut merge = Command::new(tool::gmon().unwrap());
    merge.arg("merge").arg("-o").arg(&merged).arg(file).arg(run.path().join("times.pb.gz"));
    let refused = run::run(merge, None, LIMIT).unwrap();
    assert!(refused.code() != 0 && refused.stderr_text().contains("counted instructions"), "{}", refused.stderr_text());
}

fn contradictions() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "gcc", CALLS, "-O1");
    for (options, about) in [
        (&["--trace=t"][..], "--trace tells of time"),
        (&["--slow=leaf"], "--slow tells of time"),
        (&["--times", "--min-time"], "--min-time tells of time"),
        (&["--hooks=entry"], "from the entry of a function to its exit"),
    ] {
        let options = [options, &["--clock", "instructions"]].concat();
        let command = tool::command(&options, &folder.path().join("gmon.out"), &program, &[]).unwrap();
        let outcome = run::run(command, None, LIMIT).unwrap();
        assert!(outcome.code() != 0 && outcome.stderr_text().contains(about), "{options:?}: {}", outcome.stderr_text());
    }
    let mut attached = Command::new(tool::gprofinject().unwrap());
    attached.args(["--clock", "instructions", "--pid", "1"]);
    let outcome = run::run(attached, None, LIMIT).unwrap();
    let said = outcome.stderr_text();
    assert!(outcome.code() == 125 && said.contains("start the program with it"), "{said}");
}
