//! The cost of one call from code that is not hooked, with various amounts of stack between it and the
//! nearest hooked frame.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gprofinject_tests::run;

use crate::calls::{compile, work};
use crate::measure::{LIMIT, Way};

pub(crate) fn compare(folder: &Path, rounds: usize) -> Result<()> {
    let (plain, pg) = (folder.join("callbacks"), folder.join("callbacks-pg"));
    compile("callbacks.c", &plain, &["-O2"])?;
    compile("callbacks.c", &pg, &["-O2", "-pg"])?;
    let (plain, pg) = (work(&plain, &[], None), work(&pg, &[], None));
    let ways = [(&plain, Way::Plain), (&pg, Way::Plain), (&plain, Way::Both), (&plain, Way::Entry)];
    // The minimum of all rounds, in the order in which the program prints them.
    let mut rows: Vec<(String, [f64; 4])> = Vec::new();
    for _ in 0..rounds {
        for (column, (work, way)) in ways.iter().enumerate() {
            let mut command = way.command(work, folder)?;
            command.current_dir(folder); // a -pg program leaves its profile where it runs
            let outcome = run::run(command, None, LIMIT)?;
            if !outcome.status.success() {
                bail!("{}: status {}", work.program.display(), outcome.code());
            }
            for (n, line) in outcome.stdout_text().lines().enumerate() {
                let (name, value) = line.rsplit_once(' ').context("a name and a number")?;
                if n == rows.len() {
                    rows.push((name.to_owned(), [f64::INFINITY; 4]));
                }
                let best = &mut rows[n].1[column];
                *best = best.min(value.parse()?);
            }
        }
    }
    println!("\n| callbacks | bytes between | plain ns | gcc -pg ns | ours, both ns | ours, entry ns |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, values) in rows {
        let (what, size) = name.split_once(' ').context("a name and a size")?;
        let sorts = what.starts_with("qsort");
        let cells = values.map(|v| if sorts { format!("{v:.3} s") } else { format!("{v:.1}") });
        let size = if sorts { format!("{size} numbers") } else { size.to_owned() };
        println!("| {what} | {size} | {} |", cells.join(" | "));
    }
    Ok(())
}
