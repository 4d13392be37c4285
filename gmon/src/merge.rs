//! Sums profiles in 64 bits. (`gprof -s` truncates arcs to 32 bits and bins to 16.)

use std::collections::BTreeMap;

use thiserror::Error;

use crate::build_id::{BuildId, BuildMismatch};
use crate::format::Format;
use crate::profile::{Arc, Block, CountOverflow, Histogram, Profile, ShapeError, Unit, add, add_bins};

/// Why profiles cannot be summed. Each variant has both values.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MergeError {
    #[error("a {other} profile after {first} ones, expected one program's profiles")]
    Formats { first: Format, other: Format },
    #[error(transparent)]
    Builds(#[from] BuildMismatch),
    #[error("a rate of {other} per second after {first}, expected one rate")]
    Rates { first: u32, other: u32 },
    #[error("a histogram in {other} after {first}, expected one unit")]
    Units { first: Unit, other: Unit },
    #[error("histogram bins of {other} bytes after {first}, expected one bin width")]
    Scales { first: f64, other: f64 },
    #[error(
        "bins of {width} bytes that start at {first:#x} and at {other:#x}, expected a multiple of the width between them"
    )]
    Alignment { first: u64, other: u64, width: f64 },
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Overflow(#[from] CountOverflow),
}

/// Sums profiles. The result does not depend on their order or grouping. The sum of no profiles is an empty
/// 64-bit little-endian one.
///
/// # Errors
/// The profiles differ in format, build, unit or rate, or a sum exceeds 64 bits.
pub fn merge(profiles: impl IntoIterator<Item = Profile>) -> Result<Profile, MergeError> {
    let mut merger = Merger::default();
    for profile in profiles {
        merger.add(profile)?;
    }
    Ok(merger.finish())
}

/// Sums profiles one at a time.
///
/// Arcs and blocks are summed by address. Histograms of equal range are summed; ranges that overlap become
/// one, bin by bin, if the bins have the same width and alignment; separate ranges stay separate, so fixed
/// chunks do not change. A profile without any record has no format of its own, and a histogram without hits
/// has no rate. Build-ids must agree if they are known.
#[derive(Clone, Debug, Default)]
pub struct Merger {
    /// The format, and whether a profile with records has set it.
    format: Option<(Format, bool)>,
    build_id: BuildId,
    histograms: Vec<Histogram>,
    arcs: BTreeMap<(u64, u64), u64>,
    blocks: BTreeMap<u64, u64>,
}

impl Merger {
    /// Adds a profile. After an error the sum is incomplete and must be dropped.
    ///
    /// # Errors
    /// The profile differs from the others in format, build, unit or rate, or a sum exceeds 64 bits.
    pub fn add(&mut self, profile: Profile) -> Result<(), MergeError> {
        self.agree_on_format(profile.format, !profile.is_empty())?;
        self.build_id = self.build_id.agree(profile.build_id)?;
        let arcs = profile.arcs.into_iter().map(|arc| ((arc.from, arc.to), arc.count));
        let blocks = profile.blocks.into_iter().map(|block| (block.addr, block.count));
        self.records(arcs, blocks, profile.histograms)
    }

    /// Adds everything that another merger has summed: the result is as if its profiles had been added here. After an
    /// error the sum is incomplete and must be dropped.
    ///
    /// # Errors
    /// Profiles of the other merger differ from those of this one in format, build, unit or rate, or a sum exceeds 64
    /// bits.
    pub fn join(&mut self, other: Merger) -> Result<(), MergeError> {
        if let Some((format, is_binding)) = other.format {
            self.agree_on_format(format, is_binding)?;
        }
        self.build_id = self.build_id.agree(other.build_id)?;
        self.records(other.arcs, other.blocks, other.histograms)
    }

    /// Takes the format of further profiles into account. It is binding if one of them has records.
    fn agree_on_format(&mut self, other: Format, is_binding: bool) -> Result<(), MergeError> {
        self.format = Some(match self.format {
            None => (other, is_binding),
            Some((first, true)) if is_binding && first != other => {
                return Err(MergeError::Formats { first, other });
            }
            Some((first, true)) => (first, true),
            Some((_, false)) if is_binding => (other, true),
            Some((first, false)) => (first.min(other), false),
        });
        Ok(())
    }

