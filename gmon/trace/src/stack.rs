//! The open calls of a thread, by stack.
//!
//! While a stack is not the current one, its calls do not run. That time is excluded from their durations, and the calls that begin
//! meanwhile are not counted as made by them. Each stack has the sums of both, which are subtracted when one of its calls ends.

use std::collections::HashMap;

use crate::event::OpenKind;
use crate::trace::Callee;

/// The maximum number of calls that are followed on a stack.
const DEEPEST: usize = 1 << 20;
/// The maximum number of stacks that are followed besides the current one.
const STACKS: usize = 1 << 12;

/// A call that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) function: Callee,
    pub(crate) kind: OpenKind,
    /// The number of open calls that are shown, up to this one; 0 if this one is not.
    pub(crate) shown: u32,
    /// Whether the call began before the first event or the wanted part, so that only a part of it is measured.
    pub(crate) is_earlier: bool,
    /// The time at which the call began.
    pub(crate) time: u64,
    /// The start of the measured part, as a time without pauses and without the time during which the stack was not current.
    pub(crate) start: u64,
    /// The number of calls of this stack that had begun at that time.
    pub(crate) begun: u64,
    /// The sum of the durations of the calls that this call has made, with the overhead outside of them.
    pub(crate) children: u64,
    /// The sum of all pauses before the measured part.
    pub(crate) pauses: u64,
}

impl Call {
    /// Returns a call that began at this time. [`Chain::push`] sets the start of the measured part.
    pub(crate) fn new(function: Callee, kind: OpenKind, time: u64, shown: u32) -> Call {
        Call { function, kind, shown, is_earlier: false, time, start: 0, begun: 0, children: 0, pauses: 0 }
    }
}

/// A stack.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// The open calls, from the outermost one inwards.
    pub(crate) open: Vec<Call>,
    /// The number of open calls around these that the trace does not name.
    pub(crate) beyond: u64,
    /// The number of open calls within these that are too deep to be followed.
    pub(crate) too_deep: u64,
    /// The total time during which the stack was not the current one.
    pub(crate) stood: u64,
    /// The number of calls that began on other stacks during that time.
    pub(crate) others: u64,
    /// The time without pauses, and the number of calls that had begun, when the stack ceased to be the current one.
    since: Option<(u64, u64)>,
    /// After events were lost: the number of outermost calls of this (old) stack that are known to be still open, and have been copied
    /// to the new stack.
    taken: usize,
}

impl Chain {
    /// Adds a call that is measured from now on.
    pub(crate) fn push(&mut self, call: Call, clock: u64, pauses: u64, begun: u64) {
        let (start, begun) = (clock.wrapping_sub(self.stood), begun.wrapping_sub(self.others));
        self.open.push(Call { start, begun, pauses, children: 0, ..call });
    }

    /// Returns whether no more calls can be followed.
    pub(crate) fn is_full(&self) -> bool {
        self.too_deep > 0 || self.open.len() >= DEEPEST
    }

    /// Returns the number of calls that were copied to the new stack, and the [`Call::children`] of the innermost one of them.
    pub(crate) fn taken(&self) -> (usize, u64) {
        let innermost = self.taken.checked_sub(1).and_then(|place| self.open.get(place));
        (self.taken, innermost.map_or(0, |call| call.children))
    }

    /// Removes the calls that were copied to the new stack.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
        self.taken = 0;
    }

    fn is_used(&self) -> bool {
        !self.open.is_empty() || self.beyond > 0 || self.too_deep > 0
    }
}

/// The stacks of a thread.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// The number of the current stack.
    pub(crate) number: u32,
    pub(crate) current: Chain,
    others: HashMap<u32, Chain>,
}

impl Stacks {
    /// Makes another stack the current one. `clock` is the time without pauses.
    pub(crate) fn change(&mut self, number: u32, clock: u64, begun: u64) {
        if number == self.number {
            return;
        }
        let mut next = self.others.remove(&number).unwrap_or_default();
        if let Some((since, others)) = next.since.take() {
            next.stood = next.stood.wrapping_add(clock.saturating_sub(since));
            next.others = next.others.wrapping_add(begun.wrapping_sub(others));
        }
        let mut last = std::mem::replace(&mut self.current, next);
        let last_number = std::mem::replace(&mut self.number, number);
        if last.is_used() {
            last.since = Some((clock, begun));
            self.others.insert(last_number, last);
        }
    }

    /// Returns whether no call is open.
    pub(crate) fn is_unused(&self) -> bool {
        !self.current.is_used() && self.others.is_empty()
    }

    /// Returns whether the stack with this number would be one too many.
    pub(crate) fn is_crowded(&self, number: u32) -> bool {
        self.others.len() >= STACKS && number != self.number && !self.others.contains_key(&number)
    }

    /// Returns the number of a stack with open calls that is not the current one.
    pub(crate) fn any(&self) -> Option<u32> {
        self.others.iter().filter(|(_, chain)| !chain.open.is_empty()).map(|(&number, _)| number).min()
    }

    /// Returns the numbers of all stacks with open calls, in order.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let all = self.others.iter().chain([(&self.number, &self.current)]);
        let mut numbers: Vec<u32> =
            all.filter(|(_, chain)| !chain.open.is_empty()).map(|(&number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Replaces the stacks by empty ones, and returns the old stacks.
    pub(crate) fn lose(&mut self) -> Stacks {
        let shell = |chain: &Chain| Chain {
            stood: chain.stood,
            others: chain.others,
            since: chain.since,
            ..Chain::default()
        };
        let empty = Stacks {
            number: self.number,
            current: shell(&self.current),
            others: self.others.iter().map(|(&number, chain)| (number, shell(chain))).collect(),
        };
        std::mem::replace(self, empty)
    }

    /// On the old stacks after events were lost: if `is_it` recognizes the call at a place of a stack as still open, returns that call
    /// and the calls around it that were not copied yet, with the number of unnamed calls around all of them. Callers proceed from the
    /// outermost call inwards.
    pub(crate) fn take(
        &mut self,
        number: u32,
        depth: u64,
        is_it: impl FnOnce(&Call) -> bool,
    ) -> Option<(u64, &[Call])> {
        let chain =
            if number == self.number { Some(&mut self.current) } else { self.others.get_mut(&number) };
        let chain = chain?;
        let place = usize::try_from(depth.checked_sub(chain.beyond)?).ok()?;
        let call = chain.open.get(place)?;
        let taken = chain.taken;
        if place < taken || !is_it(call) {
            return None;
        }
        chain.taken = place + 1;
        Some((chain.beyond, chain.open.get(taken..=place)?))
    }

    /// Adds to [`Call::children`] of the call at a place of a stack.
    pub(crate) fn charge(&mut self, number: u32, place: usize, children: u64) {
        let chain =
            if number == self.number { Some(&mut self.current) } else { self.others.get_mut(&number) };
        if let Some(call) = chain.and_then(|chain| chain.open.get_mut(place)) {
            call.children = call.children.wrapping_add(children);
        }
    }
}
