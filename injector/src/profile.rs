//! Arcs, blocks and samples -> gmon.out.

use anyhow::{Context, Result};
use gmon::{Block, BuildId, Code, Format, Lines, Profile};

use crate::collect::{Collected, summed};
use crate::histogram::Histogram;
use crate::placement::{Placed, Placement};
use crate::profile_plan::Planned;

/// The bytes of the profile.
pub(crate) fn encode(
    planned: &Planned<'_, '_>,
    collected: &Collected,
    histogram: &Histogram,
    rate: u32,
) -> Result<(Vec<u8>, Placed)> {
    // gprof takes the width of addresses from the program's ELF class.
    let format = if planned.subject.narrow { Format::LITTLE_32 } else { Format::LITTLE_64 };
    let build_id = planned.image().and_then(|image| image.facts.build_id.as_deref());
    let build_id = build_id.map_or(BuildId::UNKNOWN, BuildId::new);
    let mut placement = Placement::new(planned, rate);
    placement.add_outside(histogram.outside);
    histogram.places().for_each(|(place, count)| placement.add_samples(place, count));
    collected.arcs.iter().for_each(|arc| placement.add_arc(*arc));
    let (arcs, samples, placed) = placement.finish();
    let mut profile = Profile { build_id, arcs: summed(arcs), ..Profile::new(format) };
    if let Some(plan) = planned.plan.as_ref().filter(|_| !collected.counters.is_empty()) {
        let (counts, _) = plan.block_counts(&collected.counters, collected.stopped);
        profile.blocks = counts.into_iter().map(|(addr, count)| Block { addr, count }).collect();
        // So that gprof -l finds each line's count.
        let bytes = planned.subject.bytes;
        if let (Ok(code), Ok(lines)) = (Code::parse(bytes), Lines::parse(bytes)) {
            profile.blocks = gmon::at_lines(&profile.blocks, &code, &lines);
        }
    }
    if rate > 0 {
        profile.histograms = samples.build().histograms;
    }
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes).context("the profile does not fit into a gmon.out")?;
    Ok((bytes, placed))
}