    fn records(
        &mut self,
        arcs: impl IntoIterator<Item = ((u64, u64), u64)>,
        blocks: impl IntoIterator<Item = (u64, u64)>,
        histograms: Vec<Histogram>,
    ) -> Result<(), MergeError> {
        for ((from, to), count) in arcs {
            add("arc", to, self.arcs.entry((from, to)).or_insert(0), count)?;
        }
        for (address, count) in blocks {
            add("basic block", address, self.blocks.entry(address).or_insert(0), count)?;
        }
        for histogram in histograms {
            histogram.validate()?;
            if !histogram.bins.is_empty() {
                self.histograms.push(histogram);
            }
        }
        agree(&mut self.histograms)?;
        self.histograms = join_overlapping(std::mem::take(&mut self.histograms))?;
        Ok(())
    }

    /// Returns the sum, sorted by address.
    pub fn finish(self) -> Profile {
        Profile {
            format: self.format.map_or(Format::LITTLE_64, |(format, _)| format),
            build_id: self.build_id,
            histograms: self.histograms,
            arcs: self.arcs.into_iter().map(|((from, to), count)| Arc { from, to, count }).collect(),
            blocks: self.blocks.into_iter().map(|(addr, count)| Block { addr, count }).collect(),
        }
    }
}

/// Checks that all histograms have the same unit and bin width, and those with hits the same rate. The others
/// get that rate, because no hits are no time at any rate. If no histogram has hits, all get the highest
/// rate.
fn agree(histograms: &mut [Histogram]) -> Result<(), MergeError> {
    let Some(first) = histograms.first() else { return Ok(()) };
    for other in &histograms[1..] {
        if first.unit != other.unit {
            return Err(MergeError::Units { first: first.unit, other: other.unit });
        }
        if bins_per_range(first, other) != bins_per_range(other, first) {
            return Err(MergeError::Scales { first: first.bin_width(), other: other.bin_width() });
        }
    }
    let mut with_hits = histograms.iter().filter(|h| h.bins.iter().any(|&bin| bin > 0)).map(|h| h.rate);
    let rate = match with_hits.next() {
        Some(first) => match with_hits.find(|&other| other != first) {
            Some(other) => return Err(MergeError::Rates { first, other }),
            None => Some(first),
        },
        None => histograms.iter().map(|h| h.rate).max(),
    };
    for histogram in histograms {
        histogram.rate = rate.unwrap_or(histogram.rate);
    }
    Ok(())
}

/// Returns one side of `a.bins/a.range == b.bins/b.range`, without a division.
fn bins_per_range(a: &Histogram, b: &Histogram) -> u128 {
    a.bins.len() as u128 * u128::from(b.high - b.low)
}

fn join_overlapping(mut histograms: Vec<Histogram>) -> Result<Vec<Histogram>, MergeError> {
    histograms.sort_by_key(|h| (h.low, h.high));
    let mut joined: Vec<Histogram> = Vec::with_capacity(histograms.len());
    for histogram in histograms {
        match joined.last_mut() {
            Some(last) if histogram.low < last.high => join(last, &histogram)?,
            _ => joined.push(histogram),
        }
    }
    Ok(joined)
}

