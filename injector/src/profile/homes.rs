//! Which function's home slot is at which place in the counters of a thread.

use std::ops::Range;

use gprofinject_abi::plan::FunctionRecord;
use gprofinject_abi::region::Slot;

use crate::program::planned::Planned;

/// The home slots of one module of a process.
struct Part {
    /// The functions of the module's plan, whose home slots follow each other.
    records: &'static [FunctionRecord],
    /// Where they are in the counters.
    bytes: Range<u64>,
    /// What is added to their places in the plan, modulo 2^64.
    shift: u64,
    /// The number of the module's first function in the process.
    first_function: u32,
}

/// The home slots of all modules of a process.
#[derive(Default)]
pub(crate) struct Homes(Vec<Part>);

impl Homes {
    /// Adds those of a module, whose slots begin at `shift` bytes from where the plan has them.
    pub(crate) fn add(
        &mut self,
        planned: &'static Planned<'static, 'static>,
        shift: u64,
        first_function: u32,
    ) {
        let records: &[FunctionRecord] = planned.plan.as_ref().map_or(&[], |plan| &plan.records);
        self.0.extend(Part::new(records, shift, first_function));
        self.0.sort_by_key(|part| part.bytes.start);
    }

    /// Returns [`Walk::function_at`] from the start of a thread's counters on.
    pub(crate) fn finder(&self) -> impl FnMut(u64) -> Option<u32> {
        let mut walk = self.walk();
        move |offset| walk.function_at(offset)
    }

    /// Returns a walk from the start of a thread's counters on.
    fn walk(&self) -> Walk<'_> {
        Walk { rest: &self.0, next: 0 }
    }
}

impl Part {
    /// Returns the home slots of these functions; `None` if there are none.
    fn new(records: &'static [FunctionRecord], shift: u64, first_function: u32) -> Option<Part> {
        let bytes =
            u64::from(records.first()?.slots).wrapping_add(shift)..end(records.last()?).wrapping_add(shift);
        Some(Part { records, bytes, shift, first_function })
    }
}

/// Returns where the home slots of a function end.
fn end(record: &FunctionRecord) -> u64 {
    u64::from(record.slots) + u64::from(record.slot_count) * size_of::<Slot>() as u64
}

/// Finds the functions of home slots, one after the other.
struct Walk<'h> {
    rest: &'h [Part],
    /// The index of the next function in the first part that is left.
    next: usize,
}

impl Walk<'_> {
    /// Returns the function that has a home slot at this offset in the counters of a thread. No offset is less than the one before.
    fn function_at(&mut self, offset: u64) -> Option<u32> {
        /// The next function that has counted is mostly among so many.
        const NEAR: usize = 16;
        while self.rest.first()?.bytes.end <= offset {
            (self.rest, self.next) = (self.rest.get(1..)?, 0);
        }
        let part = self.rest.first().filter(|part| part.bytes.start <= offset)?;
        let at = offset.wrapping_sub(part.shift);
        let rest = part.records.get(self.next..)?;
        let is_before = |record: &FunctionRecord| end(record) <= at;
        self.next += match rest.iter().take(NEAR).position(|record| !is_before(record)) {
            Some(steps) => steps,
            None => rest.partition_point(is_before),
        };
        let record = part.records.get(self.next).filter(|record| u64::from(record.slots) <= at)?;
        debug_assert!(end(record) > at);
        part.first_function.checked_add(self.next as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_their_order() {
        let records = |homes: &[(u32, u32)]| -> &'static [FunctionRecord] {
            let record = |&(start, end): &(u32, u32)| FunctionRecord {
                slots: start,
                slot_count: (end - start) / size_of::<Slot>() as u32,
                ..FunctionRecord::default()
            };
            Vec::leak(homes.iter().map(record).collect())
        };
        let parts = [
            Part::new(records(&[(100, 116), (116, 148), (180, 196)]), 0, 0),
            Part::new(&[], 5, 40),
            Part::new(records(&[(100, 116)]), 900, 50),
            Part::new(records(&[(100, 132)]), 1000, 63),
            Part::new(records(&(0..90).map(|n| (16 * n, 16 * n + 16)).collect::<Vec<_>>()), 2000, 70),
        ];
        let homes = Homes(parts.into_iter().flatten().collect());
        let mut walk = homes.walk();
        let places = [0, 99, 100, 115, 116, 116, 147, 148, 180, 195, 196, 1000, 1016, 1099, 1100, 1131];
        let found: Vec<_> = places.iter().map(|&at| walk.function_at(at)).collect();
        let (none, one, two) = (None, Some(1), Some(2));
        let own = [none, none, Some(0), Some(0), one, one, one, none, two, two, none];
        assert_eq!(found, [own.as_slice(), &[Some(50), none, none, Some(63), Some(63)]].concat());
        assert_eq!(walk.function_at(1132), None);
        // Both are farther from the one before than the walk looks step by step.
        assert_eq!(
            [2000 + 16 * 50, 2000 + 16 * 89 + 15].map(|at| walk.function_at(at)),
            [Some(120), Some(159)]
        );
        assert_eq!(walk.function_at(u64::MAX), None);
    }
}
