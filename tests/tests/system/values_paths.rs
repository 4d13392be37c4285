//! `--values` with `--paths` and `--times`, and of a trace: against what the program (`tests/values/paths.c`) has logged itself.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use gprofinject_skip as skip;
use serde_json::Value;

use crate::values::Subject;

gprofinject_tests::trials! {
    together:
        every_path,
        each_level_of_recursion,
        a_static_program,
        a_killed_program,
        a_killed_gprofinject,
        a_program_that_executes_itself,
        a_full_tree,
        more_paths_than_are_kept,
        callers_of_measured_calls,
        a_trace,
        sums_of_runs,
        times_are_measured_too,
        a_live_view,
        what_is_missing_is_said;
}

const LIMIT: Duration = Duration::from_secs(120);

const SPEC: &str = "ask@arg1/i64,retval/i64;other@arg1/i32,retval/i32";

/// By function, argument, and path or caller: by value, how often it was seen.
type Seen = BTreeMap<[String; 3], BTreeMap<i64, u64>>;

/// Which of both the table is by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Recursive calls have the path of the outermost one.
    Path,
    /// They have paths of their own.
    WholePath,
    Caller,
}

/// Reads what the program has logged.
fn logged(output: &str, by: By) -> Seen {
    let mut seen = Seen::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [function, path, argument, result] = words[..] else { panic!("{line:?}") };
        let mut path: Vec<&str> = path.split(';').collect();
        match by {
            By::WholePath => {}
            By::Caller => path = path.split_off(path.len() - 1),
            By::Path => {
                let mut folded: Vec<&str> = Vec::new();
                for function in path {
                    match folded.iter().position(|known| *known == function) {
                        Some(at) => folded.truncate(at + 1),
                        None => folded.push(function),
                    }
                }
                path = folded;
            }
        }
        for (name, value) in [("arg1", argument), ("retval", result)] {
            let key = [function, name, &path.join(";")].map(str::to_owned);
            *seen.entry(key).or_default().entry(value.parse().unwrap()).or_default() += 1;
        }
    }
    seen
}

/// Reads a report, whose counts are all exact. Paths begin at `main` or `thread`.
fn reported(report: &Value, by: By) -> Seen {
    let mut seen = Seen::new();
    let text = |of: &Value| of["demangled"].as_str().unwrap().to_owned();
    for argument in report["values"].as_array().unwrap() {
        let (function, name) = (text(argument), argument["argument"].as_str().unwrap());
        // Those of a trace have no names.
        let name = name.replace("value1", "arg1");
        let parts = argument[if by == By::Caller { "callers" } else { "paths" }].as_array().unwrap();
        let mut calls = 0;
        for part in parts {
            let place = match part["path"].as_array() {
                None => text(part),
                Some(path) => {
                    assert_eq!(part["known"], "yes", "{part}");
                    let path: Vec<String> = path.iter().map(text).collect();
                    let begin = path.iter().position(|of| of == "main" || of == "thread").unwrap_or(0);
                    // In a static program, the functions of the C library have paths.
                    let own = path[begin..].iter().filter(|of| !of.contains("qsort") && !of.contains("msort"));
                    own.cloned().collect::<Vec<_>>().join(";")
                }
            };
            let values = seen.entry([function.clone(), name.clone(), place]).or_default();
            assert_eq!(part["other_calls"], 0, "{part}");
            calls += part["calls"].as_u64().unwrap();
            for value in part["values"].as_array().unwrap() {
                assert_eq!(value["error"], 0, "{part}");
                *values.entry(value["value"].as_i64().unwrap()).or_default() += value["calls"].as_u64().unwrap();
            }
        }
        assert_eq!(argument["calls"], calls, "{function} {name}");
    }
    seen
}

/// Returns `paths.c`, built with these flags.
fn subject(compiler: &str, flags: &str) -> Subject {
    Subject::new(compiler, "paths.c", flags)
}

/// Returns what gmon answers in JSON in the subject's folder.
fn json(subject: &Subject, args: &[&str]) -> Value {
    let outcome = subject.gmon(args);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    serde_json::from_str(&outcome.stdout_text()).unwrap()
}

/// Runs the program with these options and arguments, and compares all values by path and by caller.
fn compare(compiler: &str, flags: &str, options: &[&str], args: &[&str], by: By) {
    if !skip::have(compiler) {
        return skip::skipped("values_paths", &format!("no {compiler}"));
    }
    let subject = subject(compiler, flags);
    let outcome = subject.run(&[options, &["--values", SPEC]].concat(), args);
    let report = json(&subject, &["values", "--paths", "--json"]);
    for by in [by, By::Caller] {
        let (own, found) = (logged(&outcome.stdout_text(), by), reported(&report, by));
        assert!(own.len() > 8, "{own:?}");
        assert_eq!(found, own, "{compiler} {flags} {args:?}: {}", outcome.stderr_text());
    }
}

