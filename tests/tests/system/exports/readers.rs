//! What other tools print of profiles and exports, as numbers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Returns what a command prints.
pub(crate) fn text(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// The rows of gprof's flat profile: calls that are not recursive and seconds in the function itself, by name. Several functions
/// may have one name.
pub(crate) fn gprof_flat(program: &Path, profile: &Path) -> BTreeMap<String, Vec<(u64, f64)>> {
    let mut command = Command::new("gprof");
    command.args(["-b", "-p", "--no-demangle"]).arg(program).arg(profile);
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for line in text(command).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (calls, seconds, name) = match words[..] {
            [_, _, seconds, calls, _, _, name] => (calls.parse().unwrap_or(u64::MAX), seconds, name),
            [_, _, seconds, name] => (0, seconds, name),
            _ => continue,
        };
        if let (Ok(seconds), true) = (seconds.parse(), calls != u64::MAX) {
            rows.entry(name.to_owned()).or_default().push((calls, seconds));
        }
    }
    assert!(rows.len() > 5, "{rows:?}");
    rows
}

/// The callers and callees in gprof's call graph: the number of calls and the seconds with children of each arc, by names.
pub(crate) fn gprof_arcs(program: &Path, profile: &Path) -> BTreeMap<(String, String), Vec<(u64, f64)>> {
    let mut command = Command::new("gprof");
    command.args(["-b", "-q", "--no-demangle"]).arg(program).arg(profile);
    let printed = text(command);
    let graph = printed.split_once("called     name\n").unwrap().1;
    let graph = graph.split("\n\n").next().unwrap();
    let mut arcs: BTreeMap<(String, String), Vec<_>> = BTreeMap::new();
    for entry in graph.split("-----------------------------------------------\n") {
        let lines: Vec<&str> = entry.lines().collect();
        let Some(own) = lines.iter().position(|line| line.starts_with('[')) else { continue };
        // The name is before the number at the end of the line; a cycle has two more words.
        let name = |line: &str| {
            let line = line.rsplit_once(" [").unwrap().0.trim_end();
            let line = line.split(" <cycle").next().unwrap();
            line.rsplit(' ').next().unwrap().to_owned()
        };
        if lines[own].contains("as a whole") {
            continue;
        }
        let callee = name(lines[own]);
        for line in lines[..own].iter().filter(|line| !line.contains("<spontaneous>")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (seconds, count) = match words[..] {
                [own, children, count, ..] if own.contains('.') => {
                    (own.parse::<f64>().unwrap() + children.parse::<f64>().unwrap(), count)
                }
                [count, ..] => (0.0, count),
                _ => panic!("{line}"),
            };
            let count = count.split('/').next().unwrap().parse().unwrap();
            arcs.entry((name(line), callee.clone())).or_default().push((count, seconds));
        }
    }
    assert!(arcs.len() > 5, "{printed}");
    arcs
}

/// gprof prints hundredths of seconds.
pub(crate) fn rounds_to(ns: u64, seconds: f64, parts: f64) -> bool {
    (ns as f64 / 1e9 - seconds).abs() <= 0.00501 * parts
}

/// Returns the executed instructions of each function of an object, as callgrind_annotate prints them.
pub(crate) fn callgrind_instructions(file: &Path, object: &str) -> BTreeMap<String, u64> {
    let mut command = Command::new("callgrind_annotate");
    command.args(["--threshold=100", "--auto=no", "--show-percs=no", "--show=Ir"]).arg(file);
    let printed = text(command);
    let mut costs: BTreeMap<String, u64> = BTreeMap::new();
    for line in printed.lines().filter(|line| line.contains(object)) {
        let (cost, place) = line.trim().split_once(' ').unwrap();
        // Zero is a dot.
        let cost = if cost == "." { "0" } else { cost };
        let name = place.trim().rsplit_once(" [").unwrap().0.rsplit(':').next().unwrap();
        // Callgrind names a recursive call of a cycle by its depth, and a function whose address is in its name by
        // nothing.
        let name = name.split('\'').next().unwrap().split(" [").next().unwrap();
        *costs.entry(name.to_owned()).or_default() += cost.replace(',', "").parse::<u64>().unwrap();
    }
    costs
}

/// Returns the flat values of `go tool pprof -top`, by function.
pub(crate) fn pprof_top(file: &Path, index: &str, unit: &str) -> BTreeMap<String, u64> {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", "-edgefraction=0"]);
    command.args([&format!("-sample_index={index}"), &format!("-unit={unit}"), "-symbolize=none"]).arg(file);
    let printed = text(command);
    let rows = printed.split_once("cum%\n").unwrap_or_else(|| panic!("{printed}")).1;
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let value = words[0].trim_end_matches(|c: char| c.is_alphabetic()).parse::<f64>().unwrap();
        let name = words[5..].join(" ");
        *found.entry(name.trim_end_matches(" (inline)").to_owned()).or_default() += value as u64;
    }
    found
}

/// Checks the tables of a Firefox profile: columns of one length, and indexes into other tables.
pub(crate) fn firefox(file: &Path, all: u64, of_nodes: bool) {
    let profile: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(profile["meta"]["preprocessedProfileVersion"], 55);
    let libs = profile["libs"].as_array().unwrap();
    assert!(libs.iter().any(|lib| lib["name"] == "prog" && lib["breakpadId"].as_str().unwrap().len() == 33));
    let mut sum = 0.0;
    for thread in profile["threads"].as_array().unwrap() {
        let length = |table: &str| number(&thread[table]["length"]);
        for table in ["frameTable", "funcTable", "stackTable", "samples", "resourceTable", "nativeSymbols"] {
            for (column, values) in thread[table].as_object().unwrap() {
                if let Some(values) = values.as_array() {
                    assert_eq!(values.len() as u64, length(table), "{table}.{column}");
                }
            }
        }
        let strings = thread["stringArray"].as_array().unwrap().len() as u64;
        for (table, column, most) in [
            ("samples", "stack", length("stackTable")),
            ("stackTable", "frame", length("frameTable")),
            ("stackTable", "prefix", length("stackTable")),
            ("frameTable", "func", length("funcTable")),
            ("frameTable", "nativeSymbol", length("nativeSymbols")),
            ("funcTable", "name", strings),
            ("funcTable", "fileName", strings),
            ("funcTable", "resource", length("resourceTable")),
            ("resourceTable", "lib", libs.len() as u64),
            ("nativeSymbols", "libIndex", libs.len() as u64),
        ] {
            for value in thread[table][column].as_array().unwrap() {
                let valid = value.is_null() || value == -1 || value.as_u64().is_some_and(|index| index < most);
                assert!(valid, "{table}.{column}: {value}");
            }
        }
        for (index, prefix) in thread["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
            assert!(prefix.is_null() || number(prefix) < index as u64);
        }
        assert_eq!(thread["samples"]["weightType"], "tracing-ms");
        sum += thread["samples"]["weight"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).sum::<f64>();
        let depths = thread["frameTable"]["inlineDepth"].as_array().unwrap();
        assert!(of_nodes || depths.iter().any(|depth| number(depth) == 1), "no inlined frame");
    }
    assert!((sum * 1e6 - all as f64).abs() <= 1000.0 + all as f64 / 1000.0, "{sum} {all}");
}
