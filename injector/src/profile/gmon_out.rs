//! Writes a profile as gmon.out, the file format that gprof reads.

use anyhow::{Context, Result};
use gmon::{Arc, BuildId, Format, Profile, Unit};
use gprofinject_image::instructions::Code;

use crate::profile::collect::summed;
use crate::profile::model;
use crate::profile::placement::{Placed, Placement};

/// Returns the bytes of a gmon.out with the profile of the program, and what gprof will show of it. The
/// program is the first module; the format has the addresses of one file only, and so the program's own view of its calls.
///
/// The samples are in `unit`, divided by the profile's rate.
///
/// # Errors
/// The profile has no module, or one that the format cannot represent.
pub(crate) fn encode(profile: &model::Profile, unit: Unit) -> Result<(Vec<u8>, Placed)> {
    let module = profile.modules.first().context("the profile has no program")?;
    let (bytes, mut placed) = encode_module(module, &profile.own, profile.rate, unit)?;
    let own = profile.own_samples_outside();
    placed.own = placed.own.saturating_add(own);
    placed.outside = placed.outside.saturating_sub(own);
    Ok((bytes, placed))
}

fn encode_module(module: &model::Module, own: &[Arc], rate: u32, unit: Unit) -> Result<(Vec<u8>, Placed)> {
    let program = module.program;
    // gprof takes the width of addresses from the program's ELF class.
    let format = if program.subject.kind.is_narrow() { Format::LITTLE_32 } else { Format::LITTLE_64 };
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
        written.histograms = samples.unit(unit).build().histograms;
    }
    written.fit();
    let mut bytes = Vec::new();
    gmon::write(&written, &mut bytes).context("the profile does not fit into a gmon.out")?;
    Ok((bytes, placed))
}
