//! Samples by link address, and the bins in the region file in which the agent's timers count.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::store::shape::{Place, Shape};

/// The samples of one run. The file beside the counters has only the numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Histogram {
    #[serde(skip)]
    pub(crate) shape: Shape,
    /// The number of samples by link address. Each address has a [`Place`].
    counts: BTreeMap<u64, u64>,
    /// The number of samples outside of the program.
    pub(crate) outside: u64,
    /// Where those are, as far as that is known.
    #[serde(skip)]
    pub(crate) elsewhere: Elsewhere,
}

/// The places of samples outside of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// The number of samples by mapped file and offset in it. The name is as in [`Event::Map`].
    ///
    /// [`Event::Map`]: crate::sampling::records::Event::Map
    pub(crate) files: BTreeMap<(Arc<str>, u64), u64>,
    /// The number of samples in memory without a file, by time and runtime address: another function may have been there at another time.
    /// The time is [`ALWAYS`] if it does not matter.
    pub(crate) memory: BTreeMap<(u64, u64), u64>,
    /// Times are rounded down to a multiple of `1 << rounded` nanoseconds.
    rounded: u32,
    /// The number of samples at addresses where nothing is mapped, as far as is known.
    pub(crate) unmapped: BTreeMap<u64, u64>,
}

/// The time of samples for which the time does not matter.
pub(crate) const ALWAYS: u64 = u64::MAX;

/// The greatest number of different places. A program can make any number of them.
const PLACES_MAX: usize = 1 << 20;
/// The number of places above which times are rounded more, and to how much at least: a millisecond.
const TIMES_MAX: usize = 1 << 17;
const ROUNDED_LEAST: u32 = 20;
/// Rounded so, all times are the same.
const ROUNDED_MOST: u32 = 63;

impl Elsewhere {
    /// Counts samples at an offset of a file.
    pub(crate) fn add_file(&mut self, file: &Arc<str>, offset: u64, samples: u64) {
        add(&mut self.files, (Arc::clone(file), offset), samples);
    }

    /// Counts samples at an address in memory without a file.
    pub(crate) fn add_memory(&mut self, time: u64, address: u64, samples: u64) {
        add(&mut self.memory, (round(time, self.rounded), address), samples);
        if time != ALWAYS && self.memory.len() > TIMES_MAX && self.rounded < ROUNDED_MOST {
            self.rounded = (self.rounded + 1).max(ROUNDED_LEAST);
            for ((time, address), count) in std::mem::take(&mut self.memory) {
                add(&mut self.memory, (round(time, self.rounded), address), count);
            }
        }
    }

    /// Counts samples at an address where nothing is mapped.
    pub(crate) fn add_unmapped(&mut self, address: u64, samples: u64) {
        add(&mut self.unmapped, address, samples);
    }

    /// Returns the number of samples.
    pub(crate) fn sum(&self) -> u64 {
        let counts = self.files.values().chain(self.memory.values()).chain(self.unmapped.values());
        counts.fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds other samples.
    pub(crate) fn add_all(&mut self, other: Elsewhere) {
        other.files.into_iter().for_each(|(place, count)| add(&mut self.files, place, count));
        other.memory.into_iter().for_each(|((time, address), count)| self.add_memory(time, address, count));
        other.unmapped.into_iter().for_each(|(place, count)| add(&mut self.unmapped, place, count));
    }

    fn subtract(&mut self, before: &Elsewhere) {
        subtract(&mut self.files, &before.files);
        let memory = before.memory.iter();
        let mut rounded: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        memory.for_each(|(&(time, address), &count)| {
            add(&mut rounded, (round(time, self.rounded), address), count);
        });
        subtract(&mut self.memory, &rounded);
        subtract(&mut self.unmapped, &before.unmapped);
    }
}

/// Returns a rounded time.
fn round(time: u64, rounded: u32) -> u64 {
    if time == ALWAYS { time } else { time >> rounded << rounded }
}

fn add<K: Ord>(counts: &mut BTreeMap<K, u64>, place: K, samples: u64) {
    if counts.len() < PLACES_MAX {
        let sum = counts.entry(place).or_default();
        *sum = sum.saturating_add(samples);
    }
}

fn subtract<K: Ord>(counts: &mut BTreeMap<K, u64>, before: &BTreeMap<K, u64>) {
    for (place, count) in before {
        if let Some(now) = counts.get_mut(place) {
            *now = now.saturating_sub(*count);
        }
    }
    counts.retain(|_, count| *count > 0);
}

impl Histogram {
    /// Returns a histogram without samples.
    pub(crate) fn new(shape: Shape) -> Histogram {
        Histogram { shape, counts: BTreeMap::new(), outside: 0, elsewhere: Elsewhere::default() }
    }

    /// Counts a sample at a link address. `None` counts it outside the program, as does an address without a
    /// place.
    pub(crate) fn add(&mut self, address: Option<u64>) {
        match address.filter(|&address| self.shape.place(address).is_some()) {
            Some(address) => *self.counts.entry(address).or_default() += 1,
            None => self.outside += 1,
        }
    }

