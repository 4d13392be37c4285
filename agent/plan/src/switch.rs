//! Functions that are switched off and on in a running process: what of a plan is a function's.

use std::borrow::Cow;

use crate::plan::Plan;
use gprofinject_abi::plan::{FunctionRecord, OFF, Patch, PlanHeader, SHARED, Stay, TailRecord};
use zerocopy::FromBytes;

impl Plan {
    /// Returns the patches that go and come back when functions are switched off and on. `is_one` returns whether the function
    /// with a number is one of these.
    pub fn patches_of<'p>(&'p self, is_one: &'p dyn Fn(u32) -> bool) -> impl Iterator<Item = &'p Patch> {
        self.patches().iter().filter(move |patch| {
            let number = patch.hook.checked_sub(1);
            patch.stays == Stay::Not.code()
                && number.is_some_and(|number| !self.is_shared(number) && is_one(number))
        })
    }

    /// Returns whether the patches of the function with a number stay while it is switched off, because other hooks rely on
    /// them. Each of its calls then takes two jumps.
    pub fn is_shared(&self, number: u32) -> bool {
        self.records.get(number as usize).is_some_and(|record| record.flags & SHARED != 0)
    }

    /// Returns the arena offsets of the thunks whose first bytes change when functions are switched: their own, and those of
    /// jumps by which they tail-call others or are tail-called. `is_one` is as for [`Plan::patches_of`].
    pub fn thunks_of(&self, is_one: &dyn Fn(u32) -> bool) -> Vec<u32> {
        let own = self.records.iter().zip(0..).filter(|&(_, number)| is_one(number));
        let mut thunks: Vec<u32> = own.map(|(record, _)| record.thunk).collect();
        let tails: Cow<[TailRecord]> = match &self.file {
            None => Cow::Borrowed(&self.emitted.tails),
            Some(file) => file.table(file.header().tails).unwrap_or_default(),
        };
        let theirs = tails.iter().filter(|tail| is_one(tail.caller) || is_one(tail.callee));
        thunks.extend(theirs.map(|tail| tail.again));
        thunks
    }

    /// Changes a plan file that was [placed](Plan::place), so that the functions with these numbers are switched off from the
    /// beginning. Returns `None` if the file is damaged.
    pub fn switch_off(numbers: impl Iterator<Item = u32>, file: &mut [u8]) -> Option<()> {
        let header = PlanHeader::read_from_prefix(file).ok()?.0;
        for number in numbers.filter(|&number| u64::from(number) < header.functions.count) {
            let at = header.functions.offset as usize + number as usize * size_of::<FunctionRecord>();
            let record = file.get_mut(at..at.checked_add(size_of::<FunctionRecord>())?)?;
            FunctionRecord::mut_from_bytes(record).ok()?.flags |= OFF;
        }
        Some(())
    }
}
