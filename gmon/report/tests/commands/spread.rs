//! `gmon flat --spread`, against the flat profile that gprof prints of each process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use gmon::{Arc, Format, HistogramBuilder, Profile};
use serde_json::Value;

use crate::example::example;
use crate::support::{Compiled, Folder, bytes};

const FUNCTIONS: [&str; 5] = ["even", "odd", "after", "far", "last"];

fn gmon(folder: &Folder, args: &[&str], files: &[PathBuf]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    let output = command
        .args(["flat", "--spread"])
        .args(args)
        .args(files)
        .current_dir(&folder.0)
        .output()
        .expect("gmon runs");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the profile of a process, in which not every function is called.
fn profile(prog: &Compiled, rank: u64) -> Profile {
    let mut samples = HistogramBuilder::new(prog.address("even")..prog.address("last") + 1, 1);
    samples = samples.functions(prog.starts());
    let mut arcs = Vec::new();
    for (index, name) in (0..).zip(FUNCTIONS) {
        let value = (rank * 7 + index * 13) % 10;
        if value > 3 {
            samples.add(prog.address(name), value * 10);
            arcs.push(Arc { from: prog.address("main") + 1, to: prog.address(name), count: value * 1000 });
        }
    }
    Profile { histograms: samples.build().histograms, arcs, ..Profile::new(Format::LITTLE_64) }
}

#[test]
fn as_gprof_sees_each_process() {
    let folder = Folder::new("spread");
    let prog = folder.compile(&[]);
    let ranks: Vec<u64> = (0..9).collect();
    let files: Vec<PathBuf> = ranks
        .iter()
        .map(|rank| folder.write(&format!("gmon.out.rank{rank}"), &bytes(&profile(&prog, *rank))))
        .collect();
    // gprof's seconds and calls of each function in each process.
    let flats: Vec<BTreeMap<String, (f64, u64)>> = files.iter().map(|file| prog.flat(&[file])).collect();
    let all: Vec<PathBuf> = std::iter::once(prog.path.clone()).chain(files.iter().cloned()).collect();
    let printed = gmon(&folder, &["--json"], &all);
    let mut one = Command::new("taskset");
    one.args(["1", env!("CARGO_BIN_EXE_gmon"), "flat", "--spread", "--json"]).args(&all);
    // The only processor may not be the first one.
    let one = one.output().expect("taskset runs");
    let one = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(one.is_empty() || one == printed, "the same on any number of threads");
    let table: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(table["processes"], 9);
    let rows = table["functions"].as_array().expect("functions");
    for name in FUNCTIONS {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        for (key, pick) in
            [("calls", (|of| of.1) as fn((f64, u64)) -> u64), ("self_ns", |of| (of.0 * 1e9) as u64)]
        {
            let values: Vec<u64> =
                flats.iter().map(|flat| flat.get(name).map_or(0, |of| pick(*of))).collect();
            let (min, max) = (*values.iter().min().expect("9"), *values.iter().max().expect("9"));
            let mean = values.iter().sum::<u64>() as f64 / 9.0;
            let found = &row[key];
            assert_eq!(
                (found["min"].as_u64(), found["max"].as_u64()),
                (Some(min), Some(max)),
                "{name} {key}"
            );
            let close = |a: &Value, b: f64| (a.as_f64().expect("a number") - b).abs() < 1e-9 * b.max(1.0);
            assert!(
                close(&found["mean"], mean) && close(&found["imbalance"], max as f64 / mean),
                "{found} {mean}"
            );
            let first = values.iter().position(|value| *value == max).expect("one of them");
            assert_eq!(found["max_rank"], ranks[first].to_string(), "{name} {key}");
        }
    }
    let text = gmon(&folder, &["--of", "calls", "--sort", "imbalance", "-n", "2"], &all);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("calls of 9 processes", 7), "{text}");
    assert!(lines[6].ends_with(" more; -n 0 shows all"), "{text}");
    assert!(lines[5].trim_end().ends_with("total"), "{text}");
    let one = gmon(&folder, &["-f", "far"], &all);
    assert!(
        one.starts_with("self time of 9 processes\n") && one.contains("far") && !one.contains("last"),
        "{one}"
    );
}

