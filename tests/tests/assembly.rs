//! Random programs in assembly: with hooks they compute what they compute alone, and every function's calls
//! are as many as the program counted itself.
//!
//! `GPROFINJECT_FUZZ_PROGRAMS=1000 cargo test --release -p gprofinject-tests --test assembly` tries that many.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_tests::{assembly, build, generate, gprofdata, run};

const PROGRAMS: u64 = 12;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn random_programs() {
    let asked = std::env::var("GPROFINJECT_FUZZ_PROGRAMS").ok().and_then(|n| n.parse().ok());
    let mut failures = Vec::new();
    let first = generate::first_seed();
    for seed in first..first + asked.unwrap_or(PROGRAMS) {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = compare(folder.path(), seed) {
            failures.push(format!("seed {seed}: {error}"));
        }
        if failures.len() > 10 {
            break;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn compare(folder: &Path, seed: u64) -> Result<(), String> {
    let (c, text) = assembly::program(generate::random_numbers(seed));
    std::fs::write(folder.join("main.c"), c).unwrap();
    std::fs::write(folder.join("functions.s"), text).unwrap();
    let program = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder).args(["-O1", "-w", "main.c", "functions.s", "-o"]).arg(&program);
    if seed.is_multiple_of(2) {
        gcc.arg("-no-pie");
    }
    build::compile(gcc).map_err(|error| format!("{error:#}"))?;
    let alone = run::run(Command::new(&program), None, LIMIT).unwrap();
    if alone.code() != 0 {
        return Err(format!("fails by itself: {}", alone.code()));
    }
    // Some without neighbours to slide into.
    let left_out: &[&str] = if seed % 3 == 2 { &["-X", "f*7"] } else { &[] };
    let refused = refused(&program, left_out);
    let elf = Program::read(&program).unwrap();
    for hooks in Hooks::ALL {
        let gmon = folder.join("gmon.out");
        let _ = std::fs::remove_file(&gmon);
        let command =
            tool::command(&[&["-q", hooks.option()], left_out].concat(), &gmon, &program, &[]).unwrap();
        let ours = run::run(command, None, LIMIT).unwrap();
        if (ours.code(), &ours.stdout) != (0, &alone.stdout) {
            return Err(format!("{hooks:?}: other output, status {}: {}", ours.code(), ours.stderr_text()));
        }
        let mut calls: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, callee), count) in gprofdata::read(&gmon).unwrap().arcs {
            *calls.entry(callee).or_default() += count;
        }
        for line in alone.stdout_text().lines().filter(|line| line.starts_with('f')) {
            let (name, count) = line.split_once(' ').unwrap();
            let counted = elf.named(name).and_then(|f| calls.get(&f.address)).copied().unwrap_or(0);
            if counted.to_string() != count && !refused.contains(name) {
                return Err(format!("{hooks:?}: {counted} calls of {name}, not {count}"));
            }
        }
    }
    Ok(())
}

/// The functions that are not hooked with these options.
fn refused(program: &Path, options: &[&str]) -> HashSet<String> {
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.arg("--list").args(options).arg(program);
    let list = run::run(command, None, LIMIT).unwrap().stdout_text();
    let lines = list.lines().filter(|line| line.contains("refused:"));
    lines.filter_map(|line| line.split_whitespace().nth(2).map(String::from)).collect()
}
