//! Counting basic blocks, compared with the plain program, with its hooks alone, and with the same program
//! built with gcc --coverage.

use std::path::Path;

use anyhow::{Context, Result};
use gprofinject_tests::tool;

use crate::calls::real;
use crate::measure::{Way, Work, alternate};

pub(crate) fn compare(corpus: &Path, folder: &Path, rounds: usize) -> Result<()> {
    let covered = tool::make_corpus(&[], &["cov"])?;
    println!("\n| program | how | CPU s | wall s | of plain | goal |");
    println!("|---|---|---:|---:|---:|---:|");
    for (name, goal) in [("bzip2", "1.7"), ("lua", "2.0"), ("speedtest1", "")] {
        let plain = real(name, corpus, folder)?.plain;
        let covered = covered.join(format!("{name}-cov"));
        let covered = Work { program: covered, args: plain.args.clone(), stdin: plain.stdin.clone() };
        let rows = [
            ("plain", "", &plain, Way::Plain),
            ("ours, both, no blocks", "", &plain, Way::Both),
            ("ours, both and blocks", goal, &plain, Way::Blocks),
            ("ours, entry and blocks", goal, &plain, Way::EntryBlocks),
            ("ours, blocks only", goal, &plain, Way::BlocksOnly),
            ("gcc --coverage", "", &covered, Way::Plain),
        ];
        let cases: Vec<(&Work, Way)> = rows.iter().map(|&(_, _, work, way)| (work, way)).collect();
        let costs = alternate(&cases, rounds, folder)?;
        let base = costs.first().context("no case")?.cpu.as_secs_f64();
        for ((how, goal, ..), cost) in rows.iter().zip(&costs) {
            let (cpu, wall) = (cost.cpu.as_secs_f64(), cost.wall.as_secs_f64());
            println!("| {name} | {how} | {cpu:.3} | {wall:.3} | {:.2} | {goal} |", cpu / base);
        }
    }
    Ok(())
}
