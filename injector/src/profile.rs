//! Arcs, blocks and samples -> gmon.out.

use anyhow::{Context, Result};
use gmon::{Block, BuildId, Code, Format, HistogramBuilder, Lines, Profile};

use crate::collect::Collected;
use crate::histogram::Histogram;
use crate::profile_plan::Planned;

/// Samples as they are in the profile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) inside: u64,
    pub(crate) outside: u64,
}

/// The bytes of the profile.
pub(crate) fn encode(
    planned: &Planned,
    collected: &Collected,
    histogram: &Histogram,
    rate: u32,
) -> Result<(Vec<u8>, Placed)> {
    // gprof takes the width of addresses from the program's ELF class.
    let format = if planned.subject.narrow { Format::LITTLE_32 } else { Format::LITTLE_64 };
    let build_id = planned.image().and_then(|image| image.facts.build_id.as_deref());
    let build_id = build_id.map_or(BuildId::UNKNOWN, BuildId::new);
    let arcs = collected.arcs.clone();
    let mut profile = Profile { build_id, arcs, ..Profile::new(format) };
    if let Some(plan) = planned.plan.as_ref().filter(|_| !collected.counters.is_empty()) {
        let (counts, _) = plan.block_counts(&collected.counters, collected.stopped);
        profile.blocks = counts.into_iter().map(|(addr, count)| Block { addr, count }).collect();
        // So that gprof -l finds each line's count.
        let bytes = planned.subject.bytes;
        if let (Ok(code), Ok(lines)) = (Code::parse(bytes), Lines::parse(bytes)) {
            profile.blocks = gmon::at_lines(&profile.blocks, &code, &lines);
        }
    }
    let (low, high) = planned.shape.text;
    let starts = planned.functions().map(|(function, _)| function.address);
    let mut builder = HistogramBuilder::new(low..high, rate).functions(starts);
    let mut placed = Placed { inside: 0, outside: histogram.outside };
    for (place, count) in histogram.places() {
        match planned.charged_place(place) {
            Some(address) => {
                builder.add(address, count);
                placed.inside += count;
            }
            None => placed.outside += count,
        }
    }
    if rate > 0 {
        profile.histograms = builder.build().histograms;
    }
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes).context("the profile does not fit into a gmon.out")?;
    Ok((bytes, placed))
}
