//! Counts that a file can have.

use crate::profile::Profile;

impl Profile {
    /// Lowers counts that would make a gmon.out too long: a count takes one record for each 32 bits of it, and a
    /// bin one copy of its whole histogram for each 16 bits. Only a program that has overwritten its counters has
    /// such counts.
    pub fn fit(&mut self) {
        const RECORD: u64 = u32::MAX as u64;
        /// The number of records beyond the first of each arc: 21 MB, enough for 4.5 * 10^15 calls.
        const RECORDS_MAX: u64 = 1 << 20;
        const COPY: u64 = u16::MAX as u64;
        /// The number of bins in all copies of histograms: 32 MB.
        const BINS_MAX: u64 = 1 << 24;
        let Profile { arcs, blocks, histograms, .. } = self;

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
}

/// Returns the first number among `from` and its successive halves that is not too high, and at least
/// `least`.
fn lowered(from: u64, least: u64, is_too_high: impl Fn(u64) -> bool) -> u64 {
    let halves = std::iter::successors(Some(from), |most| Some(most / 2));
    halves.take_while(|&most| most > least).find(|&most| !is_too_high(most)).unwrap_or(least)
}
