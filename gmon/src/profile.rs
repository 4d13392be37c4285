//! A profile in memory: 64-bit counts, no trace of how the file split them.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::build_id::BuildId;
use crate::format::Format;

/// What a histogram counts, when it counts time.
pub const SECONDS: Unit = Unit { dimension: *b"seconds\0\0\0\0\0\0\0\0", abbrev: b's' };

/// What a histogram's hits, divided by its rate, are measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// Name, filled up with zero bytes; `seconds` in practice.
    pub dimension: [u8; 15],
    /// One letter, which gprof prints before `/call`.
    pub abbrev: u8,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.dimension.split(|&byte| byte == 0).next().unwrap_or_default();
        write!(f, "{} ({})", name.escape_ascii(), self.abbrev.escape_ascii())
    }
}

/// Samples of the program counter over `[low, high)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// First address covered (link-time).
    pub low: u64,
    /// First address beyond.
    pub high: u64,
    /// Samples per unit (per second). gprof takes the first histogram's for all.
    pub rate: u32,
    pub unit: Unit,
    /// Hits. Bin `i` covers `[low + i*w, low + (i+1)*w)`, with `w = (high - low) / bins.len()` bytes.
    pub bins: Vec<u64>,
}

/// A histogram that no file can hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("histogram {low:#x}..{high:#x} with {bins} bins, expected {expected}")]
pub struct ShapeError {
    pub low: u64,
    pub high: u64,
    pub bins: u64,
    pub expected: &'static str,
}

impl Histogram {
    /// All hits, at most `u64::MAX`.
    pub fn hits(&self) -> u64 {
        self.bins.iter().fold(0, |sum, &bin| sum.saturating_add(bin))
    }

    /// Is the address in `[low, high)`?
    pub fn covers(&self, address: u64) -> bool {
        (self.low..self.high).contains(&address)
    }

    /// First address of a bin.
    pub fn bin_address(&self, bin: usize) -> u64 {
        let range = u128::from(self.high.saturating_sub(self.low));
        let offset = range * bin as u128 / (self.bins.len().max(1) as u128);
        self.low.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }

    /// Bytes a bin; `NaN` or infinite without bins.
    pub fn bin_width(&self) -> f64 {
        self.high.wrapping_sub(self.low) as f64 / self.bins.len() as f64
    }

    /// gprof's scale: 2-byte units a bin (binutils `gprof/hist.c`, `read_histogram_header`, which
    /// also drops the odd byte of the range).
    pub fn scale(&self) -> f64 {
        (self.high.wrapping_sub(self.low) / 2) as f64 / self.bins.len() as f64
    }

    /// Bins must cover an ascending range, and a range must have bins, unless both are empty.
    pub fn validate(&self) -> Result<(), ShapeError> {
        match range_fault(self.low, self.high, self.bins.len() as u64) {
            None => Ok(()),
            Some(expected) => {
                let bins = self.bins.len() as u64;
                Err(ShapeError { low: self.low, high: self.high, bins, expected })
            }
        }
    }
}

/// What is wrong with a histogram's range, in terms of what was expected.
pub(crate) fn range_fault(low: u64, high: u64, bins: u64) -> Option<&'static str> {
    if high < low {
        Some("an end that is not below the start")
    } else if bins > 0 && high == low {
        Some("a range that is not empty")
    } else if bins == 0 && high > low {
        Some("at least one bin")
    } else if bins > u64::from(u32::MAX) {
        Some("at most 4294967295 bins")
    } else {
        None
    }
}

/// Calls from a place to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arc {
    /// An address inside the caller (link-time).
    pub from: u64,
    /// An address inside the function called (gprof's `self_pc`).
    pub to: u64,
    /// Calls.
    pub count: u64,
}

/// Executions of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The block's address (link-time).
    pub addr: u64,
    /// Executions.
    pub count: u64,
}

/// One gmon.out file's content, or the sum of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub format: Format,
    /// The profiled program's.
    pub build_id: BuildId,
    pub histograms: Vec<Histogram>,
    pub arcs: Vec<Arc>,
    pub blocks: Vec<Block>,
}

/// A sum does not fit in 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the {what} at {address:#x} counts to more than {}, expected a sum of at most 64 bits", u64::MAX)]
pub struct CountOverflow {
    pub what: &'static str,
    pub address: u64,
}

impl Profile {
    /// A profile with nothing in it.
    pub fn new(format: Format) -> Profile {
        Profile {
            format,
            build_id: BuildId::UNKNOWN,
            histograms: Vec::new(),
            arcs: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// No record at all?
    pub fn is_empty(&self) -> bool {
        self.histograms.is_empty() && self.arcs.is_empty() && self.blocks.is_empty()
    }

    /// The rate that gprof uses: the first histogram's, in samples per unit.
    pub fn rate(&self) -> Option<u32> {
        self.histograms.first().map(|histogram| histogram.rate)
    }

    /// Sorts everything by address and sums equal arcs, equal blocks, and histograms of the same
    /// range, bins, rate and unit. What [`read()`](crate::read()) returns is in this form.
    pub fn normalize(&mut self) -> Result<(), CountOverflow> {
        let mut arcs = BTreeMap::new();
        for arc in self.arcs.drain(..) {
            add("arc", arc.to, arcs.entry((arc.from, arc.to)).or_insert(0), arc.count)?;
        }
        self.arcs = arcs.into_iter().map(|((from, to), count)| Arc { from, to, count }).collect();

        let mut blocks = BTreeMap::new();
        for block in self.blocks.drain(..) {
            add("basic block", block.addr, blocks.entry(block.addr).or_insert(0), block.count)?;
        }
        self.blocks = blocks.into_iter().map(|(addr, count)| Block { addr, count }).collect();

        let mut histograms: BTreeMap<_, Histogram> = BTreeMap::new();
        for histogram in self.histograms.drain(..) {
            let Histogram { low, high, rate, unit, .. } = histogram;
            match histograms.entry((low, high, histogram.bins.len(), unit, rate)) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(histogram);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    add_bins(entry.get_mut(), 0, &histogram.bins)?;
                }
            }
        }
        self.histograms = histograms.into_values().collect();
        Ok(())
    }
}

/// `sum += count`, or an error that says where.
pub(crate) fn add(what: &'static str, address: u64, sum: &mut u64, count: u64) -> Result<(), CountOverflow> {
    *sum = sum.checked_add(count).ok_or(CountOverflow { what, address })?;
    Ok(())
}

/// Adds bins to those of `into` from its bin `first` on, which must have that many.
pub(crate) fn add_bins(into: &mut Histogram, first: usize, bins: &[u64]) -> Result<(), CountOverflow> {
    for (index, &count) in bins.iter().enumerate() {
        if count != 0 {
            let address = into.bin_address(first + index);
            add("histogram bin", address, &mut into.bins[first + index], count)?;
        }
    }
    Ok(())
}
