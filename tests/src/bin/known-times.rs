//! `known-times [--runs N] NAME PROGRAM [ARGUMENTS]`: runs a program that knows its own times (`tests/known`) under
//! gprofinject, and prints rows of a table: the expected times, and the measured ones with and without the overhead.
//! `known-times --check FILES` prints what contradicts itself in files of measured times.
//!
//! Of N runs, each row is of the one with the median of the differences. The last columns are that difference in percent, in
//! nanoseconds for each call, and the least one of all runs in nanoseconds for each call, which a busy machine changes less.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gprofinject_tests::known::{self, Known, Line};
use gprofinject_tests::{measured, run, tool};

const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    match print() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("known-times: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--check") {
        return check(&arguments[1..]);
    }
    let mut runs = 5_usize;
    if arguments.first().is_some_and(|first| first == "--runs") {
        runs = arguments.get(1).context("--runs N")?.parse()?;
        arguments.drain(..2);
    }
    let [name, program, arguments @ ..] = &arguments[..] else {
        bail!("usage: known-times [--runs N] NAME PROGRAM [ARGUMENTS]")
    };
    let mut all: Vec<Vec<Line>> = Vec::new();
    let mut quantiles = Vec::new();
    for _ in 0..runs {
        let folder = tempfile::tempdir()?;
        let gmon = folder.path().join("gmon.out");
        let command = tool::command(&["-q", "--paths"], &gmon, Path::new(program), arguments)?;
        let outcome = run::run(command, None, LIMIT)?;
        let measured =
            measured::read(&folder.path().join("gmon.pb.gz")).with_context(|| outcome.stderr_text())?;
        let comparison = known::compare(&Known::read(&outcome.stdout_text()), &measured, true);
        for wrong in comparison.wrong {
            eprintln!("known-times: {name}: {wrong}");
        }
        quantiles.push(comparison.quantiles);
        all.push(comparison.times);
    }
    for n in 0..all.iter().map(Vec::len).min().unwrap_or(0) {
        let mut lines: Vec<&Line> = all.iter().map(|lines| &lines[n]).collect();
        lines.sort_by(|a, b| a.error().total_cmp(&b.error()));
        let per_call = |line: &Line| (line.measured as f64 - line.expected as f64) / line.calls.max(1) as f64;
        let least = lines.iter().map(|line| per_call(line)).min_by(|a, b| a.abs().total_cmp(&b.abs()));
        print!("{}", known::row(name, lines[lines.len() / 2], least.unwrap_or(0.0)));
    }
    for n in 0..quantiles.iter().map(Vec::len).min().unwrap_or(0) {
        let error =
            |(_, known, estimate): &(String, u64, u64)| *estimate as f64 / (*known).max(1) as f64 - 1.0;
        let mut lines: Vec<_> = quantiles.iter().map(|lines| &lines[n]).collect();
        lines.sort_by(|a, b| error(a).total_cmp(&error(b)));
        let line @ (what, known, estimate) = lines[lines.len() / 2];
        println!(
            "| {name} | {what} | - | {known} | - | {estimate} | {:+.2} | - | - | - |",
            100.0 * error(line)
        );
    }
    Ok(())
}

/// Prints what is wrong in files.
fn check(files: &[String]) -> Result<()> {
    let mut wrong = 0;
    for file in files {
        for line in known::consistency(&measured::read(Path::new(file))?) {
            println!("{file}: {line}");
            wrong += 1;
        }
    }
    if wrong > 0 { bail!("{wrong} contradictions") } else { Ok(()) }
}
