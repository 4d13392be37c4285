//! Makes histograms from exact samples so that gprof charges them to the right functions.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::Width;
use crate::profile::{Histogram, SECONDS, Unit};

/// The number of bytes of text that a histogram covers; it begins at a multiple of this number. With the same
/// boundaries in every file, gprof can sum files: it refuses ranges that overlap without being equal.
pub const CHUNK: u64 = 4096;

/// The number of bytes in a bin, which is gprof's unit (binutils `gprof/hist.c` divides addresses by
/// `sizeof (UNIT)`).
const BIN: u64 = 2;

/// Collects samples and makes histograms with 2-byte bins, one for each [`CHUNK`] with samples.
#[derive(Clone, Debug)]
pub struct HistogramBuilder {
    text: Range<u64>,
    rate: u32,
    unit: Unit,
    functions: Vec<u64>,
    samples: BTreeMap<u64, u64>,
    outside: u64,
}

/// The result of a [`HistogramBuilder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The histograms, of which there is at least one, sorted and separate.
    pub histograms: Vec<Histogram>,
    /// The number of hits that are in no histogram, because they are outside the text or in functions without
    /// a bin.
    pub outside: u64,
}

impl HistogramBuilder {
    /// Returns a builder without samples. `text` is the range of the program's link-time addresses; samples
    /// elsewhere are counted but not placed. `rate` is the number of samples per second.
    pub fn new(text: Range<u64>, rate: u32) -> HistogramBuilder {
        let (functions, samples) = (Vec::new(), BTreeMap::new());
        HistogramBuilder { text, rate, unit: SECONDS, functions, samples, outside: 0 }
    }

    /// Sets the unit, for counts of something other than seconds.
    pub fn unit(mut self, unit: Unit) -> HistogramBuilder {
        self.unit = unit;
        self
    }

    /// Sets the addresses of all symbols that gprof will see, in any order. They are needed for functions at
    /// odd addresses.
    pub fn functions(mut self, starts: impl IntoIterator<Item = u64>) -> HistogramBuilder {
        self.functions = starts.into_iter().collect();
        self.functions.sort_unstable();
        self.functions.dedup();
        self
    }

    /// Whether gprof charges some bin to the function that contains `pc`. It does not if the function and the
    /// next one begin in the same bin.
    pub fn has_bin(&self, pc: u64) -> bool {
        self.bin_of(pc).is_some()
    }

    /// Adds hits at an address. A sum beyond 64 bits stays at the highest number.
    pub fn add(&mut self, pc: u64, hits: u64) {
        if self.text.contains(&pc) && pc < last_bin_end(Width::Bits64) {
            let sum = self.samples.entry(pc).or_insert(0);
            *sum = sum.saturating_add(hits);
        } else {
            self.outside = self.outside.saturating_add(hits);
        }
    }

    /// Returns the histograms. Without samples in the text, there is an empty one at its start. Hits in
    /// functions without a bin are in none.
    pub fn build(&self) -> Sampled {
        let mut chunks: BTreeMap<u64, Histogram> = BTreeMap::new();
        let mut outside = self.outside;
        for (&pc, &hits) in self.samples.iter().filter(|&(_, &hits)| hits > 0) {
            let Some(address) = self.bin_of(pc) else {
                outside = outside.saturating_add(hits);
                continue;
            };
            let chunk = chunks.entry(address / CHUNK).or_insert_with(|| self.chunk(address));
            let bin = &mut chunk.bins[((address - chunk.low) / BIN) as usize];
            *bin = bin.saturating_add(hits);
        }
        let mut histograms: Vec<_> = chunks.into_values().collect();
        if histograms.is_empty() {
            histograms.push(self.chunk(self.text.start));
        }
        Sampled { histograms, outside }
    }

    fn chunk(&self, address: u64) -> Histogram {
        Histogram { unit: self.unit, ..empty_chunk(address, Width::Bits64, self.rate) }
    }

