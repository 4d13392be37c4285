//! Large programs: set-up time and memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use gprofinject_tests::{compile, generate, run};

use crate::measure::{Work, number, stats};

fn many(folder: &Path, functions: usize, fan_out: usize) -> Result<Work> {
    let source: PathBuf = folder.join(format!("many-{functions}.c"));
    let program = source.with_extension("");
    std::fs::write(&source, generate::many_functions(functions, fan_out))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-o"]).arg(&program).arg(&source);
    compile::compile(gcc)?;
    Ok(Work { program, args: Vec::new(), stdin: None })
}

/// Prints the set-up time. The goal is 2 microseconds per function, 0.12 s for 60,000 functions.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn set_up(folder: &Path, rounds: usize) -> Result<()> {
    let work = many(folder, 60_000, 0)?;
    println!("\n| set-up | functions | ms | microseconds a function |\n|---|---:|---:|---:|");
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let mut best = u64::MAX;
        let mut functions = 0;
        for _ in 0..rounds.max(3) {
            let (stats, _) = stats(&work, &[hooks], folder)?;
            best = best.min(number(&stats, "/setup_ns/total")?);
            functions = number(&stats, "/functions/found")?;
        }
        let (ms, each) = (best as f64 / 1e6, best as f64 / 1e3 / functions as f64);
        println!("| {hooks} | {functions} | {ms:.1} | {each:.2} |");
    }
    Ok(())
}

/// Prints the use of memory. The goal is at most 64 MiB for 10,000 functions and 100,000 arcs.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn memory(folder: &Path) -> Result<()> {
    let work = many(folder, 10_000, 10)?;
    let plain = run::run(Command::new(&work.program), None, std::time::Duration::from_secs(60))?;
    println!(
        "\n| memory | functions | arcs | by --stats MiB | peak RSS of the largest process MiB | plain MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let (stats, outcome) = stats(&work, &[hooks], folder)?;
        let (functions, arcs) = (number(&stats, "/functions/found")?, number(&stats, "/arcs")?);
        let parts = stats.pointer("/memory").and_then(|m| m.as_object());
        let said: u64 = parts.into_iter().flat_map(|m| m.values()).filter_map(|v| v.as_u64()).sum();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (said, peak, plain) = (mib(said), mib(outcome.peak_memory), mib(plain.peak_memory));
        println!("| {hooks} | {functions} | {arcs} | {said:.1} | {peak:.1} | {plain:.1} |");
    }
    Ok(())
}
