//! A profile in memory: 64-bit counts, independent of how the file has split them.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::build_id::BuildId;
use crate::format::Format;

/// The unit of a histogram that counts time.
pub const SECONDS: Unit = Unit { dimension: *b"seconds\0\0\0\0\0\0\0\0", abbrev: b's' };

/// The unit of a histogram that counts billions of executed instructions.
pub const BILLIONS: Unit = Unit { dimension: *b"Ginstructions\0\0", abbrev: b'i' };

/// The unit of a histogram's hits, divided by its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The name, padded with zero bytes; in practice `seconds`.
    pub dimension: [u8; 15],
    /// The letter that gprof prints before `/call`.
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
    /// The first address (link-time).
    pub low: u64,
    /// The address after the last one.
    pub high: u64,
    /// Samples per unit (per second). gprof uses the first histogram's rate for all.
    pub rate: u32,
    pub unit: Unit,
    /// The hits. Bin `i` covers `[low + i*w, low + (i+1)*w)`, where `w = (high - low) / bins.len()` bytes.
    pub bins: Vec<u64>,
}

/// The error for a histogram that no file can represent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("histogram {low:#x}..{high:#x} with {bins} bins, expected {expected}")]
pub struct ShapeError {
    pub low: u64,
    pub high: u64,
    pub bins: u64,
    pub expected: &'static str,
}

impl Histogram {
    /// Returns the sum of all hits, at most `u64::MAX`.
    pub fn hits(&self) -> u64 {
        self.bins.iter().fold(0, |sum, &bin| sum.saturating_add(bin))
    }

    /// Whether the address is in `[low, high)`.
    pub fn covers(&self, address: u64) -> bool {
        (self.low..self.high).contains(&address)
    }

    /// Returns the first address of a bin.
    pub fn bin_address(&self, bin: usize) -> u64 {
        let range = u128::from(self.high.saturating_sub(self.low));
        let offset = range * bin as u128 / (self.bins.len().max(1) as u128);
        self.low.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }

    /// Returns the number of bytes in a bin, which is `NaN` or infinite without bins.
    pub fn bin_width(&self) -> f64 {
        self.high.wrapping_sub(self.low) as f64 / self.bins.len() as f64
    }

    /// Returns gprof's scale: the number of 2-byte units in a bin (binutils `gprof/hist.c`,
    /// `read_histogram_header`, which also drops the odd byte of the range).
    pub fn scale(&self) -> f64 {
        (self.high.wrapping_sub(self.low) / 2) as f64 / self.bins.len() as f64
    }

    /// Checks that the bins cover an ascending range, and that the range has bins, unless both are empty.
    ///
    /// # Errors
    /// They do not.
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

/// Returns what is wrong with a histogram's range, as a text of what was expected.
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

/// The calls from one place to one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arc {
    /// An address inside the caller (link-time).
    pub from: u64,
    /// An address inside the called function (gprof's `self_pc`).
    pub to: u64,
    /// The number of calls.
    pub count: u64,
}

/// The executions of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The basic block's address (link-time).
    pub addr: u64,
    /// The number of executions.
    pub count: u64,
}

/// The contents of one gmon.out file, or the sum of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub format: Format,
    /// The build of the profiled program.
    pub build_id: BuildId,
    pub histograms: Vec<Histogram>,
    pub arcs: Vec<Arc>,
    pub blocks: Vec<Block>,
}

/// The error for a sum that does not fit into 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the {what} at {address:#x} counts to more than {}, expected a sum of at most 64 bits", u64::MAX)]
pub struct CountOverflow {
    pub what: &'static str,
    pub address: u64,
}

impl Profile {
    /// Returns a profile without records.
    pub fn new(format: Format) -> Profile {
        Profile {
            format,
            build_id: BuildId::UNKNOWN,
            histograms: Vec::new(),
            arcs: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Whether there is no record at all.
    pub fn is_empty(&self) -> bool {
        self.histograms.is_empty() && self.arcs.is_empty() && self.blocks.is_empty()
    }

    /// Returns the rate that gprof uses: the first histogram's, in samples per unit.
    pub fn rate(&self) -> Option<u32> {
        self.histograms.first().map(|histogram| histogram.rate)
    }

    /// Sorts everything by address and sums equal arcs, equal blocks, and histograms of the same range, bins,
    /// rate and unit. [`read()`](crate::read()) returns profiles in this form.
    ///
    /// # Errors
    /// A sum does not fit into 64 bits.
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

/// Adds `count` to `sum`.
///
/// # Errors
/// The sum does not fit into 64 bits. The error has the address.
pub(crate) fn add(what: &'static str, address: u64, sum: &mut u64, count: u64) -> Result<(), CountOverflow> {
    *sum = sum.checked_add(count).ok_or(CountOverflow { what, address })?;
    Ok(())
}

/// Adds `bins` to those of `into` from its bin `first` on. `into` must have so many.
///
/// # Errors
/// A sum does not fit into 64 bits.
pub(crate) fn add_bins(into: &mut Histogram, first: usize, bins: &[u64]) -> Result<(), CountOverflow> {
    for (index, &count) in bins.iter().enumerate() {
        if count != 0 {
            let address = into.bin_address(first + index);
            add("histogram bin", address, &mut into.bins[first + index], count)?;
        }
    }
    Ok(())
}
