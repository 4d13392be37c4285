//! `--values`: the values of arguments and results, against what the program (`tests/values`) has logged itself, and against strace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{compile, run, tool};
use serde_json::Value;
use tempfile::TempDir;

gprofinject_tests::trials! {
    together:
        every_kind_of_value,
        recursion_and_jumps,
        threads_and_children,
        a_static_program,
        where_calls_are_measured,
        more_values_than_are_kept,
        calls_of_signal_handlers,
        a_killed_program,
        known_values_of_a_program,
        wrappers_of_system_calls,
        sums_of_runs,
        counts_are_those_without_values,
        mistakes_are_refused;
}

const LIMIT: Duration = Duration::from_secs(120);

/// What is asked of `values.c`.
const SPEC: &str = "u8@arg1/u8,retval/u8;i8@arg1/i8,retval/i8;u16@arg1/u16,retval/u16;i16@arg1/i16,retval/i16;\
    u32@arg1/u32,retval/u32;i32@arg1/i32,retval/i32;u64@arg1/u64,retval/u64;i64@arg1/i64,retval/i64;\
    pointer@arg1/x64,retval/x64;real@fparg1/f64,fparg2/f32,retval/f64;text@arg1/s,retval/s;\
    eight@arg1/i32,arg2/i16,arg3/i8,arg4/i64,arg5/i32,arg6/u32,arg7/i64%stack+1,arg8/i64%stack+2,retval/i64;\
    deep@arg1/i32,retval/i32;risky@arg1/i32,retval/i32;many@arg1/u64,retval/u64";

/// By function and argument: by value, and by caller, how often it was seen.
type Seen = BTreeMap<(String, String), [BTreeMap<String, u64>; 2]>;

/// Reads a log of lines of function, argument, caller and value.
fn logged(output: &str) -> Seen {
    let mut seen = Seen::new();
    for line in output.lines() {
        let mut words = line.splitn(4, '\t');
        let [Some(function), Some(argument), Some(caller), Some(value)] = [(); 4].map(|()| words.next()) else {
            panic!("{line:?}");
        };
        let [values, callers] = seen.entry((function.to_owned(), argument.to_owned())).or_default();
        *values.entry(value.to_owned()).or_default() += 1;
        *callers.entry(caller.to_owned()).or_default() += 1;
    }
    seen
}

/// Returns a value of a report as the log has it.
fn text_of(kind: &str, value: &Value) -> String {
    match kind {
        "text" => value["text"].as_str().expect("a text").to_owned(),
        _ => number(kind, &value["value"]),
    }
}

fn number(kind: &str, value: &Value) -> String {
    match kind {
        "double" => of_float(value.as_f64().unwrap()),
        "single" => of_float(f64::from(value.as_f64().unwrap() as f32)),
        _ => value.to_string(),
    }
}

/// Both sides are compared as bits.
fn of_float(value: f64) -> String {
    format!("{:016x}", value.to_bits())
}

/// Reads a report, whose counts are all exact.
fn reported(report: &Value) -> Seen {
    let mut seen = Seen::new();
    for argument in report["values"].as_array().unwrap() {
        let kind = argument["kind"].as_str().unwrap();
        let key = (argument["demangled"].as_str().unwrap(), argument["argument"].as_str().unwrap());
        let [values, callers] = seen.entry((key.0.to_owned(), key.1.to_owned())).or_default();
        assert_eq!(argument["other_calls"], 0, "{key:?}");
        for value in argument["values"].as_array().unwrap() {
            assert_eq!(value["error"], 0, "{key:?}: {value}");
            values.insert(text_of(kind, value), value["calls"].as_u64().unwrap());
        }
        for caller in argument["callers"].as_array().unwrap() {
            callers.insert(caller["demangled"].as_str().unwrap().to_owned(), caller["calls"].as_u64().unwrap());
        }
        check_summary(argument, kind);
        argument["callers"].as_array().unwrap().iter().for_each(|caller| check_summary(caller, kind));
    }
    seen
}

