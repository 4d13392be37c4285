//! Counts values one by one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::values::{KEPT_MAX, KeptValue, ValueCounts, ValueKind};

/// The values of one argument, while they are counted.
#[derive(Clone, Debug, Default)]
pub struct ValueCounter {
    /// The counts, by value.
    kept: HashMap<u64, (u64, Option<String>)>,
    counts: ValueCounts,
}

impl ValueCounter {
    /// The most values that have a count of their own. More than a table keeps, so that those that come late are there if they are frequent.
    const MOST: usize = 4 * KEPT_MAX;

    pub fn new(kind: ValueKind) -> ValueCounter {
        ValueCounter { counts: ValueCounts { kind, ..ValueCounts::default() }, ..ValueCounter::default() }
    }

    /// Counts a value, whose text is asked for if it is new. `room` is the number of further values that may have counts, in all counters
    /// together; values without a count are among the others.
    pub fn add(&mut self, value: u64, room: &mut usize, text: impl FnOnce() -> Option<String>) {
        let has_room = *room > 0 && self.kept.len() < ValueCounter::MOST;
        match self.kept.entry(value) {
            Entry::Occupied(mut known) => known.get_mut().0 = known.get().0.saturating_add(1),
            Entry::Vacant(place) if has_room => {
                *room -= 1;
                place.insert((1, text()));
            }
            Entry::Vacant(_) => {
                self.counts.add_other(value, 1);
                // All of them may have been the same.
                self.counts.missing = self.counts.missing.saturating_add(1);
            }
        }
    }

    /// Returns the counts.
    pub fn finish(mut self) -> ValueCounts {
        let kept = self.kept.into_iter();
        let kept = kept.map(|(value, (count, text))| KeptValue { value, count, error: 0, text });
        self.counts.kept = kept.collect();
        self.counts.settle();
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_room_are_others() {
        let mut counter = ValueCounter::new(ValueKind::Unsigned);
        let mut room = 2;
        for value in [5, 6, 5, 7, 8, 5, 7] {
            counter.add(value, &mut room, || Some(format!("text {value}")));
        }
        let counts = counter.finish();
        let kept: Vec<_> = counts.kept.iter().map(|kept| (kept.value, kept.count)).collect();
        assert_eq!(kept, [(5, 3), (6, 1)]);
        assert_eq!(counts.kept[0].text.as_deref(), Some("text 5"));
        assert_eq!((counts.others.count, counts.missing, counts.calls()), (3, 3, 7));
        assert_eq!((counts.summary().sum, counts.summary().greatest), (43.0, 8));
    }
}
