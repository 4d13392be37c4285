//! The functions that a process has made at run time, by address, as they were at each time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The number of functions that are kept at most. A process can write any number of them.
const FUNCTIONS: usize = 1 << 22;
/// The number of bytes of all names together at most, and of one name.
const NAMES: usize = 64 << 20;
const NAME: usize = 512;
/// The addresses that a process can have.
const ADDRESSES: Range<u64> = 0..0x7fff_ffff_f000;

/// A function, from the time on at which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    /// Nanoseconds of CLOCK_MONOTONIC; 0 if that is not known.
    time: u64,
    start: u64,
    end: u64,
    /// The index of its name.
    name: u32,
}

/// All functions of a process, in the order in which it has made them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    made: Vec<Made>,
    names: Vec<Arc<str>>,
    known: HashMap<Arc<str>, u32>,
    /// The number of bytes of all names.
    bytes: usize,
}

impl Table {
    /// Adds a function that was made at a time; 0 if that is not known. Returns whether there was room for it. Addresses that no code can
    /// have are left out.
    pub(super) fn add(&mut self, time: u64, start: u64, len: u64, name: u32) -> bool {
        let end = start.saturating_add(len);
        if len == 0 || !ADDRESSES.contains(&start) || end > ADDRESSES.end {
            return true;
        }
        let has_room = self.made.len() < FUNCTIONS;
        if has_room {
            self.made.push(Made { time, start, end, name });
        }
        has_room
    }

    /// Returns the index of a name, which is shortened, and in which replacement characters stand for control characters. Returns `None`
    /// if there is no room for it.
    pub(super) fn name(&mut self, name: &[u8]) -> Option<u32> {
        let shown = String::from_utf8_lossy(name.get(..NAME).unwrap_or(name));
        let shown: String =
            shown.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        if let Some(&known) = self.known.get(shown.as_str()) {
            return Some(known);
        }
        self.bytes += shown.len();
        if self.bytes > NAMES {
            return None;
        }
        let (index, name) = (u32::try_from(self.names.len()).ok()?, Arc::from(shown));
        self.names.push(Arc::clone(&name));
        self.known.insert(name, index);
        Some(index)
    }

    /// Puts the functions in the order of the times at which they were made. Of those made at the same time, the last one that was added
    /// is the last one.
    pub(super) fn sort(&mut self) {
        self.made.sort_by_key(|made| made.time);
        self.known = HashMap::new();
    }

    /// The number of functions.
    pub(super) fn len(&self) -> usize {
        self.made.len()
    }

    /// Returns the name of this index.
    pub(crate) fn name_of(&self, index: u32) -> Option<&Arc<str>> {
        self.names.get(index as usize)
    }

    /// Whether functions were made at different times, as far as that is known.
    pub(crate) fn has_times(&self) -> bool {
        self.made.last().is_some_and(|made| made.time > 0)
    }

    /// Returns the code of the process before it has made any function.
    pub(crate) fn replay(&self) -> Replay<'_> {
        Replay { table: self, next: 0, now: BTreeMap::new() }
    }
}

/// The code of a process at a time, which moves on.
pub(crate) struct Replay<'t> {
    table: &'t Table,
    /// The index of the function that is made next.
    next: usize,
    /// The functions that exist, by their first addresses: the end of each and its name. They do not overlap.
    now: BTreeMap<u64, (u64, u32)>,
}

