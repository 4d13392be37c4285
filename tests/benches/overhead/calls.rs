//! The extra time per call.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, generate, tool};

use crate::measure::{Cost, Way, Work, alternate, number, stats};

/// One program, plain and built with -pg, at full size and at a size that slow tools can handle.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) plain: Work,
    pub(crate) pg: Work,
    pub(crate) small: Work,
    /// The -pg build at that size.
    pub(crate) small_pg: Work,
    folder: PathBuf,
}

/// The extra time relative to that of -pg.
pub(crate) struct Ratios {
    both: f64,
    entry: f64,
}

pub(crate) fn work(program: &Path, args: &[&str], stdin: Option<&Path>) -> Work {
    Work {
        program: program.to_path_buf(),
        args: args.iter().map(|a| (*a).to_string()).collect(),
        stdin: stdin.map(Path::to_path_buf),
    }
}

pub(crate) fn compile(source: &str, program: &Path, flags: &[&str]) -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args(flags).args(["-w", "-pthread", "-o"]).arg(program).arg(tool::folder().join("data").join(source));
    compile::compile(gcc)
}

pub(crate) fn fib(folder: &Path) -> Result<Subject> {
    let (plain, pg) = (folder.join("fib"), folder.join("fib-pg"));
    // With -O1, because at -O2 gcc unrolls the recursion into itself, and few calls are left.
    compile("fib.c", &plain, &["-O1"])?;
    compile("fib.c", &pg, &["-O1", "-pg"])?;
    Ok(Subject {
        name: "fib".into(),
        plain: work(&plain, &["38"], None),
        pg: work(&pg, &["38"], None),
        small: work(&plain, &["27"], None),
        small_pg: work(&pg, &["27"], None),
        folder: folder.to_path_buf(),
    })
}

pub(crate) fn real(name: &str, corpus: &Path, folder: &Path) -> Result<Subject> {
    let (plain, pg) = (corpus.join(format!("{name}-O2")), corpus.join(format!("{name}-pg")));
    let script = tool::folder().join("data/bench.lua").display().to_string();
    let (data, little) = (folder.join("data"), folder.join("little"));
    let mut stdin = (None, None);
    let (full, small): (Vec<&str>, Vec<&str>) = match name {
        "lua" => (vec![&script, "360"], vec![&script, "5"]),
        "speedtest1" => (vec!["--size", "120", ":memory:"], vec!["--size", "2", ":memory:"]),
        _ => {
            // Both make few calls. With less input, and at zstd's default level, gprofinject's set-up would be most of the
            // difference; it has a table of its own. zstd's tables have to fit into the processor's cache: otherwise runs of
            // the same program differ by more than -pg costs, because each has other pages of physical memory.
            let small_tables = "--zstd=windowLog=17,hashLog=14,chainLog=14";
            let (len, args) =
                if name == "zstd" { (30, vec!["-q", "-16", small_tables, "-c"]) } else { (48, vec!["-c"]) };
            std::fs::write(&data, generate::compressible(len * 1_000_000))?;
            std::fs::write(&little, generate::compressible(400_000))?;
            stdin = (Some(data.as_path()), Some(little.as_path()));
            (args.clone(), args)
        }
    };
    Ok(Subject {
        name: name.into(),
        plain: work(&plain, &full, stdin.0),
        pg: work(&pg, &full, stdin.0),
        small: work(&plain, &small, stdin.1),
        small_pg: work(&pg, &small, stdin.1),
        folder: folder.to_path_buf(),
    })
}

impl Subject {
    /// Returns the folder for what the tools write.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns how many calls the program makes.
    ///
    /// # Errors
    /// The program cannot be profiled.
    pub(crate) fn calls(&self) -> Result<u64> {
        number(&stats(&self.plain, &["--hooks=entry"], &self.folder)?.0, "/calls")
    }
}