    /// Counts `count` samples at a link address. Returns whether the address has a place.
    pub(crate) fn add_many(&mut self, address: u64, count: u64) -> bool {
        let has_place = self.shape.place(address).is_some();
        if has_place {
            let sum = self.counts.entry(address).or_default();
            *sum = sum.saturating_add(count);
        }
        has_place
    }

    /// Returns the number of samples that have a place.
    pub(crate) fn inside(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds the bins of a region file, from bin `first` on.
    pub(crate) fn add_bins(&mut self, first: u64, counts: impl Iterator<Item = u32>) {
        for (bin, count) in (first..self.shape.bins()).zip(counts).filter(|&(_, count)| count > 0) {
            *self.counts.entry(self.shape.address(bin)).or_default() += u64::from(count);
        }
    }

    /// Returns the numbers of samples as the bytes of a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Memory can be written to.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Adds what [`Histogram::encode`] has returned, unless it is damaged.
    pub(crate) fn add_encoded(&mut self, bytes: &[u8]) {
        if let Ok((other, [])) = postcard::take_from_bytes(bytes) {
            self.add_all(&other);
        }
    }

    /// Adds the samples of another histogram of the same shape. Addresses without a place are left out.
    pub(crate) fn add_all(&mut self, other: &Histogram) {
        for (&address, &count) in &other.counts {
            self.add_many(address, count);
        }
        self.outside = self.outside.saturating_add(other.outside);
    }

    /// Subtracts an earlier state of the same histogram.
    pub(crate) fn subtract(&mut self, before: &Histogram) {
        self.outside = self.outside.saturating_sub(before.outside);
        subtract(&mut self.counts, &before.counts);
        self.elsewhere.subtract(&before.elsewhere);
    }

    /// Returns the places with samples, and their counts.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, u64)> {
        self.counts.iter().filter_map(|(&address, &count)| Some((self.shape.place(address)?, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_if_there_are_too_many() {
        let mut elsewhere = Elsewhere::default();
        let at = |n: u64| n * 1_000_000;
        let count = 3 * TIMES_MAX as u64;
        (0..1000).for_each(|n| elsewhere.add_memory(at(n), 0x1000 + n, 1));
        let early = elsewhere.clone();
        assert_eq!(elsewhere.memory.len(), 1000);
        (1000..count).for_each(|n| elsewhere.add_memory(at(n), 0x1000 + n % 4, 1));
        elsewhere.add_memory(ALWAYS, 0x1000, 5);
        assert_eq!(elsewhere.sum(), count + 5);
        assert!(elsewhere.memory.len() <= TIMES_MAX && elsewhere.rounded <= 24, "{}", elsewhere.rounded);
        assert_eq!(elsewhere.memory.last_key_value(), Some((&(ALWAYS, 0x1000), &5)));
        elsewhere.subtract(&early);
        assert_eq!(elsewhere.sum(), count + 5 - 1000);
        // Places that rounding does not make fewer.
        let mut elsewhere = Elsewhere::default();
        (0..count).for_each(|n| elsewhere.add_memory(at(n), n, 1));
        assert_eq!((elsewhere.rounded, elsewhere.sum()), (ROUNDED_MOST, count));
    }

    #[test]
    fn text_and_arena_have_their_places() {
        let arena = 0u64.wrapping_sub(0x1000);
        let shape = Shape { text: (0x1001, 0x1010), arena, arena_len: 0x1000, text_shift: 1, arena_shift: 4 };
        let mut histogram = Histogram::new(shape);
        for address in [0x1001, 0x1002, 0x100f, 0x1010, 0x1000, arena, 0u64.wrapping_sub(1), 0] {
            histogram.add(Some(address));
        }
        histogram.add(None);
        let mut again = Histogram::new(histogram.shape);
        let bytes = histogram.encode();
        for len in 0..bytes.len() {
            again.add_encoded(&bytes[..len]);
        }
        assert_eq!((again.outside, again.places().count()), (0, 0));
        again.add_encoded(&bytes);
        let mut histogram = again;
        assert_eq!(histogram.outside, 4);
        let exact = [
            (Place::Text(0x1001), 1),
            (Place::Text(0x1002), 1),
            (Place::Text(0x100f), 1),
            (Place::Arena(0), 1),
            (Place::Arena(0xfff), 1),
        ];
        assert_eq!(histogram.places().collect::<Vec<_>>(), exact);
        // Eight bins of the text, and the second bin of the arena.
        histogram.add_bins(7, [1, 0, 2].into_iter());
        let places: Vec<_> = histogram.places().collect();
        assert_eq!(places.len(), 6);
        assert!(places.contains(&(Place::Text(0x100f), 2)) && places.contains(&(Place::Arena(0x10), 2)));
    }
}