/// Checks that the numbers of a report follow from its values.
fn check_summary(of: &Value, kind: &str) {
    let all: Vec<(i128, u64)> = of["values"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|value| Some((value["value"].to_string().parse().ok()?, value["calls"].as_u64()?)))
        .collect();
    if !matches!(kind, "unsigned" | "signed" | "hex") || of["other_calls"] != 0 {
        return;
    }
    let integer = |name: &str| of[name].to_string().parse::<f64>().unwrap();
    let sum: i128 = all.iter().map(|(value, calls)| value * i128::from(*calls)).sum();
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    assert!(close(integer("sum"), sum as f64), "{of}");
    assert!(close(integer("mean"), sum as f64 / of["calls"].as_f64().unwrap()), "{of}");
    assert!(close(integer("min"), all.iter().map(|(value, _)| *value).min().unwrap() as f64), "{of}");
    assert!(close(integer("max"), all.iter().map(|(value, _)| *value).max().unwrap() as f64), "{of}");
    for interval in of["histogram"].as_array().unwrap() {
        let bound = |name: &str, else_: i128| interval[name].to_string().parse().unwrap_or(else_);
        let (low, high) = (bound("from", i128::MIN), bound("below", i128::from(u64::MAX) + 1));
        let inside = all.iter().filter(|(value, _)| (low..high).contains(value));
        let calls: u64 = inside.map(|(_, calls)| calls).sum();
        assert_eq!(interval["calls"], calls, "{interval} {of}");
    }
}

/// A program of `values/` that was built, and its folder.
pub(crate) struct Subject {
    folder: TempDir,
}

