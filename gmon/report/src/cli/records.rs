//! `gmon check --records`: prints the records of gmon.out files as text.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use gmon::{BlockForm, Place, Program, Reading, counted};

use crate::cli::args::CheckArgs;
use crate::cli::text::plain;
use crate::cli::{files, json};

/// Prints the files.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn records(
    args: &CheckArgs,
    paths: &[PathBuf],
    program: Option<&Program>,
    out: &mut impl Write,
) -> Result<()> {
    for file in paths {
        let bytes = files::read_gmon(file)?;
        let options = args.form.resolve(&bytes, program);
        let reading = options.read(&bytes).with_context(|| file.display().to_string())?;
        if args.json {
            json::write(out, &reading, program)?;
            continue;
        }
        if paths.len() > 1 {
            writeln!(out, "{}:", plain(&file.display().to_string()))?;
        }
        text(out, &reading, program)?;
    }
    Ok(())
}

/// Returns ` name+offset` for an address, or nothing without a program.
fn name(program: Option<&Program>, address: u64) -> String {
    match program.map(|program| program.place(address)) {
        None => String::new(),
        Some(Place::Nowhere) => " ?".to_owned(),
        Some(Place::In(function) | Place::Behind(function)) => match address - function.start {
            // A symbol's name may contain any bytes, which must not control the terminal.
            0 => format!(" {}", plain(&function.name)),
            offset => format!(" {}+{offset:#x}", plain(&function.name)),
        },
    }
}

fn text(out: &mut impl Write, reading: &Reading, program: Option<&Program>) -> io::Result<()> {
    let profile = &reading.profile;
    let records = counted(reading.records, "record", "records");
    writeln!(out, "format {}, {records}", profile.format)?;
    if profile.build_id.is_known() {
        writeln!(out, "build-id {}..", profile.build_id)?;
    }
    if reading.ambiguous_width {
        writeln!(out, "note: makes sense as 32-bit too, read as 64-bit; --width decides")?;
    }
    if reading.block_form == BlockForm::Glibc {
        writeln!(out, "note: basic blocks in glibc's form, which gprof cannot read")?;
    }
    for histogram in &profile.histograms {
        writeln!(
            out,
            "histogram {:#x}..{:#x}, {} of {} bytes, {} per second in {}, {}",
            histogram.low,
            histogram.high,
            counted(histogram.bins.len(), "bin", "bins"),
            histogram.bin_width(),
            histogram.rate,
            histogram.unit,
            counted(histogram.hits(), "hit", "hits"),
        )?;
        for (index, hits) in histogram.bins.iter().enumerate().filter(|&(_, &hits)| hits > 0) {
            let address = histogram.bin_address(index);
            writeln!(out, "  {address:#x}{} {hits}", name(program, address))?;
        }
    }
    for arc in &profile.arcs {
        let (from, to) = (name(program, arc.from), name(program, arc.to));
        writeln!(out, "arc {:#x}{from} -> {:#x}{to} {}", arc.from, arc.to, arc.count)?;
    }
    for block in &profile.blocks {
        writeln!(out, "block {:#x}{} {}", block.addr, name(program, block.addr), block.count)?;
    }
    Ok(())
}
