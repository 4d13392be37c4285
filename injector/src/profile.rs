//! Arcs, blocks and samples -> gmon.out.

use anyhow::{Context, Result};
use gmon::{Block, BuildId, Format, Profile};
use gprofinject_image::instructions::Code;

use crate::collect::{Collected, summed};
use crate::histogram::Histogram;
use crate::placement::{Placed, Placement};
use crate::profile_plan::Planned;

/// Lowers counts that a gmon.out cannot hold, or only at a length out of all proportion: a count takes a record for each
/// 32 bits of it, and a bin a copy of its whole histogram for each 16 bits. Only a program that has overwritten its
/// counters has such.
fn fit(profile: &mut Profile) {
    const RECORD: u64 = u32::MAX as u64;
    /// Records beyond the first ones: 21 MB, for five thousand million million calls.
    const RECORDS_MAX: u64 = 1 << 20;
    const COPY: u64 = u16::MAX as u64;
    /// Bins in all copies of histograms: 32 MB.
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

/// The highest number that is not too high, among `from` and its halves; at least `least`.
fn lowered(from: u64, least: u64, is_too_high: impl Fn(u64) -> bool) -> u64 {
    let halves = std::iter::successors(Some(from), |most| Some(most / 2));
    halves.take_while(|&most| most > least).find(|&most| !is_too_high(most)).unwrap_or(least)
}

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
        if let (Ok(code), Some(lines)) = (Code::parse(bytes), planned.subject.lines()) {
            profile.blocks = gmon_report::at_lines(&profile.blocks, &code, &lines);
        }
    }
    if rate > 0 {
        profile.histograms = samples.build().histograms;
    }
    fit(&mut profile);
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes).context("the profile does not fit into a gmon.out")?;
    Ok((bytes, placed))
}