pub(crate) fn heading() {
    println!("| program | how | calls | CPU s | user s | wall s | extra ns/call | of -pg's extra |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
}

/// Returns the extra CPU time over `plain`.
pub(crate) fn extra(cost: &Cost, plain: &Cost) -> f64 {
    cost.cpu.as_secs_f64() - plain.cpu.as_secs_f64()
}

pub(crate) fn compare(subject: &Subject, rounds: usize) -> Result<Ratios> {
    let folder = &subject.folder;
    let calls = subject.calls()?;
    let cases = [
        (&subject.plain, Way::Plain),
        (&subject.pg, Way::Plain),
        (&subject.plain, Way::Both),
        (&subject.plain, Way::Entry),
    ];
    let costs = alternate(&cases, rounds, folder)?;
    let [plain, pg, both, entry] = costs[..] else { unreachable!("four cases") };
    let pg_extra = extra(&pg, &plain);
    let row = |how: &str, calls: u64, cost: &Cost, base: &Cost, pg_per_call: f64| {
        let per_call = extra(cost, base) / calls as f64;
        println!(
            "| {} | {how} | {calls} | {:.3} | {:.3} | {:.3} | {:.2} | {:.2} |",
            subject.name,
            cost.cpu.as_secs_f64(),
            cost.user.as_secs_f64(),
            cost.wall.as_secs_f64(),
            per_call * 1e9,
            per_call / pg_per_call
        );
        per_call / pg_per_call
    };
    let pg_per_call = pg_extra / calls as f64;
    row("plain", calls, &plain, &plain, pg_per_call);
    row("gcc -pg", calls, &pg, &plain, pg_per_call);
    let ratios = Ratios {
        both: row("ours, both", calls, &both, &plain, pg_per_call),
        entry: row("ours, entry", calls, &entry, &plain, pg_per_call),
    };

    // The slow tools do less work; their cost per call is compared with the plain program at that size.
    let mut slow = vec![(&subject.small, Way::Plain)];
    let mut names = vec!["plain, small"];
    for (tool, way, name) in
        [("uftrace", Way::Uftrace, "uftrace, small"), ("valgrind", Way::Callgrind, "callgrind, small")]
    {
        if !skip::have(tool) {
            skip::skipped(&format!("{} under {tool}", subject.name), &format!("no {tool}"));
        } else if let Err(error) = alternate(&[(&subject.small, way)], 1, folder) {
            println!("| {} | {name}: fails: {} | | | | | | |", subject.name, first_line(&error));
        } else {
            slow.push((&subject.small, way));
            names.push(name);
        }
    }
    let small_calls = number(&stats(&subject.small, &["--hooks=entry"], folder)?.0, "/calls")?;
    let costs = alternate(&slow, rounds.min(2), folder)?;
    for (name, cost) in names.iter().zip(&costs).skip(1) {
        row(name, small_calls, cost, &costs[0], pg_per_call);
    }
    Ok(ratios)
}

fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_string()
}

/// Prints the means: the goal is set for the programs together.
pub(crate) fn print_means(ratios: &[Ratios]) {
    let mean = |of: fn(&Ratios) -> f64| {
        let logs: f64 = ratios.iter().map(|r| of(r).max(1e-3).ln()).sum();
        (logs / ratios.len() as f64).exp()
    };
    if !ratios.is_empty() {
        println!("\nGeometric mean of the extra time, of -pg's, over {} real programs:", ratios.len());
        println!("{:.2} with entry and exit, {:.2} with entry only.", mean(|r| r.both), mean(|r| r.entry));
    }
}

/// Prints the cost per call of two threads, which must be that of one.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn threads(folder: &Path, rounds: usize) -> Result<()> {
    let (plain, pg) = (folder.join("threads"), folder.join("threads-pg"));
    compile("threads.c", &plain, &["-O2"])?;
    compile("threads.c", &pg, &["-O2", "-pg"])?;
    const MILLIONS: &str = "40";
    let calls: f64 = MILLIONS.parse::<f64>().context("a number")? * 1e6;
    println!("\n| threads | how | CPU s | wall s | extra ns/call |\n|---|---|---:|---:|---:|");
    for threads in ["1", "2"] {
        let plain = work(&plain, &[threads, MILLIONS], None);
        let pg = work(&pg, &[threads, MILLIONS], None);
        let cases = [(&plain, Way::Plain), (&pg, Way::Plain), (&plain, Way::Both), (&plain, Way::Entry)];
        let costs = alternate(&cases, rounds, folder)?;
        let total = calls * threads.parse::<f64>().context("a number")?;
        for (how, cost) in ["plain", "gcc -pg", "ours, both", "ours, entry"].iter().zip(&costs) {
            let seconds = |d: Duration| d.as_secs_f64();
            let per_call = extra(cost, &costs[0]) / total * 1e9;
            println!(
                "| {threads} | {how} | {:.3} | {:.3} | {per_call:.2} |",
                seconds(cost.cpu),
                seconds(cost.wall)
            );
        }
    }
    Ok(())
}