impl Subject {
    pub(crate) fn new(compiler: &str, source: &str, flags: &str) -> Subject {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(compiler);
        command.args(["-g", "-w", "-pthread"]).args(flags.split(' ')).arg("-o").arg(folder.path().join("p"));
        command.arg(tool::folder().join("values").join(source));
        compile::compile(command).unwrap();
        Subject { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run(&self, options: &[&str], args: &[&str]) -> Outcome {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut command = tool::command(options, &self.path("gmon.out"), &self.path("p"), &args).unwrap();
        command.current_dir(self.folder.path());
        run::run(command, None, LIMIT).unwrap()
    }

    /// Runs gmon in the folder.
    pub(crate) fn gmon(&self, args: &[&str]) -> Outcome {
        let mut command = Command::new(tool::gmon().unwrap());
        command.current_dir(self.folder.path()).args(args);
        run::run(command, None, LIMIT).unwrap()
    }

    fn report(&self) -> Value {
        report(&self.path("gmon.pb.gz"))
    }
}

fn report(file: &Path) -> Value {
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(["values", "--json"]).arg(file);
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    serde_json::from_str(&outcome.stdout_text()).unwrap()
}

/// Returns what a program has logged, with floating-point numbers as bits.
fn own(outcome: &Outcome) -> Seen {
    let mut seen = logged(&outcome.stdout_text());
    for ((function, argument), [values, _]) in &mut seen {
        if function == "real" {
            let single = argument == "fparg2";
            let bits = |text: &String| {
                let value: f64 = text.parse().unwrap();
                of_float(if single { f64::from(value as f32) } else { value })
            };
            *values = values.iter().map(|(text, count)| (bits(text), *count)).collect();
        }
    }
    seen
}

/// Runs the C program, built in several ways, and compares all values.
fn compare(flags: &[&str], args: &[&str], without_callers: &[&str]) {
    compare_with(&[], flags, args, without_callers);
}

/// The same with more options.
fn compare_with(options: &[&str], flags: &[&str], args: &[&str], without_callers: &[&str]) {
    for compiler in ["gcc", "clang"] {
        for flags in flags {
            if !skip::have(compiler) {
                skip::skipped("values", &format!("no {compiler}"));
                continue;
            }
            let subject = Subject::new(compiler, "values.c", flags);
            let outcome = subject.run(&[&["--values", SPEC], options].concat(), args);
            assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
            let (own, reported) = (own(&outcome), reported(&subject.report()));
            assert!(own.len() > 1, "{compiler} {flags}: {own:?}");
            for (key, [values, callers]) in &own {
                let Some([found, by]) = reported.get(key) else { panic!("{compiler} {flags}: no {key:?}") };
                assert_eq!(found, values, "{compiler} {flags} {args:?}: {key:?}");
                if !without_callers.contains(&key.0.as_str()) && key.1 != "retval" {
                    assert_eq!(by, callers, "{compiler} {flags} {args:?}: {key:?}");
                }
            }
            // Nothing else was called.
            assert_eq!(reported.len(), own.len(), "{compiler} {flags}: {:?}", reported.keys());
        }
    }
}

const LEVELS: [&str; 4] = ["-O0", "-O2", "-O2 -no-pie -fno-pie", "-O1 -fcf-protection"];

fn every_kind_of_value() {
    compare(&LEVELS, &["all", "rare"], &[]);
}

fn recursion_and_jumps() {
    compare(&LEVELS, &["deep", "risky"], &[]);
}

fn threads_and_children() {
    compare(&["-O0", "-O2"], &["threads", "fork", "all"], &[]);
}

fn a_static_program() {
    compare(&["-O2 -static"], &["all", "threads", "deep", "risky"], &[]);
}

/// Gates that count values come before those that measure calls.
fn where_calls_are_measured() {
    for options in [&["--times"][..], &["--paths"], &["--paths", "--no-fold"]] {
        compare_with(options, &["-O0", "-O2"], &["all", "rare", "deep", "risky", "threads", "fork"], &[]);
    }
}

/// What is known of all values is exact, and the counts of those that are kept are as exact as they say.
fn more_values_than_are_kept() {
    for flags in ["-O0", "-O2"] {
        let subject = Subject::new("gcc", "values.c", flags);
        let outcome = subject.run(&["--values", "many@arg1/u64,retval/u64"], &["many"]);
        let own = &own(&outcome)[&("many".to_owned(), "arg1".to_owned())][0];
        let report = subject.report();
        for argument in report["values"].as_array().unwrap() {
            let calls: u64 = own.values().sum();
            assert_eq!(argument["calls"], calls);
            let number = |text: &String| text.parse::<u128>().unwrap();
            let sum: u128 = own.iter().map(|(value, count)| number(value) * u128::from(*count)).sum();
            let mean = argument["mean"].as_f64().unwrap();
            assert!((mean / (sum as f64 / calls as f64) - 1.0).abs() < 1e-12, "{mean}");
            assert_eq!(argument["min"].to_string(), own.keys().map(number).min().unwrap().to_string());
            assert_eq!(argument["max"].to_string(), own.keys().map(number).max().unwrap().to_string());
            let mut intervals: BTreeMap<u32, u64> = BTreeMap::new();
            for (value, count) in own {
                *intervals.entry(128 - number(value).leading_zeros()).or_default() += count;
            }
            let found: Vec<u64> = argument["histogram"]
                .as_array()
                .unwrap()
                .iter()
                .map(|interval| interval["calls"].as_u64().unwrap())
                .collect();
            assert_eq!(found, intervals.into_values().collect::<Vec<_>>());
            let missing = argument["missing"].as_u64().unwrap();
            assert!(missing > 0 && missing < calls / 1000, "{missing}");
            let kept: BTreeMap<String, (u64, u64)> = argument["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|kept| {
                    let of = |name: &str| kept[name].as_u64().unwrap();
                    (kept["value"].to_string(), (of("calls"), of("error")))
                })
                .collect();
            assert!(kept.len() > 1000, "{}", kept.len());
            for (value, &count) in own {
                match kept.get(value) {
                    Some(&(calls, error)) => {
                        assert!((calls..=calls + error).contains(&count), "{value}: {count}, {calls} {error}");
                    }
                    None => assert!(count <= missing, "{value}: {count}, {missing}"),
                }
            }
            // The frequent ones are all there.
            assert_eq!(argument["values"][0]["value"], 7);
            assert_eq!(argument["values"][0]["calls"], own["7"]);
        }
    }
}

fn calls_of_signal_handlers() {
    for options in [&["--rate", "0"][..], &["--rate", "0", "--paths"]] {
        of_signal_handlers(options);
    }
}

fn of_signal_handlers(options: &[&str]) {
    let subject = Subject::new("gcc", "values.c", "-O2");
    let spec = ["--values", "shared@arg1/u64,retval/u64"];
    let outcome = subject.run(&[&spec, options].concat(), &["signals"]);
    let own: BTreeMap<u64, u64> = outcome
        .stdout_text()
        .lines()
        .filter_map(|line| {
            let (value, count) = line.split_once(' ')?;
            Some((value.parse().ok()?, count.parse().ok()?))
        })
        .collect();
    let report = subject.report();
    let arguments = report["values"].as_array().unwrap();
    assert_eq!(arguments.len(), 2, "{report}");
    for argument in arguments {
        let calls: u64 = own.values().sum();
        assert!(calls > 3_000_000, "no signal came");
        assert_eq!(argument["calls"], calls);
        let change = u64::from(argument["argument"] == "retval");
        let sum: u64 = own.iter().map(|(value, count)| (value ^ change) * count).sum();
        assert_eq!(argument["sum"], sum);
        for kept in argument["values"].as_array().unwrap() {
            let of = |name: &str| kept[name].as_u64().unwrap();
            let count = own.get(&(of("value") ^ change)).copied().unwrap_or(0);
            assert!((of("calls")..=of("calls") + of("error")).contains(&count), "{kept}: {count}");
        }
    }
}

/// What was counted survives.
fn a_killed_program() {
    let subject = Subject::new("gcc", "values.c", "-O2");
    let outcome = subject.run(&["--values", SPEC], &["all", "killed"]);
    let (own, reported) = (own(&outcome), reported(&subject.report()));
    assert!(own.len() > 20, "{own:?}");
    for (key, [values, callers]) in own {
        assert_eq!(reported[&key][0], values, "{key:?}");
        if key.1 != "retval" {
            assert_eq!(reported[&key][1], callers, "{key:?}");
        }
    }
}

/// Names and types from debug information; exceptions leave calls without results.
fn known_values_of_a_program() {
    for flags in ["-O0", "-O2"] {
        let subject = Subject::new("g++", "values.cc", flags);
        let outcome = subject.run(&["--values", "Box::grow;paint"], &[]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let own = logged(&outcome.stdout_text());
        let report = subject.report();
        let colours = [("0", "RED"), ("5", "GREEN"), ("6", "BLUE")];
        let truth = [("0", "false"), ("1", "true")];
        let mut compared = 0;
        for argument in report["values"].as_array().unwrap() {
            let function = argument["demangled"].as_str().unwrap().split('(').next().unwrap();
            let key = (function.to_owned(), argument["argument"].as_str().unwrap().to_owned());
            // The log says nothing of the object.
            let Some([values, callers]) = own.get(&key) else {
                assert_eq!(key.1, "this", "{flags}");
                continue;
            };
            compared += 1;
            let found: BTreeMap<String, u64> = argument["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|kept| {
                    let kind = argument["kind"].as_str().unwrap();
                    for (names, of) in [(&colours[..], "colour"), (&truth[..], "often")] {
                        let value_of = kept["value"].to_string();
                        let name = names.iter().find(|(value, _)| value_of == *value);
                        assert!(key.1 != of || kept["text"] == name.unwrap().1, "{kept}");
                    }
                    (text_of(kind, kept), kept["calls"].as_u64().unwrap())
                })
                .collect();
            assert_eq!(&found, values, "{flags}: {key:?}");
            let calls: u64 = callers.values().sum();
            assert_eq!(argument["calls"], calls, "{flags}: {key:?}");
            assert_eq!(argument["callers"][0]["demangled"].as_str().unwrap().split('(').next(), Some("outer"));
        }
        assert_eq!(compared, own.len(), "{flags}: {report}");
    }
}

/// What a program passes to the C library's wrappers of system calls is what strace sees.
fn wrappers_of_system_calls() {
    if !skip::have("strace") {
        skip::skipped("wrappers_of_system_calls", "no strace");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("in"), vec![b'x'; 300_000]).unwrap();
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
  static char bytes[70000];
  int in = open("in", O_RDONLY), out = open("out", O_WRONLY | O_CREAT, 0600);
  for (int i = 0; ; i++) {
    ssize_t got = read(in, bytes, 1 + i * 977 % 30000);
    if (got <= 0) break;
    for (ssize_t done = 0; done < got; done += 4096) write(out, bytes + done, got - done < 4096 ? got - done : 4096);
    if (i % 3 == 0) write(-1, bytes, i);
  }
  for (int i = 0; i < 1000; i++) printf("%d\n", i);
  return fflush(stdout);
}"#;
    fs::write(at("p.c"), source).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-O2", "-w", "-o"]).args([at("p"), at("p.c")]);
    compile::compile(command).unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=read,write", "-o"]).args([at("log"), at("p")]).current_dir(folder.path());
    run::run(command, None, LIMIT).unwrap();
    let mut own: BTreeMap<(String, &str), BTreeMap<String, u64>> = BTreeMap::new();
    for line in fs::read_to_string(at("log")).unwrap().lines() {
        let Some((_, call)) = line.split_once(' ').map(|(pid, call)| (pid, call.trim())) else { continue };
        let Some((name, rest)) = call.split_once('(') else { continue };
        let (Some((arguments, result)), true) = (rest.rsplit_once(" = "), matches!(name, "read" | "write")) else {
            continue;
        };
        let arguments = arguments.trim_end().trim_end_matches(')');
        let fd = arguments.split(',').next().unwrap().to_owned();
        // The dynamic linker reads the headers of libraries by calls of its own.
        if name == "read" && arguments.contains("ELF") {
            continue;
        }
        let size = arguments.rsplit(", ").next().unwrap().to_owned();
        let result = result.split(' ').next().unwrap().to_owned();
        for (argument, value) in [("arg1", fd), ("arg3", size), ("retval", result)] {
            *own.entry((name.to_owned(), argument)).or_default().entry(value).or_default() += 1;
        }
    }
    let spec = "write@arg1/i32,arg3/u64,retval/i64,read@arg1/i32,arg3/u64,retval/i64";
    let mut command = tool::command(&["--libs", "all", "--values", spec], &at("gmon.out"), &at("p"), &[]).unwrap();
    command.current_dir(folder.path());
    run::run(command, None, LIMIT).unwrap();
    let report = report(&at("gmon.pb.gz"));
    for ((function, argument), values) in &own {
        let is_it = |of: &&Value| {
            let names = ["name", "demangled"].map(|name| of[name].as_str().unwrap_or_default().trim_matches('_'));
            names.iter().any(|name| name.split('@').next() == Some(function)) && of["argument"] == *argument
        };
        let found = report["values"].as_array().unwrap().iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("no {function} {argument}: {report}"));
        let found: BTreeMap<String, u64> = found["values"]
            .as_array()
            .unwrap()
            .iter()
            .map(|kept| (kept["value"].to_string(), kept["calls"].as_u64().unwrap()))
            .collect();
        assert_eq!(&found, values, "{function} {argument}");
    }
    assert_eq!(own.len(), 6, "{own:?}");
}

