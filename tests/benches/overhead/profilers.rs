//! Programs built for another profiler, with the runtime of that profiler and with gprofinject.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::{compile, gprofdata, run, tool};

use crate::calls::real;
use crate::measure::{Cost, LIMIT, Way, Work, alternate};

/// The ways to build a program, with their flags.
const BUILDS: [(&str, &[&str]); 5] = [
    ("unbuilt", &[]),
    ("-pg", &["-pg"]),
    ("-pg -mfentry", &["-pg", "-mfentry"]),
    ("-fpatchable-function-entry=5", &["-fpatchable-function-entry=5"]),
    ("-finstrument-functions", &["-finstrument-functions"]),
];

const WAYS: [(&str, Way); 3] =
    [("alone", Way::Plain), ("ours, both", Way::Both), ("ours, entry", Way::Entry)];

pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    const MILLIONS: &str = "30";
    let calls: f64 = MILLIONS.parse::<f64>().context("a number")? * 1e6;
    heading("threads");
    let mut programs = Vec::new();
    for (n, (name, flags)) in BUILDS.iter().enumerate() {
        let program = folder.join(format!("built-{n}"));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-w", "-pthread"]).args(*flags).arg("-o").arg(&program);
        gcc.arg(tool::folder().join("data/threads.c"));
        compile::compile(gcc)?;
        programs.push((*name, program));
    }
    for threads in ["1", "2", "8"] {
        let args = [threads, MILLIONS].map(String::from);
        let works: Vec<(&str, Work)> = programs
            .iter()
            .map(|(name, program)| {
                (*name, Work { program: program.clone(), args: args.to_vec(), stdin: None })
            })
            .collect();
        rows(threads, &works, calls * threads.parse::<f64>().context("a number")?, "leaf", rounds, folder)?;
    }
    match tool::corpus() {
        Ok(corpus) => {
            heading("program");
            let lua = real("lua", corpus, folder)?;
            let calls = lua.calls()?;
            let works = [("unbuilt", lua.plain), ("-pg", lua.pg)];
            rows("lua", &works, calls as f64, "", rounds, folder)?;
        }
        Err(error) => skip::skipped("lua, built for profiling", &format!("no corpus: {error:#}")),
    }
    Ok(())
}

fn heading(first: &str) {
    println!("\n| {first} | built with | how | CPU s | wall s | extra ns/call | counted % |");
    println!("|---|---|---|---:|---:|---:|---:|");
}

/// Returns what each case costs in addition to the first one alone, and how many calls of `counted` its
/// profile has.
fn rows(
    label: &str,
    works: &[(&str, Work)],
    calls: f64,
    counted: &str,
    rounds: usize,
    folder: &Path,
) -> Result<()> {
    let cases: Vec<(&Work, Way)> =
        works.iter().flat_map(|(_, work)| WAYS.iter().map(move |(_, way)| (work, *way))).collect();
    let costs: Vec<Cost> = alternate(&cases, rounds, folder)?;
    let base = costs.first().context("no case")?.cpu.as_secs_f64();
    let rows = works.iter().flat_map(|(name, _)| WAYS.iter().map(move |(how, _)| (name, how)));
    for (((name, how), cost), (work, way)) in rows.zip(&costs).zip(&cases) {
        let share = match count(work, *way, counted, folder)? {
            Some(count) => format!("{:.1}", count as f64 / calls * 100.0),
            None => String::new(),
        };
        println!(
            "| {label} | {name} | {how} | {:.3} | {:.3} | {:.2} | {share} |",
            cost.cpu.as_secs_f64(),
            cost.wall.as_secs_f64(),
            (cost.cpu.as_secs_f64() - base) / calls * 1e9,
        );
    }
    Ok(())
}

/// Returns the calls of a function in the profile of one more run, or `None` if that leaves no profile.
fn count(work: &Work, way: Way, function: &str, folder: &Path) -> Result<Option<u64>> {
    let file = folder.join("gmon.out");
    let _ = std::fs::remove_file(&file);
    if function.is_empty() {
        return Ok(None);
    }
    let mut command = way.command(work, folder)?;
    command.current_dir(folder);
    run::run(command, work.stdin.as_deref(), LIMIT)?;
    if !file.exists() {
        return Ok(None);
    }
    let program = Program::read(&work.program)?;
    let arcs = gprofdata::read(&file)?.arcs;
    // glibc's address of a function is the one after the call of its counter.
    let of = |callee: u64| program.owner(callee).is_some_and(|f| f.name() == function);
    Ok(Some(arcs.iter().filter(|((_, callee), _)| of(*callee)).map(|(_, count)| count).sum()))
}