fn every_path() {
    for compiler in ["gcc", "clang"] {
        for flags in ["-O0", "-O2", "-O2 -no-pie -fno-pie", "-O1 -fcf-protection"] {
            compare(compiler, flags, &["--paths"], &["all", "tails", "jumps", "threads", "fork"], By::Path);
        }
    }
}

fn each_level_of_recursion() {
    for flags in ["-O0", "-O2"] {
        compare("gcc", flags, &["--paths", "--no-fold"], &["all", "tails", "jumps", "threads"], By::WholePath);
    }
}

fn a_static_program() {
    compare("gcc", "-O2 -static", &["--paths"], &["all", "tails", "jumps", "threads"], By::Path);
}

/// What was counted survives.
fn a_killed_program() {
    compare("gcc", "-O2", &["--paths"], &["all", "killed"], By::Path);
}

/// The program goes on, and what it has counted is recovered at its end, with the names and paths of values.
fn a_killed_gprofinject() {
    for options in [&[][..], &["--paths"]] {
        let subject = subject("gcc", "-O2");
        let outcome = subject.run(&[&["--values", SPEC], options].concat(), &["all", "orphan", "all"]);
        let file = subject.path("gmon.pb.gz");
        let patience = std::time::Instant::now() + LIMIT;
        while !file.exists() && std::time::Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
        let args: &[&str] = if options.is_empty() { &["values", "--json"] } else { &["values", "--paths", "--json"] };
        let report = json(&subject, args);
        // The program has written the rest to a file.
        let log = outcome.stdout_text() + &fs::read_to_string(subject.path("orphan.log")).unwrap();
        if options.is_empty() {
            // What `qsort` calls has no caller that is hooked.
            let calls = |seen: &Seen| seen.values().flat_map(BTreeMap::values).sum::<u64>();
            assert_eq!(calls(&reported(&report, By::Caller)), calls(&logged(&log, By::Caller)));
        } else {
            assert_eq!(reported(&report, By::Path), logged(&log, By::Path));
        }
    }
}

fn a_program_that_executes_itself() {
    compare("gcc", "-O2", &["--paths"], &["all", "exec"], By::Path);
}

/// What has no node of its own is known by caller all the same.
fn a_full_tree() {
    let subject = subject("gcc", "-O2");
    let outcome = subject.run(&["--paths", "--max-paths", "6", "--values", SPEC], &["all", "jumps"]);
    let report = json(&subject, &["values", "--paths", "--json"]);
    let own = logged(&outcome.stdout_text(), By::Caller);
    assert_eq!(reported(&report, By::Caller), own);
    for argument in report["values"].as_array().unwrap() {
        let of = |known: &str| {
            let paths = argument["paths"].as_array().unwrap().iter().filter(|path| path["known"] == known);
            paths.map(|path| path["calls"].as_u64().unwrap()).sum::<u64>()
        };
        assert!(of("rest") > 0, "{argument}");
        assert_eq!(of("rest") + of("yes"), argument["calls"].as_u64().unwrap(), "{argument}");
    }
    let text = subject.gmon(&["values", "--paths"]).stdout_text();
    assert!(text.contains("[other calls]: mean"), "{text}");
    // The same holds for the calls themselves.
    let graph = json(&subject, &["graph", "--json"]);
    let mut calls: BTreeMap<[String; 2], u64> = BTreeMap::new();
    for ([function, name, caller], values) in &own {
        if name == "arg1" {
            calls.insert([caller.clone(), function.clone()], values.values().sum());
        }
    }
    for (arc, expected) in &calls {
        assert_eq!(calls_of(&graph, arc), *expected, "{arc:?}: {graph}");
    }
}

/// Returns the calls of a function by another one, in a report of arcs.
fn calls_of(graph: &Value, [caller, function]: &[String; 2]) -> u64 {
    let functions = graph["functions"].as_array().unwrap().iter();
    let callers = functions.filter(|of| of["demangled"] == *function).flat_map(|of| of["callers"].as_array().unwrap());
    callers.filter(|of| of["demangled"] == *caller).map(|of| of["calls"].as_u64().unwrap()).sum()
}

/// A thread has records of so many callers; the values of further ones are together.
fn more_paths_than_are_kept() {
    let subject = subject("gcc", "-O1");
    let outcome =
        subject.run(&["--paths", "--no-fold", "--values", "ask@arg1/i64"], &["forest"]);
    let own = outcome.stdout_text().lines().count() as u64;
    assert_eq!(own, 1 << 14);
    let report = json(&subject, &["values", "--paths", "--json"]);
    let argument = &report["values"][0];
    assert_eq!((&argument["calls"], &argument["sum"]), (&own.into(), &(own / 2 * 3).into()));
    let paths = argument["paths"].as_array().unwrap();
    let rest: Vec<&Value> = paths.iter().filter(|path| path["known"] == "rest").collect();
    let [rest] = rest[..] else { panic!("{} paths without a place", rest.len()) };
    assert!(rest["calls"].as_u64().unwrap() < own / 2, "{}", rest["calls"]);
    assert!(paths.len() > 8000, "{}", paths.len());
    assert!(paths.iter().filter(|path| path["known"] == "yes").all(|path| path["calls"] == 1));
}