fn sums_of_runs() {
    let subject = Subject::new("gcc", "values.c", "-O2");
    let mut sum = Seen::new();
    for (n, args) in [["all"], ["rare"], ["deep"]].iter().enumerate() {
        let outcome = subject.run(&["--values", SPEC], args);
        for (key, parts) in own(&outcome) {
            let all = sum.entry(key).or_default();
            for (all, part) in all.iter_mut().zip(parts) {
                part.into_iter().for_each(|(value, count)| *all.entry(value).or_default() += count);
            }
        }
        fs::rename(subject.path("gmon.pb.gz"), subject.path(&format!("{n}.pb.gz"))).unwrap();
    }
    let mut command = Command::new(tool::gmon().unwrap());
    command.current_dir(subject.folder.path());
    command.args(["merge", "-o", "sum.pb.gz", "0.pb.gz", "1.pb.gz", "2.pb.gz"]);
    assert_eq!(run::run(command, None, LIMIT).unwrap().code(), 0);
    let reported = reported(&report(&subject.path("sum.pb.gz")));
    for (key, [values, callers]) in sum {
        assert_eq!(reported[&key][0], values, "{key:?}");
        if key.1 != "retval" {
            assert_eq!(reported[&key][1], callers, "{key:?}");
        }
    }
}

