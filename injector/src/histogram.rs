//! Samples by place: 2-byte bins over the program's text, 16-byte bins over the arena of thunks.

use std::collections::BTreeMap;

/// What the bins cover; the same in the region file, where the agent's timers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Link addresses, the end excluded.
    pub(crate) text: (u64, u64),
    /// Link address.
    pub(crate) arena: u64,
    pub(crate) arena_len: u64,
}

const TEXT_BIN: u64 = 2;
const ARENA_BIN: u64 = 16;

/// Where a bin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Link address.
    Text(u64),
    /// Offset in the arena.
    Arena(u64),
}

impl Shape {
    pub(crate) fn text_bins(&self) -> u64 {
        self.text.1.saturating_sub(self.text.0).div_ceil(TEXT_BIN)
    }

    pub(crate) fn arena_bins(&self) -> u64 {
        self.arena_len.div_ceil(ARENA_BIN)
    }

    pub(crate) fn bins(&self) -> u64 {
        self.text_bins().saturating_add(self.arena_bins())
    }

    /// The bin of a link address.
    fn bin(&self, address: u64) -> Option<u64> {
        if (self.text.0..self.text.1).contains(&address) {
            return Some((address - self.text.0) / TEXT_BIN);
        }
        // The arena of a PIE may lie below address 0.
        let offset = address.wrapping_sub(self.arena);
        (offset < self.arena_len).then(|| self.text_bins() + offset / ARENA_BIN)
    }

    pub(crate) fn place(&self, bin: u64) -> Place {
        match bin.checked_sub(self.text_bins()) {
            None => Place::Text(self.text.0 + bin * TEXT_BIN),
            Some(bin) => Place::Arena(bin * ARENA_BIN),
        }
    }
}

/// Samples of one run. Few bins of many are ever hit.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    pub(crate) shape: Shape,
    bins: BTreeMap<u64, u64>,
    pub(crate) outside: u64,
}

impl Histogram {
    pub(crate) fn new(shape: Shape) -> Histogram {
        Histogram { shape, bins: BTreeMap::new(), outside: 0 }
    }

    /// Counts a sample at a link address; None: at a place that has none.
    pub(crate) fn add(&mut self, address: Option<u64>) {
        match address.and_then(|address| self.shape.bin(address)) {
            Some(bin) => *self.bins.entry(bin).or_default() += 1,
            None => self.outside += 1,
        }
    }

    /// Adds the bins of a region file from bin `first` on.
    pub(crate) fn add_bins(&mut self, first: u64, counts: impl Iterator<Item = u32>) {
        for (bin, count) in (first..self.shape.bins()).zip(counts).filter(|&(_, count)| count > 0) {
            *self.bins.entry(bin).or_default() += u64::from(count);
        }
    }

    /// As bytes, for a file: words, the samples outside, then bins and their counts.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let bins = self.bins.iter().flat_map(|(&bin, &count)| [bin, count]);
        std::iter::once(self.outside).chain(bins).flat_map(u64::to_le_bytes).collect()
    }

    /// Adds what [`Histogram::encode`] gave. Bins that cannot be are left out.
    pub(crate) fn add_encoded(&mut self, bytes: &[u8]) {
        let mut words =
            bytes.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)));
        self.outside += words.next().unwrap_or(0);
        while let (Some(bin), Some(count)) = (words.next(), words.next()) {
            if bin < self.shape.bins() {
                *self.bins.entry(bin).or_default() += count;
            }
        }
    }

    /// Takes away what was there before.
    pub(crate) fn subtract(&mut self, before: &Histogram) {
        self.outside = self.outside.saturating_sub(before.outside);
        for (bin, count) in &before.bins {
            if let Some(now) = self.bins.get_mut(bin) {
                *now = now.saturating_sub(*count);
            }
        }
        self.bins.retain(|_, count| *count > 0);
    }

    /// Places with samples.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, u64)> {
        self.bins.iter().map(|(&bin, &count)| (self.shape.place(bin), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_arena_have_their_bins() {
        let arena = 0u64.wrapping_sub(0x1000);
        let mut histogram = Histogram::new(Shape { text: (0x1001, 0x1010), arena, arena_len: 0x1000 });
        for address in [0x1001, 0x1002, 0x100f, 0x1010, 0x1000, arena, 0u64.wrapping_sub(1), 0] {
            histogram.add(Some(address));
        }
        histogram.add(None);
        let mut again = Histogram::new(histogram.shape);
        again.add_encoded(&histogram.encode());
        let histogram = again;
        assert_eq!(histogram.outside, 4);
        let places: Vec<_> = histogram.places().collect();
        assert_eq!(
            places,
            [
                (Place::Text(0x1001), 2),
                (Place::Text(0x100f), 1),
                (Place::Arena(0), 1),
                (Place::Arena(0xff0), 1)
            ]
        );
    }
}
