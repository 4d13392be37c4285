//! Writes a profile as gmon.out, the file format that gprof reads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::{Arc, BuildId, Format, Profile};
use gprofinject_image::instructions::Code;

use crate::profile::collect::summed;
use crate::profile::model;
use crate::profile::placement::{Placed, Placement};
use crate::store::output;

/// Lowers counts that would make a gmon.out too long: a count takes one record for each 32 bits of it, and a
/// bin one copy of its whole histogram for each 16 bits. Only a program that has overwritten its counters has
/// such counts.
pub(crate) fn fit(profile: &mut Profile) {
    const RECORD: u64 = u32::MAX as u64;
    /// The number of records beyond the first of each arc: 21 MB, enough for 4.5 * 10^15 calls.
    const RECORDS_MAX: u64 = 1 << 20;
    const COPY: u64 = u16::MAX as u64;
    /// The number of bins in all copies of histograms: 32 MB.
    const BINS_MAX: u64 = 1 << 24;
    let Profile { arcs, blocks, histograms, .. } = profile;

    let bins = |most: u64| {
        histograms.iter().fold(0_u64, |sum, histogram| {
            let largest = histogram.bins.iter().copied().max().unwrap_or(0).min(most);
            sum.saturating_add((largest / COPY).saturating_mul(histogram.bins.len() as u64))
        })
    };
    let most = lowered(RECORD, COPY, |most| bins(most) > BINS_MAX);
    for bin in histograms.iter_mut().flat_map(|histogram| &mut histogram.bins) {
        *bin = (*bin).min(most);
    }

    let counts = || arcs.iter().map(|arc| arc.count).chain(blocks.iter().map(|block| block.count));
    let records = |most: u64| counts().fold(0_u64, |sum, count| sum + count.min(most) / RECORD);
    let most = lowered(RECORD << 18, RECORD - 1, |most| records(most) > RECORDS_MAX);
    arcs.iter_mut().for_each(|arc| arc.count = arc.count.min(most));
    blocks.iter_mut().for_each(|block| block.count = block.count.min(most));
}

/// Returns the first number among `from` and its successive halves that is not too high, and at least
/// `least`.
fn lowered(from: u64, least: u64, is_too_high: impl Fn(u64) -> bool) -> u64 {
    let halves = std::iter::successors(Some(from), |most| Some(most / 2));
    halves.take_while(|&most| most > least).find(|&most| !is_too_high(most)).unwrap_or(least)
}

/// Returns the bytes of a gmon.out with the profile of the program, and what gprof will show of it. The
/// program is the first module; the format has the addresses of one file only, and so the program's own view of its calls.
///
/// # Errors
/// The profile has no module, or one that the format cannot represent.
pub(crate) fn encode(profile: &model::Profile) -> Result<(Vec<u8>, Placed)> {
    let module = profile.modules.first().context("the profile has no program")?;
    let (bytes, mut placed) = encode_module(module, &profile.own, profile.rate)?;
    let own = profile.own_samples_outside();
    placed.own = placed.own.saturating_add(own);
    placed.outside = placed.outside.saturating_sub(own);
    Ok((bytes, placed))
}

/// Writes a gmon.out for each library whose basic blocks were counted and of which any has run, beside the profile of the
/// program, which must be a file. Each is to be read with the library's file as program, and has the calls inside the
/// library. Returns them, and what went wrong.
pub(crate) fn write_libraries(profile: &model::Profile, own: &Path) -> (Vec<LibraryProfile>, Vec<String>) {
    let (mut written, mut troubles) = (Vec::new(), Vec::new());
    let mut names: HashMap<&str, u32> = HashMap::new();
    for (index, module) in (0..).zip(&profile.modules) {
        let Some(library) = module.library.filter(|_| module.blocks().1 > 0) else { continue };
        let is_inside = |arc: &&model::Arc| arc.from.module == index && arc.to.module == index;
        let arcs = profile.arcs.iter().filter(is_inside);
        let inside: Vec<_> =
            arcs.map(|arc| Arc { from: arc.from.address, to: arc.to.address, count: arc.count }).collect();
        let same = names.entry(library.name()).or_default();
        *same += 1;
        let name = match same {
            1 => library.name().to_owned(),
            same => format!("{}.{same}", library.name()),
        };
        let encoded = encode_module(module, &inside, profile.rate);
        match encoded.and_then(|(bytes, _)| output::write_library(own, &name, &bytes)) {
            Ok(file) => {
                let has_lines = module.program.subject.lines().is_some();
                written.push(LibraryProfile { library: library.binary.clone(), file, has_lines });
            }
            Err(error) => troubles.push(format!("{error:#}")),
        }
    }
    (written, troubles)
}

/// The profile of a library.
#[derive(Debug)]
pub(crate) struct LibraryProfile {
    /// The library's file.
    pub(crate) library: PathBuf,
    /// The profile's.
    pub(crate) file: PathBuf,
    /// Whether the library has line information.
    pub(crate) has_lines: bool,
}

fn encode_module(module: &model::Module, own: &[Arc], rate: u32) -> Result<(Vec<u8>, Placed)> {
    let program = module.program;
    // gprof takes the width of addresses from the program's ELF class.
    let format = if program.subject.narrow { Format::LITTLE_32 } else { Format::LITTLE_64 };
    let build_id = program.image().and_then(|image| image.facts.build_id.as_deref());
    let build_id = build_id.map_or(BuildId::UNKNOWN, BuildId::new);
    let mut placement = Placement::new(program, rate);
    placement.add_outside(module.samples.outside);
    for (place, count) in module.samples.places() {
        match program.text_address(place) {
            Some(address) => placement.add_samples(address, count),
            None => placement.add_own(count),
        }
    }
    own.iter().for_each(|&arc| placement.add_arc(arc));
    let (arcs, samples, placed) = placement.finish();
    let mut written = Profile { build_id, arcs: summed(arcs), ..Profile::new(format) };
    // With these, gprof -l finds the count of each line.
    let lines = || Some((Code::parse(program.subject.bytes).ok()?, program.subject.lines()?));
    let (blocks, _) = module.blocks();
    written.blocks = match (!blocks.is_empty()).then(lines).flatten() {
        Some((code, lines)) => gmon_blocks::at_lines(&blocks, &code, &lines),
        None => blocks,
    };
    if rate > 0 {
        written.histograms = samples.build().histograms;
    }
    fit(&mut written);
    let mut bytes = Vec::new();
    gmon::write(&written, &mut bytes).context("the profile does not fit into a gmon.out")?;
    Ok((bytes, placed))
}