#[test]
fn of_measured_times() {
    let folder = Folder::new("spread-times");
    let files: Vec<PathBuf> = (1..=3)
        .map(|rank: u64| {
            let mut run = example(false);
            run.rows
                .iter_mut()
                .for_each(|row| (row.calls, row.self_ns) = (row.calls * rank, row.self_ns * rank));
            folder.write(&format!("gmon.rank{rank}.pb.gz"), &run.write())
        })
        .collect();
    let table: Value = serde_json::from_str(&gmon(&folder, &["--json"], &files)).expect("JSON");
    let once = |pick: fn(&gmon_run::FunctionTimes) -> u64| example(false).rows.iter().map(pick).sum::<u64>();
    for (key, sum) in [("calls", once(|row| row.calls)), ("self_ns", once(|row| row.self_ns))] {
        let total = &table["total"][key];
        assert_eq!((total["min"].as_u64(), total["max"].as_u64()), (Some(sum), Some(3 * sum)));
        assert_eq!((total["imbalance"].as_f64(), total["max_rank"].as_str()), (Some(1.5), Some("3")));
    }
}

/// A program before the recordings selects it, and a library its functions.
#[test]
fn of_a_program_or_a_library() {
    let folder = Folder::new("spread-library");
    let id = |first: &str| format!("-Wl,--build-id=0x{first}dcba987654321001234567");
    let program = folder.compile(&[&id("10")]).path;
    let library = folder.build(
        "lib.c",
        "int f(void) { return 1; }",
        &["-shared", "-fPIC", &id("11"), "-Wl,-soname,lib"],
    );
    let library = {
        let path = folder.file("libc.so.6");
        std::fs::rename(library, &path).expect("a library");
        path
    };
    let mut run = example(false);
    let bytes = |first: u8| vec![first, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10, 1, 0x23, 0x45, 0x67];
    (run.modules[0].build_id, run.modules[1].build_id) = (bytes(0x10), bytes(0x11));
    let files = [1, 2].map(|rank| folder.write(&format!("gmon.rank{rank}.pb.gz"), &run.write())).to_vec();
    let names = |subject: &PathBuf| -> Vec<String> {
        let files: Vec<PathBuf> = std::iter::once(subject).chain(&files).cloned().collect();
        let table: Value = serde_json::from_str(&gmon(&folder, &["--json"], &files)).expect("JSON");
        let functions = table["functions"].as_array().expect("functions").clone();
        let name = |function: &Value| function["name"].as_str().expect("a name").to_owned();
        let mut names: Vec<String> = functions.iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(names(&program), ["_Z5parsei", "libc_read", "main", "work"]);
    assert_eq!(names(&library), ["libc_read"]);
    // And of one run, in all tables.
    let shown = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
        let output =
            command.args(args).arg(&library).arg(&files[0]).current_dir(&folder.0).output().expect("gmon");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let flat = shown(&["flat"]);
    assert!(flat.contains("  libc_read  libc.so.6\n") && !flat.contains("main"), "{flat}");
    assert!(flat.ends_with("  total\n") && flat.contains("\n  6.94  300.0 ms "), "{flat}");
    let graph = shown(&["graph"]);
    assert!(graph.contains("[1]") && !graph.contains("[2]") && graph.contains("      parse\n"), "{graph}");
}

#[test]
fn files_that_do_not_fit() {
    let folder = Folder::new("spread-errors");
    let prog = folder.compile(&[]);
    let file = folder.write("gmon.out.rank0", &bytes(&profile(&prog, 1)));
    for (files, message) in [
        (vec![prog.path.clone()], "a program without profiles"),
        (vec![file.clone()], "the names are in the program"),
        (vec![prog.path.clone(), file.clone(), folder.file("missing")], "missing: No such file"),
        (vec![prog.path.clone(), prog.path.clone()], "neither a program nor a profile"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
        let output = command.args(["flat", "--spread"]).args(&files).output().expect("gmon runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(message), "{said}");
    }
}