fn callers_of_measured_calls() {
    let subject = subject("gcc", "-O2");
    let outcome = subject.run(&["--times", "--values", SPEC], &["all", "tails", "jumps", "threads"]);
    let report = json(&subject, &["values", "--json"]);
    assert_eq!(reported(&report, By::Caller), logged(&outcome.stdout_text(), By::Caller));
    let refused = subject.gmon(&["values", "--paths"]);
    assert!(refused.code() == 2 && refused.stderr_text().contains("not known by path"), "{}", refused.stderr_text());
}

/// The same tables follow from the events of a trace.
fn a_trace() {
    let subject = subject("gcc", "-O2");
    let args = ["all", "tails", "jumps", "threads", "fork"];
    let outcome = subject.run(&["--trace", "t", "--args", SPEC], &args);
    let report = json(&subject, &["trace", "t", "--values", "--paths", "--json"]);
    for by in [By::Path, By::Caller] {
        assert_eq!(reported(&report, by), logged(&outcome.stdout_text(), by));
    }
    let text = subject.gmon(&["trace", "t", "--values", "-f", "other", "--histogram"]).stdout_text();
    assert!(text.contains("other value1: ") && text.contains('#') && !text.contains("ask"), "{text}");
    subject.run(&["--trace", "t"], &["jumps"]);
    let refused = subject.gmon(&["trace", "t", "--values"]);
    assert!(refused.code() == 2 && refused.stderr_text().contains("no values of arguments"), "{}", refused.stderr_text());
}

fn sums_of_runs() {
    let subject = subject("gcc", "-O2");
    let mut log = String::new();
    for (name, args) in [("0.pb.gz", ["all", "jumps"]), ("1.pb.gz", ["tails", "all"])] {
        log += &subject.run(&["--paths", "--values", SPEC], &args).stdout_text();
        fs::rename(subject.path("gmon.pb.gz"), subject.path(name)).unwrap();
    }
    for merge in [&["merge", "-o", "sum.pb.gz", "0.pb.gz", "1.pb.gz"][..], &["merge", "-o", "sum.pb.gz", "1.pb.gz", "0.pb.gz"]] {
        let _ = fs::remove_file(subject.path("sum.pb.gz"));
        assert_eq!(subject.gmon(merge).code(), 0);
        let report = json(&subject, &["values", "--paths", "--json", "sum.pb.gz"]);
        for by in [By::Path, By::Caller] {
            assert_eq!(reported(&report, by), logged(&log, by));
        }
    }
}

/// Values change neither the calls by path nor what is shown of their times.
fn times_are_measured_too() {
    let subject = subject("gcc", "-O2");
    let mut counts = Vec::new();
    for options in [&["--paths"][..], &["--paths", "--values", SPEC], &["--paths", "--values", "ask@arg1/i64"]] {
        subject.run(options, &["all", "tails", "jumps"]);
        let paths = subject.gmon(&["paths", "--json"]);
        let paths: Value = serde_json::from_str(&paths.stdout_text()).unwrap();
        let mut rows: Vec<(u64, String, u64)> = Vec::new();
        let mut inclusive = 0;
        for node in paths["paths"].as_array().unwrap_or_else(|| panic!("{paths}")) {
            let of = |name: &str| node[name].as_u64().unwrap();
            inclusive = inclusive.max(of("inclusive_ns"));
            rows.push((of("depth"), node["demangled"].to_string(), of("calls")));
        }
        assert!(inclusive > 0, "{paths}");
        rows.sort();
        counts.push(rows);
    }
    assert!(counts[0].len() > 15, "{counts:?}");
    assert!(counts[1] == counts[0] && counts[2] == counts[0], "{counts:#?}");
}

fn a_live_view() {
    let subject = subject("gcc", "-O2");
    let outcome = subject.run(&["--plain=0.1", "--paths", "--values", SPEC], &["all", "many", "forest"]);
    let said = outcome.stdout_text() + &outcome.stderr_text();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" ask arg1  [mean ")).collect();
    let last = lines.last().unwrap_or_else(|| panic!("{said}"));
    let calls: u64 = last.split_whitespace().next().unwrap().parse().unwrap();
    let own = said.lines().filter(|line| line.starts_with("ask\t")).count() as u64;
    assert!(own > 16_000 && calls == own, "{calls} {own}: {last}");
}

fn what_is_missing_is_said() {
    let subject = subject("gcc", "-O2");
    subject.run(&["--values", SPEC], &["all"]);
    let refused = subject.gmon(&["values", "--paths"]);
    let said = refused.stderr_text();
    assert!(refused.code() == 2 && said.contains("not known by path") && said.contains("gprofinject --paths --values"), "{said}");
}
