//! The calls of a process, by the function that was called and by the place of the call.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::ops::Range;

use crate::profile::model::{Arc, Place};

/// The calls of a process.
pub(super) struct Calls {
    /// By the function that was called. Of one function, the calls come first that were found last on a stack, then the most frequent ones.
    pub(super) by_callee: Vec<Arc>,
    /// The places of the calls, and the functions that were called there; sorted.
    by_site: OnceCell<Vec<(Place, Place)>>,
}

impl Calls {
    pub(super) fn new(arcs: &[Arc]) -> Calls {
        let mut by_callee = arcs.to_vec();
        by_callee.sort_unstable_by_key(|arc| (arc.to, Reverse(arc.count)));
        Calls { by_callee, by_site: OnceCell::new() }
    }

    /// Returns the indices of the calls of a function.
    pub(super) fn range(&self, callee: Place) -> Range<usize> {
        let first = self.by_callee.partition_point(|arc| arc.to < callee);
        let count = self.by_callee[first..].partition_point(|arc| arc.to == callee);
        first..first + count
    }

    /// Returns the calls of a function.
    pub(super) fn of(&self, callee: Place) -> &[Arc] {
        &self.by_callee[self.range(callee)]
    }

    /// Notes that a call of a function, by its index, was found on a stack.
    pub(super) fn found(&mut self, callee: Place, index: usize) {
        let first = self.range(callee).start;
        self.by_callee[first..=index].rotate_right(1);
    }

    /// Returns the functions that were called at a place, each with the place.
    pub(super) fn at(&self, site: Place) -> &[(Place, Place)] {
        let by_site = self.by_site.get_or_init(|| {
            let mut by_site: Vec<_> = self.by_callee.iter().map(|arc| (arc.from, arc.to)).collect();
            by_site.sort_unstable();
            by_site
        });
        let first = by_site.partition_point(|&(other, _)| other < site);
        let count = by_site[first..].partition_point(|&(other, _)| other == site);
        &by_site[first..first + count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_either_end() {
        let place = |address| Place { module: 0, address };
        let arc = |from, to, count| Arc { from: place(from), to: place(to), count };
        let mut calls =
            Calls::new(&[arc(1, 100, 5), arc(2, 100, 9), arc(2, 200, 1), arc(3, 100, 7), arc(3, 300, 1)]);
        let sites =
            |calls: &Calls| calls.of(place(100)).iter().map(|arc| arc.from.address).collect::<Vec<_>>();
        assert_eq!(sites(&calls), [2, 3, 1]);
        let last = calls.range(place(100)).end - 1;
        calls.found(place(100), last);
        assert_eq!(sites(&calls), [1, 2, 3]);
        assert_eq!(calls.at(place(2)), [(place(2), place(100)), (place(2), place(200))]);
        assert!(calls.of(place(150)).is_empty() && calls.at(place(9)).is_empty());
    }
}
