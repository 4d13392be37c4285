//! The calls of many processes of a program, added up.
//!
//! A process of a large program counts tens of thousands of arcs, and a run may have thousands of processes. So nothing is sorted
//! before the end of the run.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use crate::profile::place::Place;

/// The calls: the true callers, and the program's own view.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) arcs: Counts<Place>,
    pub(crate) own: Counts<u64>,
}

/// Counts by pairs of places, in the order in which the pairs came.
pub(crate) struct Counts<P> {
    pub(crate) all: Vec<(P, P, u64)>,
    /// Where each pair is.
    places: HashMap<(P, P), usize, Seed>,
    /// Where the next pair probably is: processes of one program count nearly the same pairs in nearly the same order.
    next: usize,
}

impl<P> Default for Counts<P> {
    fn default() -> Self {
        Counts { all: Vec::new(), places: HashMap::default(), next: 0 }
    }
}

impl<P: Copy + Eq + Hash> Counts<P> {
    /// Adds a count.
    pub(crate) fn add(&mut self, from: P, to: P, count: u64) {
        let is_it = |(known_from, known_to, _): &&mut (P, P, u64)| *known_from == from && *known_to == to;
        if let Some((.., sum)) = self.all.get_mut(self.next).filter(is_it) {
            *sum = sum.saturating_add(count);
            self.next += 1;
            return;
        }
        let at = *self.places.entry((from, to)).or_insert_with(|| {
            self.all.push((from, to, 0));
            self.all.len() - 1
        });
        if let Some((.., sum)) = self.all.get_mut(at) {
            *sum = sum.saturating_add(count);
        }
        self.next = at + 1;
    }

    /// Begins with the pairs of another process.
    pub(crate) fn rewind(&mut self) {
        self.next = 0;
    }
}

/// The start of hashes, which nobody knows: which arcs there are is up to the processes.
#[derive(Clone, Debug)]
pub(crate) struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Seed(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// A hash of a few words, each of which is multiplied in: the halves of the product are folded over each other.
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        /// The digits of pi, as in Blowfish.
        const FACTOR: u64 = 0x243f_6a88_85a3_08d3;
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pairs_are_added_up() {
        let mut counts = Counts::default();
        let processes: [&[_]; 3] = [
            &[(1, 2, 5), (2, 1, 1), (3, 3, 3)],
            &[(1, 2, 1), (3, 3, 4), (2, 1, u64::MAX), (1, 1, 7)],
            &[(1, 1, 2), (1, 2, 3)],
        ];
        for process in processes {
            counts.rewind();
            process.iter().for_each(|&(from, to, count)| counts.add(from, to, count));
        }
        assert_eq!(counts.all, [(1, 2, 9), (2, 1, u64::MAX), (3, 3, 7), (1, 1, 9)]);
    }

    #[test]
    fn hashes_of_neighbours_differ_in_their_upper_and_lower_bits() {
        let seed = Seed::default();
        let hashes: Vec<u64> =
            (0..4096_u64).map(|n| seed.hash_one((0x40_0000 + n * 16, 0x50_0000_u64))).collect();
        for shift in [0, 52] {
            let mut buckets = [0; 4096];
            hashes.iter().for_each(|hash| buckets[(hash >> shift & 4095) as usize] += 1);
            assert!(buckets.iter().all(|&n| n < 16), "{:?}", buckets.iter().max());
        }
    }
}
