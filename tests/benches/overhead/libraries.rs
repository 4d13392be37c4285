//! The cost of calls in shared libraries, compared with that of the same calls in the executable and with other profilers
//! that see libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use gprofinject_skip as skip;
use gprofinject_tests::{compile, tool};

use crate::calls::{compile, extra, work};
use crate::measure::{Way, Work, alternate, number, stats};

/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    places(folder, rounds)?;
    println!("\n| program | how | calls | CPU s | wall s | extra ns/call | times as long |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    match database(folder) {
        Ok(program) => {
            peers(
                "libsqlite3 and libz",
                &work(&program, &["600"], None),
                &work(&program, &["2"], None),
                folder,
                rounds,
            )?;
        }
        Err(error) => {
            skip::skipped("libraries, database", format!("{error:#}").lines().next().unwrap_or_default())
        }
    }
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        skip::skipped("libraries, python3", "no /usr/bin/python3");
        return Ok(());
    }
    let script = tool::folder().join("data/extensions.py").display().to_string();
    let run = |times: &str| work(python, &["-S", &script, times], None);
    peers("python3, four extensions", &run("1500"), &run("10"), folder, rounds)
}

/// Prints the cost of a call in the executable, within a library, and within a library through its PLT.
fn places(folder: &Path, rounds: usize) -> Result<()> {
    const NUMBER: &str = "38";
    let executable = folder.join("fib-here");
    compile("fib.c", &executable, &["-O1"])?;
    let mut programs = vec![("in the executable", executable)];
    for (name, file, flag) in [
        ("in a library", "libfibdirect.so", "-fno-semantic-interposition"),
        ("in a library, through its PLT", "libfibplt.so", "-fsemantic-interposition"),
    ] {
        let library = folder.join(file);
        compile("fib.c", &library, &["-O1", "-shared", "-fPIC", "-Dmain=fib_main", flag])?;
        let program = folder.join(format!("{file}-main"));
        let path = library.display().to_string();
        compile("fib-main.c", &program, &["-O1", "-Wl,--no-as-needed", &path, "-Wl,-rpath,$ORIGIN"])?;
        programs.push((name, program));
    }
    let works: Vec<(&str, Work)> =
        programs.iter().map(|(name, program)| (*name, work(program, &[NUMBER], None))).collect();
    side_by_side("fib", &works, folder, rounds)
}

/// Prints the cost of a call in each of several programs, which run alternately.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn side_by_side(what: &str, works: &[(&str, Work)], folder: &Path, rounds: usize) -> Result<()> {
    println!("\n| {what} | how | calls | CPU s | extra ns/call |\n|---|---|---:|---:|---:|");
    let ways = [("alone", Way::Plain), ("ours, both", Way::Both), ("ours, entry", Way::Entry)];
    let cases: Vec<(&Work, Way)> =
        works.iter().flat_map(|(_, work)| ways.iter().map(move |(_, way)| (work, *way))).collect();
    let costs = alternate(&cases, rounds, folder)?;
    for ((name, work), costs) in works.iter().zip(costs.chunks(ways.len())) {
        let calls = number(&stats(work, &["--hooks=entry"], folder)?.0, "/calls")?;
        for ((how, _), cost) in ways.iter().zip(costs) {
            println!(
                "| {name} | {how} | {calls} | {:.3} | {:.2} |",
                cost.cpu.as_secs_f64(),
                extra(cost, &costs[0]) / calls as f64 * 1e9
            );
        }
    }
    Ok(())
}

/// Compiles the program on libsqlite3 and libz.
///
/// # Errors
/// Their headers are not installed.
fn database(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("database");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"])
        .arg(&program)
        .arg(tool::folder().join("data/database.c"))
        .args(["-lsqlite3", "-lz"]);
    compile::compile(gcc)?;
    Ok(program)
}

/// Prints the cost of each profiler. Those that make a program much slower get less work, and are compared with the plain
/// program on that.
fn peers(name: &str, full: &Work, small: &Work, folder: &Path, rounds: usize) -> Result<()> {
    let fast = [
        ("alone", Way::Plain),
        ("ours, both", Way::Both),
        ("ours, entry", Way::Entry),
        ("ours, the program only", Way::ProgramOnly),
        ("perf record", Way::PerfRecord),
        ("perf record -g", Way::PerfRecordGraph),
    ];
    let slow = [
        ("alone, small", Way::Plain),
        ("uftrace -P . -l, small", Way::UftraceLibraries),
        ("callgrind, small", Way::Callgrind),
    ];
    for (work, ways, rounds) in [(full, &fast[..], rounds), (small, &slow[..], rounds.min(2))] {
        let calls = number(&stats(work, &["--hooks=entry"], folder)?.0, "/calls")?;
        let mut able = Vec::new();
        for (how, way) in ways {
            match way.tool().filter(|tool| !skip::have(tool)) {
                Some(tool) => skip::skipped(&format!("{name}: {how}"), &format!("no {tool}")),
                None => match alternate(&[(work, *way)], 1, folder) {
                    Ok(_) => able.push((how, *way)),
                    Err(error) => {
                        let why = format!("{error:#}");
                        println!(
                            "| {name} | {how}: fails: {} | | | | | |",
                            why.lines().next().unwrap_or_default()
                        );
                    }
                },
            }
        }
        let cases: Vec<(&Work, Way)> = able.iter().map(|(_, way)| (work, *way)).collect();
        let costs = alternate(&cases, rounds, folder)?;
        for ((how, _), cost) in able.iter().zip(&costs) {
            println!(
                "| {name} | {how} | {calls} | {:.3} | {:.3} | {:.2} | {:.2} |",
                cost.cpu.as_secs_f64(),
                cost.wall.as_secs_f64(),
                extra(cost, &costs[0]) / calls as f64 * 1e9,
                cost.cpu.as_secs_f64() / costs[0].cpu.as_secs_f64()
            );
        }
    }
    Ok(())
}