impl Replay<'_> {
    /// Goes on to a time: the functions that were made until then replace those at whose addresses they are.
    pub(crate) fn go_to(&mut self, time: u64) {
        let table = self.table;
        while let Some(&made) = table.made.get(self.next).filter(|made| made.time <= time) {
            self.next += 1;
            self.put(made);
        }
    }

    fn put(&mut self, Made { start, end, name, .. }: Made) {
        if let Some((&before, &(old_end, old))) = self.now.range(..start).next_back()
            && old_end > start
        {
            self.now.insert(before, (start, old));
            if old_end > end {
                self.now.insert(end, (old_end, old));
            }
        }
        while let Some((&inside, &(old_end, old))) = self.now.range(start..end).next() {
            self.now.remove(&inside);
            if old_end > end {
                self.now.insert(end, (old_end, old));
            }
        }
        self.now.insert(start, (end, name));
    }

    /// Returns the name of the function at an address, by its index in the table.
    pub(crate) fn at(&self, address: u64) -> Option<u32> {
        let (_, &(end, name)) = self.now.range(..=address).next_back()?;
        (address < end).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(made: &[(u64, Range<u64>, &str)]) -> Table {
        let mut table = Table::default();
        for (time, range, name) in made {
            let name = table.name(name.as_bytes()).expect("room");
            assert!(table.add(*time, range.start, range.end - range.start, name));
        }
        table.sort();
        table
    }

    fn at<'t>(table: &'t Table, replay: &Replay<'_>, address: u64) -> Option<&'t str> {
        replay.at(address).and_then(|name| table.name_of(name)).map(|name| &**name)
    }

    #[test]
    fn later_functions_replace_earlier_ones() {
        let table = table(&[
            (0, 0x100..0x200, "old"),
            (0, 0x180..0x190, "inside"),
            (0, 0x1f0..0x240, "over"),
            (0, 0x90..0x110, "under"),
        ]);
        let mut replay = table.replay();
        assert_eq!(at(&table, &replay, 0x100), None);
        replay.go_to(0);
        let expected = [
            (0x8f, None),
            (0x90, Some("under")),
            (0x10f, Some("under")),
            (0x110, Some("old")),
            (0x180, Some("inside")),
            (0x18f, Some("inside")),
            (0x190, Some("old")),
            (0x1f0, Some("over")),
            (0x23f, Some("over")),
            (0x240, None),
        ];
        for (address, name) in expected {
            assert_eq!(at(&table, &replay, address), name, "{address:#x}");
        }
        assert!(!table.has_times());
    }

    #[test]
    fn addresses_are_reused_in_time() {
        let table =
            table(&[(20, 0x100..0x200, "second"), (10, 0x100..0x180, "first"), (30, 0x0..0x1000, "all")]);
        let mut replay = table.replay();
        for (time, low, high) in [
            (9, None, None),
            (10, Some("first"), None),
            (20, Some("second"), Some("second")),
            (29, Some("second"), Some("second")),
            (u64::MAX, Some("all"), Some("all")),
        ] {
            replay.go_to(time);
            assert_eq!((at(&table, &replay, 0x100), at(&table, &replay, 0x1ff)), (low, high), "{time}");
        }
        assert!(table.has_times());
    }

    /// Compares with a table that has a name for each address.
    #[test]
    fn any_functions() {
        let mut random = 1_u64;
        let mut next = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let mut table = Table::default();
        let mut expected = [None; 256];
        for n in 0..2000 {
            let (start, len) = (next(250), next(40));
            let name = table.name(format!("{n}").as_bytes()).expect("room");
            assert!(table.add(0, start, len, name));
            expected.iter_mut().skip(start as usize).take(len as usize).for_each(|at| *at = Some(name));
            if n % 50 == 0 {
                let mut replay = table.replay();
                replay.go_to(0);
                for (address, &name) in (0..).zip(&expected) {
                    assert_eq!(replay.at(address), name, "{address} after {n}");
                }
            }
        }
    }

    #[test]
    fn names_are_bounded_and_shown() {
        let mut table = Table::default();
        let name = table.name(b"a\x1b[2Jb\xff\n").expect("room");
        assert_eq!(table.name_of(name).map(|name| &**name), Some("a\u{fffd}[2Jb\u{fffd}\u{fffd}"));
        let long = table.name(&[b'x'; 5000]).expect("room");
        assert_eq!(table.name_of(long).map(|name| name.len()), Some(NAME));
        assert_eq!(table.name(&[b'x'; 6000]), Some(long));
        for (start, len) in [(1, 0), (u64::MAX, 1), (0x7fff_ffff_e000, 0x2000), (5, u64::MAX)] {
            assert!(table.add(0, start, len, long));
        }
        assert_eq!(table.len(), 0);
    }
}
