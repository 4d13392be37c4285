//! What a run's recording says, as files that gprof reads: the view of the whole process, and each program by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::{Arc, Block, Format, HistogramBuilder, Profile};
use gmon_export::formats::pair;
use gmon_export::load::{self, Detail};
use gmon_run::{Program, Recording};

/// Writes the files that `gmon export --to gprof` makes of a recording: `NAME.syms` and `NAME.whole` beside `NAME.pb.gz`. Returns their
/// names in the order in which gprof takes them.
///
/// # Errors
/// The recording cannot be read, or the files cannot be written.
pub fn written(recording: &Path) -> Result<[PathBuf; 2]> {
    written_of(recording, |_| true)
}

/// Does the same for some of the run's programs.
///
/// # Errors
/// The recording cannot be read, or the files cannot be written.
pub fn written_of(recording: &Path, is_wanted: impl Fn(&Program) -> bool) -> Result<[PathBuf; 2]> {
    let mut read = read(recording)?;
    read.retain_programs(is_wanted);
    let pair = pair(&load::recording(&read, Detail::Functions))?;
    let name =
        recording.to_str().and_then(|name| name.strip_suffix(".pb.gz")).context("a name with .pb.gz")?;
    let paths = ["syms", "whole"].map(|ending| PathBuf::from(format!("{name}.{ending}")));
    for (path, bytes) in paths.iter().zip([pair.symbols, pair.profile]) {
        std::fs::write(path, bytes)?;
    }
    Ok(paths)
}

/// Writes what the programs other than the first one have done in their own code: `gmon.out.NAME`, or `gmon.out.PID` if only one process
/// is meant, beside the `gmon.pb.gz` of this folder. The second of the same name is `gmon.out.NAME.2`. There is nothing to do without a
/// recording.
///
/// # Errors
/// The recording cannot be read, or the files cannot be written.
pub fn apart(folder: &Path) -> Result<()> {
    let file = folder.join("gmon.pb.gz");
    if !file.exists() {
        return Ok(());
    }
    let recording = read(&file)?;
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let followed =
        (0..).zip(&recording.programs).skip(1).filter(|&(index, _)| is_followed(&recording, index));
    for (index, program) in followed {
        let name = if program.pid > 0 { program.pid.to_string() } else { program.name.clone() };
        let times = names.entry(name.clone()).or_default();
        *times += 1;
        let number = if *times > 1 { format!(".{times}") } else { String::new() };
        let mut bytes = Vec::new();
        gmon::write(&own(&recording, index, program), &mut bytes)?;
        std::fs::write(folder.join(format!("gmon.out.{name}{number}")), bytes)?;
    }
    Ok(())
}

/// Whether more is known of a program than that it had samples.
fn is_followed(recording: &Recording, index: u32) -> bool {
    const NOT_FOLLOWED: &str = "[not followed]";
    let hits = recording.hits.iter().filter(|hits| hits.program == index);
    let functions = hits.filter_map(|hits| recording.functions.get(hits.function as usize));
    !functions.map(|function| &function.name).any(|name| name == NOT_FOLLOWED)
}

/// Returns what a program has done in its own code. Callers elsewhere have the address 0.
fn own(recording: &Recording, index: u32, program: &Program) -> Profile {
    let function =
        |at: u32| recording.functions.get(at as usize).filter(|function| function.module == program.module);
    let mut profile = Profile::new(Format::LITTLE_64);
    let calls = recording.calls.iter().filter(|calls| calls.program == index);
    profile.arcs = calls
        .filter_map(|calls| {
            let from = calls.caller.and_then(function).map_or(0, |_| calls.site);
            Some(Arc { from, to: function(calls.callee)?.address, count: calls.calls })
        })
        .collect();
    profile.arcs.sort_unstable();
    let is_own = |block: &&gmon_run::Block| (block.program, block.module) == (index, program.module);
    let blocks = recording.blocks.iter().filter(is_own);
    profile.blocks = blocks.map(|block| Block { addr: block.address, count: block.executions }).collect();
    if let Some(rate) = 1_000_000_000_u64.checked_div(recording.sample_period_ns) {
        let limit = recording.modules[program.module as usize].limit;
        let mut samples = HistogramBuilder::new(0..limit, rate as u32);
        for hits in recording.hits.iter().filter(|hits| hits.program == index && hits.address > 0) {
            if function(hits.function).is_some() {
                samples.add(hits.address, hits.samples);
            }
        }
        profile.histograms = samples.build().histograms;
    }
    profile
}

/// Reads a recording.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Recording> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Recording::read(&bytes).with_context(|| path.display().to_string())
}
