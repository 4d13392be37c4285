//! Which function's home slot is at which place in the counters of a thread.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use gprofinject_abi::region::Slot;

use crate::program::planned::Planned;

/// The home slots of a function.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// The bytes from the start of the counters on, in a process that runs the program; for a library, as if it were the program.
    start: u64,
    end: u64,
    /// The number of the function in its plan.
    function: u32,
}

/// Returns the home slots of a program or library, sorted. They are the same in all its processes, of which there may be many.
fn of_plan(planned: &'static Planned<'static, 'static>) -> Arc<[Home]> {
    /// By the addresses of the plans, which stay as long as this process.
    static KNOWN: LazyLock<Mutex<HashMap<usize, Arc<[Home]>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let homes = known.entry(std::ptr::from_ref(planned).addr()).or_insert_with(|| {
        let records = planned.plan.iter().flat_map(|plan| plan.records.iter()).zip(0..);
        let homes = records.map(|(record, function)| {
            let start = u64::from(record.slots);
            Home { start, end: start + u64::from(record.slot_count) * size_of::<Slot>() as u64, function }
        });
        let mut homes: Vec<Home> = homes.collect();
        homes.sort_unstable_by_key(|home| home.start);
        homes.into()
    });
    homes.clone()
}

/// The home slots of one module of a process.
struct Part {
    homes: Arc<[Home]>,
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
        let homes = of_plan(planned);
        let end = homes.iter().map(|home| home.end).max();
        let (Some(first), Some(end)) = (homes.first(), end) else { return };
        let bytes = first.start.wrapping_add(shift)..end.wrapping_add(shift);
        let after = self.0.partition_point(|part| part.bytes.start <= bytes.start);
        self.0.insert(after, Part { homes, bytes, shift, first_function });
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

/// Finds the functions of home slots, one after the other.
struct Walk<'h> {
    rest: &'h [Part],
    /// The index of the next home slots in the first part that is left.
    next: usize,
}

impl Walk<'_> {
    /// Returns the function that has a home slot at this offset in the counters of a thread. No offset is less than the one before.
    fn function_at(&mut self, offset: u64) -> Option<u32> {
        while self.rest.first()?.bytes.end <= offset {
            (self.rest, self.next) = (self.rest.get(1..)?, 0);
        }
        let part = self.rest.first().filter(|part| part.bytes.start <= offset)?;
        let at = offset.wrapping_sub(part.shift);
        while part.homes.get(self.next)?.end <= at {
            self.next += 1;
        }
        let home = part.homes.get(self.next).filter(|home| home.start <= at)?;
        part.first_function.checked_add(home.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_their_order() {
        let home = |start, end, function| Home { start, end, function };
        let part = |homes: &[Home], shift: u64, first_function| {
            let bytes = homes[0].start + shift..homes[homes.len() - 1].end + shift;
            Part { homes: homes.into(), bytes, shift, first_function }
        };
        let homes = Homes(vec![
            part(&[home(100, 116, 1), home(116, 148, 0), home(180, 196, 2)], 0, 0),
            part(&[home(100, 116, 0)], 900, 50),
            part(&[home(100, 132, 3)], 1000, 60),
        ]);
        let mut walk = homes.walk();
        let places = [0, 99, 100, 115, 116, 116, 147, 148, 180, 195, 196, 1000, 1016, 1099, 1100, 1131];
        let found: Vec<_> = places.iter().map(|&at| walk.function_at(at)).collect();
        let (none, one, two) = (None, Some(0), Some(2));
        let own = [none, none, Some(1), Some(1), one, one, one, none, two, two, none];
        assert_eq!(found, [own.as_slice(), &[Some(50), none, none, Some(63), Some(63)]].concat());
        assert_eq!(walk.function_at(1132), None);
        assert_eq!(walk.function_at(u64::MAX), None);
    }
}