/// Adds `other`, which begins within `into` and has the same bin width.
fn join(into: &mut Histogram, other: &Histogram) -> Result<(), MergeError> {
    let range = u128::from(into.high - into.low);
    let distance = u128::from(other.low - into.low) * into.bins.len() as u128;
    let misaligned = MergeError::Alignment { first: into.low, other: other.low, width: into.bin_width() };
    if !distance.is_multiple_of(range) {
        return Err(misaligned);
    }
    // The index is less than into.bins.len(), because other.low < into.high.
    let Ok(first) = usize::try_from(distance / range) else { return Err(misaligned) };
    if first + other.bins.len() > into.bins.len() {
        into.bins.resize(first + other.bins.len(), 0);
        into.high = other.high;
    }
    Ok(add_bins(into, first, &other.bins)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::SECONDS;

    fn profile(low: u64, width: u64, bins: &[u64]) -> Profile {
        let high = low + width * bins.len() as u64;
        let histogram = Histogram { low, high, rate: 100, unit: SECONDS, bins: bins.to_vec() };
        Profile { histograms: vec![histogram], ..Profile::new(Format::LITTLE_64) }
    }

    fn merged(profiles: &[Profile]) -> Result<Vec<(u64, u64, Vec<u64>)>, MergeError> {
        let sum = merge(profiles.iter().cloned())?;
        Ok(sum.histograms.into_iter().map(|h| (h.low, h.high, h.bins)).collect())
    }

    #[test]
    fn equal_touching_overlapping() {
        let a = profile(0x1000, 4, &[1, 2]);
        assert_eq!(merged(&[a.clone(), a.clone()]), Ok(vec![(0x1000, 0x1008, vec![2, 4])]));
        let touching = profile(0x1008, 4, &[5]);
        assert_eq!(
            merged(&[touching, a.clone()]),
            Ok(vec![(0x1000, 0x1008, vec![1, 2]), (0x1008, 0x100c, vec![5])])
        );
        let overlapping = profile(0x1004, 4, &[10, 20]);
        assert_eq!(merged(&[overlapping, a]), Ok(vec![(0x1000, 0x100c, vec![1, 12, 20])]));
    }

    /// Bins over 65535 and arcs over 2^32, which `gprof -s` truncates.
    #[test]
    fn large_counts() {
        let mut a = profile(0x1000, 2, &[60_000]);
        a.arcs = vec![Arc { from: 1, to: 2, count: u64::from(u32::MAX) }];
        let sum = merge([a.clone(), a.clone()]).expect("one kind");
        assert_eq!(sum.histograms[0].bins, [120_000]);
        assert_eq!(sum.arcs[0].count, 2 * u64::from(u32::MAX));
        a.arcs[0].count = u64::MAX;
        let overflow = CountOverflow { what: "arc", address: 2 };
        assert_eq!(merge([a.clone(), a]), Err(MergeError::Overflow(overflow)));
    }

    #[test]
    fn refusals_name_both_values() {
        let a = profile(0x1000, 4, &[1, 2]);
        let says = |other: &Profile, words: &str| {
            let error = merge([a.clone(), other.clone()]).expect_err("incompatible").to_string();
            assert!(error.contains(words), "{error}");
        };
        let mut other = a.clone();
        other.histograms[0].rate = 250;
        says(&other, "a rate of 250 per second after 100");
        other = a.clone();
        other.histograms[0].unit = Unit { dimension: *b"misses\0\0\0\0\0\0\0\0\0", abbrev: b'm' };
        says(&other, "misses (m) after seconds (s)");
        says(&profile(0x1000, 2, &[1, 2]), "bins of 2 bytes after 4");
        says(&profile(0x1002, 4, &[1, 2]), "bins of 4 bytes that start at 0x1000 and at 0x1002");
        other = a.clone();
        other.format = Format::BIG_32;
        says(&other, "32-bit big-endian profile after 64-bit little-endian");
        other = a.clone();
        other.histograms[0].high = 0;
        says(&other, "0x1000..0x0 with 2 bins");
    }

    #[test]
    fn without_hits_there_is_no_rate_and_without_records_no_format() {
        let a = profile(0x1000, 4, &[1]);
        let mut silent = profile(0x2000, 4, &[0]);
        silent.histograms[0].rate = 7777;
        let empty = Profile::new(Format::BIG_32);
        let sum = merge([empty.clone(), silent.clone(), a.clone()]).expect("nothing against it");
        assert_eq!(sum.format, Format::LITTLE_64);
        assert!(sum.histograms.iter().all(|h| h.rate == 100));
        assert_eq!(sum.histograms.len(), 2);
        assert_eq!(merge([a, silent, empty]), Ok(sum));
    }
}
