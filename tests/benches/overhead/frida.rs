//! The two engines: what they hook, what that costs, and what they refuse. For docs/frida.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use gprofinject_skip as skip;
use gprofinject_tests::compile;
use gprofinject_tests::tool::{self, Engine, Hooks};

use crate::calls::{extra, fib, real};
use crate::measure::{Cost, Way, Work, alternate, number, stats_by};

const ENGINES: [(&str, Engine); 3] =
    [("builtin", Engine::Builtin), ("frida", Engine::Frida), ("frida,builtin", Engine::FridaOrBuiltin)];

const MEASURABLE: u64 = 10_000_000;

pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    if let Err(why) = tool::frida() {
        skip::skipped("both engines", &format!("{why:#}"));
        return Ok(());
    }
    let mut works = vec![("fib".to_owned(), fib(folder)?.plain)];
    match tool::corpus() {
        Ok(corpus) => {
            for name in ["lua", "speedtest1"] {
                works.push((name.to_owned(), real(name, corpus, folder)?.plain));
            }
        }
        Err(error) => skip::skipped("lua and speedtest1", &format!("no corpus: {error:#}")),
    }
    works.push(("exceptions (C++)".to_owned(), exceptions(folder)?));
    match compiler(folder)? {
        Some(work) => works.push(("cc1plus (C++)".to_owned(), work)),
        None => skip::skipped("cc1plus", "no such program"),
    }

    println!(
        "\n| program | engine | hooked | of | calls | extra ns/call, both | entry | set-up ms | refused |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---|");
    for (name, work) in &works {
        rows(name, work, rounds, folder)?;
    }
    Ok(())
}

fn rows(name: &str, work: &Work, rounds: usize, folder: &Path) -> Result<()> {
    let mut cases = vec![(work, Way::Plain)];
    for (_, engine) in ENGINES {
        cases.extend(Hooks::ALL.map(|hooks| (work, Way::By(engine, hooks))));
    }
    let costs = alternate(&cases, rounds, folder)?;
    let (plain, costs) = costs.split_first().context("no case")?;
    for ((label, engine), costs) in ENGINES.iter().zip(costs.chunks(Hooks::ALL.len())) {
        let mut set_up = u64::MAX;
        let mut last = serde_json::Value::Null;
        for _ in 0..rounds.max(3) {
            (last, _) = stats_by(*engine, work, &["--hooks=both"], folder)?;
            set_up = set_up.min(number(&last, "/setup_ns/total")?);
        }
        let calls = number(&last, "/calls")?;
        // With few calls, the cost of the start hides that of the calls.
        let per_call = |cost: &Cost| match calls {
            0..MEASURABLE => String::new(),
            _ => format!("{:.2}", extra(cost, plain) / calls as f64 * 1e9),
        };
        let each: Vec<String> = costs.iter().map(per_call).collect();
        println!(
            "| {name} | {label} | {} | {} | {calls} | {} | {:.1} | {} |",
            number(&last, "/functions/hooked")?,
            number(&last, "/functions/found")?,
            each.join(" | "),
            set_up as f64 / 1e6,
            refused(&last)
        );
    }
    Ok(())
}

/// Returns the reasons and how often each occurs, the most frequent first.
fn refused(stats: &serde_json::Value) -> String {
    let table = stats.pointer("/functions/refused_by_reason").and_then(|table| table.as_object());
    let mut reasons: Vec<(u64, &String)> =
        table.into_iter().flatten().filter_map(|(reason, count)| Some((count.as_u64()?, reason))).collect();
    reasons.sort_by(|a, b| b.cmp(a));
    reasons.iter().map(|(count, reason)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}

/// A program that throws exceptions in four threads.
fn exceptions(folder: &Path) -> Result<Work> {
    let program = folder.join("exceptions");
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-w", "-pthread", "-o"]).arg(&program);
    compiler.arg(tool::folder().join("stress/exceptions.cc"));
    compile::compile(compiler)?;
    Ok(Work { program, args: Vec::new(), stdin: None })
}

/// The C++ compiler itself, which is a C++ program, compiling that source.
fn compiler(folder: &Path) -> Result<Option<Work>> {
    let asked = Command::new("g++").arg("-print-prog-name=cc1plus").output()?;
    let program = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if !program.is_file() {
        return Ok(None);
    }
    let source = folder.join("small.cc");
    std::fs::write(&source, "#include <string>\nint main() { return std::string(\"x\").size() - 1; }\n")?;
    let args = ["-quiet", "-O1", "-o", "/dev/null"].map(String::from).into_iter();
    let args = args.chain([source.display().to_string()]).collect();
    Ok(Some(Work { program, args, stdin: None }))
}
