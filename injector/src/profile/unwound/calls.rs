//! The calls of a process, by the function that was called.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use crate::profile::model::{Arc, ModuleIndex, Place};
use crate::profile::totals::Seed;

/// The calls of a process. A process of a large program makes tens of thousands, and few of them are asked for, so they are not sorted.
pub(super) struct Calls {
    /// Of one function, the calls come first that were found last on a stack, then the most frequent ones.
    by_callee: Vec<Arc>,
    /// The places of the calls of the same functions, by place.
    places: Vec<Place>,
    groups: HashMap<Place, Group, Seed>,
}

/// The calls of a function.
#[derive(Clone, Copy, Default)]
struct Group {
    /// The index of the first one, and of the one after the last.
    first: u32,
    end: u32,
    is_sorted: bool,
    has_sorted_places: bool,
}

impl Calls {
    pub(super) fn new(arcs: &[Arc]) -> Calls {
        let mut groups: HashMap<Place, Group, Seed> = HashMap::default();
        for arc in arcs {
            groups.entry(arc.to).or_default().end += 1;
        }
        let mut next = 0;
        for group in groups.values_mut() {
            (group.first, next) = (next, next + group.end);
            group.end = group.first;
        }
        let mut by_callee = arcs.to_vec();
        for arc in arcs {
            if let Some(group) = groups.get_mut(&arc.to) {
                by_callee[group.end as usize] = *arc;
                group.end += 1;
            }
        }
        let places = by_callee.iter().map(|arc| arc.from).collect();
        Calls { by_callee, places, groups }
    }

    /// Returns the indices of the calls of a function.
    pub(super) fn range(&mut self, callee: Place) -> Range<usize> {
        let Some(group) = self.groups.get_mut(&callee) else { return 0..0 };
        let range = group.first as usize..group.end as usize;
        if !group.is_sorted {
            self.by_callee[range.clone()].sort_unstable_by_key(|arc| (Reverse(arc.count), arc.from));
            group.is_sorted = true;
        }
        range
    }

    /// Returns the indices of the [places](Calls::place) of a function's calls in some code of a module.
    pub(super) fn within(&mut self, callee: Place, module: ModuleIndex, code: &Range<u64>) -> Range<usize> {
        let Some(group) = self.groups.get_mut(&callee) else { return 0..0 };
        let first = group.first as usize;
        let places = &mut self.places[first..group.end as usize];
        if !group.has_sorted_places {
            places.sort_unstable();
            group.has_sorted_places = true;
        }
        let index = |address| first + places.partition_point(|&place| place < Place { module, address });
        index(code.start)..index(code.end)
    }

    /// Returns one of these places.
    pub(super) fn place(&self, index: usize) -> Place {
        self.places[index]
    }

    /// Returns the calls of a function.
    pub(super) fn of(&mut self, callee: Place) -> &[Arc] {
        let range = self.range(callee);
        &self.by_callee[range]
    }

    /// Returns the place of a call, by its index.
    pub(super) fn site(&self, index: usize) -> Place {
        self.by_callee[index].from
    }

    /// Notes that a call of a function, by its index, was found on a stack.
    pub(super) fn found(&mut self, callee: Place, index: usize) {
        let first = self.range(callee).start;
        self.by_callee[first..=index].rotate_right(1);
    }

    /// Whether a function was called at a place.
    pub(super) fn has(&mut self, site: Place, callee: Place) -> bool {
        self.of(callee).iter().any(|arc| arc.from == site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_the_function() {
        let place = |address| Place { module: 0, address };
        let arc = |from, to, count| Arc { from: place(from), to: place(to), count };
        let mut calls =
            Calls::new(&[arc(1, 100, 5), arc(2, 100, 9), arc(2, 200, 1), arc(3, 100, 7), arc(3, 300, 1)]);
        let sites =
            |calls: &mut Calls| calls.of(place(100)).iter().map(|arc| arc.from.address).collect::<Vec<_>>();
        assert_eq!(sites(&mut calls), [2, 3, 1]);
        let last = calls.range(place(100)).end - 1;
        assert_eq!(calls.site(last), place(1));
        calls.found(place(100), last);
        assert_eq!(sites(&mut calls), [1, 2, 3]);
        assert!(calls.has(place(2), place(100)) && calls.has(place(2), place(200)));
        assert!(!calls.has(place(1), place(200)) && !calls.has(place(9), place(100)));
        assert!(calls.of(place(150)).is_empty());
        let mut within = |callee, module, code: Range<u64>| {
            let range = calls.within(place(callee), module, &code);
            range.map(|index| calls.place(index)).collect::<Vec<_>>()
        };
        assert_eq!(within(100, 0, 2..4), [place(2), place(3)]);
        assert_eq!(within(100, 0, 0..1), []);
        assert_eq!((within(100, 1, 0..9), within(150, 0, 0..9)), (vec![], vec![]));
    }
}