/// The gates leave the counts of calls as they are.
fn counts_are_those_without_values() {
    for flags in ["-O0", "-O2"] {
        let subject = Subject::new("gcc", "values.c", flags);
        let counts = |options: &[&str]| {
            subject.run(options, &["all", "rare", "deep", "risky"]);
            let mut command = Command::new(tool::gmon().unwrap());
            command.args(["flat", "--json"]).arg(subject.path("gmon.pb.gz"));
            let outcome = run::run(command, None, LIMIT).unwrap();
            let flat: Value = serde_json::from_str(&outcome.stdout_text()).unwrap();
            let rows = flat["rows"].as_array().unwrap().iter();
            rows.map(|row| (row["demangled"].to_string(), row["calls"].as_u64().unwrap_or(0)))
                .filter(|(_, calls)| *calls > 0)
                .collect::<BTreeMap<String, u64>>()
        };
        let plain = counts(&["--rate", "0"]);
        assert!(plain.len() > 10, "{plain:?}");
        assert_eq!(counts(&["--rate", "0", "--values", SPEC]), plain, "{flags}");
    }
}

fn mistakes_are_refused() {
    let subject = Subject::new("gcc", "values.c", "-O2");
    for (options, words) in [
        (&["--values", "u8@argx"][..], "--values takes auto, or FUNCTION@VALUES"),
        (&["--values", "u8@arg1", "--slow", "u8"], "--values keeps values by caller"),
        (&["--values", "u8@arg1", "--paths", "--min-time"], "--values keeps values by caller"),
        (&["--values", "u8@arg1", "--clock", "instructions"], "--values keeps values by caller"),
        (&["--values", "u8@arg1", "--trace", "t"], "--values keeps values by caller"),
        (&["--values", "u8@arg1", "--hooks", "none"], "--values needs hooks"),
        (&["--values", "auto", "--args", "auto"], "--args says what is traced"),
    ] {
        let outcome = subject.run(options, &["all"]);
        let said = outcome.stderr_text();
        assert!(outcome.code() == 125 && said.contains(words), "{options:?}: {said}");
    }
    let outcome = subject.run(&["--values", "nowhere@arg1"], &["deep"]);
    assert!(outcome.stderr_text().contains("nowhere"), "{}", outcome.stderr_text());
    // What it leads to works.
    assert!(!outcome.stderr_text().contains("gmon values"), "{}", outcome.stderr_text());
    let without = Subject::new("gcc", "values.c", "-O2 -g0").run(&["--values", "auto"], &["deep"]);
    let said = without.stderr_text();
    assert!(said.contains("as in --values 'FUNCTION@arg1") && !said.contains("gmon values"), "{said}");
    subject.run(&[], &["deep"]);
    let mut command = Command::new(tool::gmon().unwrap());
    command.arg("values").arg(subject.path("gmon.pb.gz"));
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(outcome.code() == 2 && outcome.stderr_text().contains("no values of arguments"), "{}", outcome.stderr_text());
}