    /// Returns the address of a bin that gprof charges to the function that contains `pc`: the bin with `pc`
    /// or, if that belongs to another function, the one before. gprof rounds the functions' addresses down to
    /// bins.
    ///
    /// ```text
    /// bytes    ... f f | f g | g h | h ...     g and h start at odd addresses.
    /// bins       i-1      i    i+1             Bin i is g's, and f's last byte is counted in bin i-1.
    /// ```
    fn bin_of(&self, pc: u64) -> Option<u64> {
        let down = |address: u64| address & !(BIN - 1);
        let after = self.functions.partition_point(|&start| start <= pc);
        let first = after.checked_sub(1).map_or(0, |index| down(self.functions[index]));
        let Some(&next) = self.functions.get(after) else { return Some(down(pc)) };
        let last = down(next).checked_sub(BIN).filter(|&last| last >= first)?;
        Some(down(pc).min(last))
    }
}

/// Returns the end of the last bin that an address of this width can give as the end of a range.
fn last_bin_end(width: Width) -> u64 {
    width.max_address() & !(BIN - 1)
}

/// Returns a histogram without hits for the chunk that contains the address. The chunk at the highest
/// addresses is shorter, because its end must be an address.
pub(crate) fn empty_chunk(address: u64, width: Width, rate: u32) -> Histogram {
    let low = address.min(width.max_address()) / CHUNK * CHUNK;
    let high = low.saturating_add(CHUNK).min(last_bin_end(width));
    let bins = vec![0; ((high - low) / BIN) as usize];
    Histogram { low, high, rate, unit: SECONDS, bins }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the address and the hits of each bin that has any.
    fn bins(builder: &HistogramBuilder) -> Vec<(u64, u64)> {
        let histograms = builder.build().histograms;
        let hits = |h: &Histogram| {
            let bins = h.bins.iter().enumerate().filter(|&(_, &hits)| hits > 0);
            bins.map(|(index, &hits)| (h.bin_address(index), hits)).collect::<Vec<_>>()
        };
        histograms.iter().flat_map(hits).collect()
    }

    fn sampled(functions: &[u64], pc: u64) -> u64 {
        let mut builder = HistogramBuilder::new(0xff0..0x4000, 1).functions(functions.iter().copied());
        builder.add(pc, 1);
        bins(&builder)[0].0
    }

    #[test]
    fn the_byte_before_an_odd_function() {
        let functions = [0x1000, 0x1003, 0x1010, 0x1011, 0x1021, 0x1023, 0x2001];
        assert_eq!(sampled(&functions, 0x1001), 0x1000);
        assert_eq!(sampled(&functions, 0x1002), 0x1000, "not in 0x1003's bin");
        assert_eq!(sampled(&functions, 0x1003), 0x1002);
        assert_eq!(sampled(&functions, 0x1022), 0x1020, "0x1021's own bin");
        let mut none = HistogramBuilder::new(0xff0..0x4000, 1).functions(functions);
        assert!(!none.has_bin(0x1010), "a function of one byte owns no bin");
        none.add(0x1010, 3);
        assert_eq!((bins(&none).len(), none.build().outside), (0, 3));
        assert_eq!(sampled(&functions, 0x2000), 0x1ffe, "in the chunk before");
    }

    #[test]
    fn only_chunks_with_samples() {
        let mut builder = HistogramBuilder::new(0x1100..0x9000, 250);
        builder.add(0x10ff, 1);
        builder.add(0x9000, 1);
        builder.add(0x3000, 0);
        let empty = builder.build();
        assert_eq!(empty.outside, 2);
        assert_eq!(empty.histograms.len(), 1);
        assert_eq!((empty.histograms[0].low, empty.histograms[0].hits()), (0x1000, 0));
        builder.add(0x2fff, 3);
        builder.add(0x3000, 4);
        builder.add(0x8000, 5);
        let lows: Vec<_> = builder.build().histograms.iter().map(|h| (h.low, h.high)).collect();
        assert_eq!(lows, [(0x2000, 0x3000), (0x3000, 0x4000), (0x8000, 0x9000)]);
        assert_eq!(bins(&builder), [(0x2ffe, 3), (0x3000, 4), (0x8000, 5)]);
    }

    #[test]
    fn the_top_of_the_address_space() {
        let mut builder = HistogramBuilder::new(0..u64::MAX, 1);
        builder.add(u64::MAX - 2, 1);
        builder.add(u64::MAX - 1, 1);
        builder.add(0, 1);
        let built = builder.build();
        assert_eq!(built.outside, 1);
        assert_eq!(bins(&builder), [(0, 1), (u64::MAX - 3, 1)]);
    }
}
