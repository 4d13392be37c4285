//! Random programs in assembly: with hooks they compute the same as alone, and the calls of every function
//! are as many as the program has counted itself.
//!
//! `GPROFINJECT_FUZZ_PROGRAMS=1000 cargo test --release -p gprofinject-tests --test system assembly::` tries
//! that many.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_skip as skip;
use gprofinject_tests::trials::{Company, Trial};
use gprofinject_tests::{assembly, compile, extent, generate, gprofdata, run};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns a trial for each program.
pub(crate) fn trials() -> Vec<Trial> {
    let first = generate::first_seed();
    let seeds = first..first + extent::times("GPROFINJECT_FUZZ_PROGRAMS", 12, 500);
    let mut all: Vec<Trial> = seeds.clone().map(|seed| trial("random_program", seed, &[Engine::Builtin])).collect();
    match tool::frida() {
        Ok(_) => {
            let engines = &[Engine::FridaOrBuiltin, Engine::Frida];
            all.extend(seeds.map(|seed| trial("random_program_by_frida", seed, engines)));
        }
        Err(why) => {
            let why = format!("{why:#}");
            let skip = move || skip::skipped("assembly::random_program_by_frida", &why);
            all.push(Trial::new("assembly::random_program_by_frida".to_owned(), Company::Together, skip));
        }
    }
    all
}

fn trial(name: &str, seed: u64, engines: &'static [Engine]) -> Trial {
    let name = format!("assembly::{name}::{seed}");
    Trial::new(name, Company::Together, move || {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = compare(folder.path(), seed, engines) {
            panic!("seed {seed}: {error}");
        }
    })
}

fn compare(folder: &Path, seed: u64, engines: &[Engine]) -> Result<(), String> {
    let (c, text) = assembly::program(generate::random_numbers(seed));
    std::fs::write(folder.join("main.c"), c).unwrap();
    std::fs::write(folder.join("functions.s"), text).unwrap();
    let program = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder).args(["-O1", "-w", "main.c", "functions.s", "-o"]).arg(&program);
    if seed.is_multiple_of(2) {
        gcc.arg("-no-pie");
    }
    compile::compile(gcc).map_err(|error| format!("{error:#}"))?;
    let alone = run::run(Command::new(&program), None, LIMIT).unwrap();
    if alone.code() != 0 {
        return Err(format!("fails by itself: {}", alone.code()));
    }
    // Some functions have no neighbours into which they could slide.
    let left_out: &[&str] = if seed % 3 == 2 { &["-X", "f*7"] } else { &[] };
    let elf = Program::read(&program).unwrap();
    let ways = engines.iter().flat_map(|&engine| Hooks::ALL.map(|hooks| (engine, hooks)));
    for (engine, hooks) in ways {
        let refused = refused(engine, &program, left_out);
        let gmon = folder.join("gmon.out");
        let _ = std::fs::remove_file(&gmon);
        let options = [&["-q", hooks.option()], left_out].concat();
        let command = tool::command_by(engine, &options, &gmon, &program, &[]).unwrap();
        let ours = run::run(command, None, LIMIT).unwrap();
        if (ours.code(), &ours.stdout) != (0, &alone.stdout) {
            let (status, said) = (ours.code(), ours.stderr_text());
            return Err(format!("{engine:?}, {hooks:?}: other output, status {status}: {said}"));
        }
        let mut calls: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, callee), count) in gprofdata::read(&gmon).unwrap().arcs {
            *calls.entry(callee).or_default() += count;
        }
        for line in alone.stdout_text().lines().filter(|line| line.starts_with('f')) {
            let (name, count) = line.split_once(' ').unwrap();
            let counted = elf.named(name).and_then(|f| calls.get(&f.address)).copied().unwrap_or(0);
            if counted.to_string() != count && !refused.contains(name) {
                return Err(format!("{engine:?}, {hooks:?}: {counted} calls of {name}, not {count}"));
            }
        }
    }
    Ok(())
}

/// Returns the functions that are not hooked with these options.
fn refused(engine: Engine, program: &Path, options: &[&str]) -> HashSet<String> {
    let mut command = tool::uncached(engine.gprofinject().unwrap());
    command.args([engine.option(), "--list"]).args(options).arg(program);
    let list = run::run(command, None, LIMIT).unwrap().stdout_text();
    let lines = list.lines().filter(|line| line.contains("refused:"));
    lines.filter_map(|line| line.split_whitespace().nth(2).map(String::from)).collect()
}
