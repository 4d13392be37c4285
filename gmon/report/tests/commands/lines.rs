//! `gmon lines` against gcov: two ways to count the same source.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::truth::{Truth, have, is_own};
use crate::support::{Folder, bytes, run};

/// Returns gcov's counts of a source, which is built again with --coverage. Lines without a count have none.
/// Counts of template instances are added.
fn gcov(folder: &Folder, name: &str, source: &str, options: &[&str]) -> BTreeMap<u32, u64> {
    let folder = Folder(folder.file("gcov"));
    let _ = std::fs::remove_dir_all(&folder.0);
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let program = folder.build(name, source, &[options, &["--coverage"]].concat());
    run(Command::new(&program).current_dir(&folder.0));
    let stem = program.file_name().expect("a name").to_string_lossy().into_owned();
    let notes = std::fs::read_dir(&folder.0).expect("the folder").filter_map(|entry| {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        name.ends_with(".gcno").then_some(name)
    });
    let notes: Vec<_> = notes.filter(|note| note.starts_with(&stem)).collect();
    let output = run(Command::new("gcov").args(["--json-format", "-t"]).args(notes).current_dir(&folder.0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut counts = BTreeMap::new();
    for unit in text.lines().filter(|line| line.starts_with('{')) {
        let unit: serde_json::Value = serde_json::from_str(unit).expect("gcov's JSON");
        for file in unit["files"].as_array().expect("files") {
            if Path::new(file["file"].as_str().expect("a path")).file_name() != Some(name.as_ref()) {
                continue;
            }
            for line in file["lines"].as_array().expect("lines") {
                let number = line["line_number"].as_u64().expect("a number") as u32;
                *counts.entry(number).or_insert(0) += line["count"].as_u64().expect("a count");
            }
        }
    }
    counts
}

/// Returns gmon's counts of the same file.
fn ours(program: &Path, profile: &Path, name: &str) -> BTreeMap<u32, u64> {
    let output = run(Command::new(env!("CARGO_BIN_EXE_gmon"))
        .args(["lines", "--json", "--file", name])
        .arg(program)
        .arg(profile));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lines = report["modules"][0]["files"][0]["lines"].as_array().expect("lines").iter();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    lines.map(|line| (number(&line["line"]) as u32, number(&line["count"]))).collect()
}

/// Compares the counts of all lines that have both, except for the lines that are known to differ. gcov
/// counts some lines that have no code: labels, and a function's name above its brace.
fn compare(name: &str, source: &str, known: &[u32]) {
    if !have("valgrind") || !have("gcov") {
        return;
    }
    let folder = Folder::new(&format!("gcov-{name}"));
    let program = folder.build(name, source, &["-O0"]);
    let truth = Truth::of(&folder, &program, &[]);
    let file = folder.write("gmon.out", &bytes(&truth.profile(is_own)));
    let (gcov, ours) = (gcov(&folder, name, source, &["-O0"]), ours(&program, &file, name));
    let text: Vec<_> = source.lines().collect();
    let mut differ = Vec::new();
    for (line, count) in &gcov {
        if let Some(ours) = ours.get(line)
            && ours != count
        {
            let line_text = text[*line as usize - 1];
            eprintln!("{name}:{line}: gcov {count}, ours {ours}: {line_text}");
            differ.push(*line);
        }
    }
    let both = gcov.keys().filter(|line| ours.contains_key(line)).count();
    assert!(both > 40 && gcov.len() - both < gcov.len() / 4, "{gcov:?} {ours:?}");
    assert_eq!(differ, known);
}

#[test]
fn loops_and_switches() {
    compare("loops.c", include_str!("programs/loops.c"), &[]);
}

/// After setjmp, which returns twice, the line ran twice.
#[test]
fn jumps_and_conditions() {
    compare("shapes.c", include_str!("programs/shapes.c"), &[112]);
}

#[test]
fn templates_and_exceptions() {
    compare("templates.cc", include_str!("programs/templates.cc"), &[]);
}
