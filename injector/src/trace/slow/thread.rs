//! The wanted calls of one thread: its events -> calls that have ended.
//!
//! A process can write any events: wrong ones make the results wrong, and have no other effect.

use std::collections::HashMap;

use gmon_run::SlowEnd;
use gprofinject_abi::trace::{Kind, READY, SNAPSHOT_MAX};

use crate::trace::slow::call::{ARGUMENTS, Call};
use crate::trace::slow::tree::{Budget, Tree};

/// The greatest number of stacks with a wanted call of a thread.
const STACKS: usize = 1 << 10;
/// The greatest number of trees that are kept for the next calls: of so many functions calls may alternate.
const SPARES: usize = 4;

/// A call that has ended.
pub(crate) struct Ended {
    pub(crate) call: Box<Call>,
    pub(crate) end: SlowEnd,
}

/// A thread.
#[derive(Default)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    /// The number of the stack on which the thread runs, and the wanted call on it.
    stack: u32,
    current: Option<Box<Call>>,
    /// The wanted calls on other stacks.
    others: HashMap<u32, Box<Call>>,
    /// What is known after events were lost, until it is known which calls are still open.
    loss: Option<Loss>,
    /// The time of the last event.
    last: u64,
    /// The number of slots that belong to a snapshot and contain nothing new.
    known: u64,
    /// The number of bytes that are missing of the arguments of the current call.
    wanted_bytes: usize,
    /// The calls of which it is not known when they ended, by the numbers of their functions.
    unknown: HashMap<u32, u64>,
    spares: Vec<Tree>,
    budget: Budget,
    /// The sum of all pauses, and the number of lost events.
    pub(crate) pauses: u64,
    pub(crate) lost: u64,
}

/// The state after events were lost.
#[derive(Default)]
struct Loss {
    /// The call on the stack on which the thread ran, and the number of the stack.
    before: Option<(u32, Box<Call>)>,
    /// The calls that are open since: their functions and their beginnings plus the pauses since then.
    open: Vec<(u32, u64)>,
}

impl Thread {
    pub(crate) fn new(budget: &Budget) -> Thread {
        Thread { budget: Budget::clone(budget), ..Thread::default() }
    }

    /// Adds an event. `is_wanted` says whether calls of the function with a number are wanted. Returns the wanted call that has ended, if one
    /// has. [`Thread::reuse`] takes its tree back.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        function: u32,
        time: u64,
        is_wanted: &mut impl FnMut(u32) -> bool,
    ) -> Option<Ended> {
        if self.known > 0 {
            self.known -= 1;
            return None;
        }
        if self.loss.is_some() && !self.is_listed(kind, function, time) {
            self.resolve(time, is_wanted);
        }
        if self.loss.is_some() {
            return None;
        }
        self.follow(kind, function, time, is_wanted)
    }

    fn follow(
        &mut self,
        kind: Kind,
        function: u32,
        time: u64,
        is_wanted: &mut impl FnMut(u32) -> bool,
    ) -> Option<Ended> {
        match kind {
            Kind::Enter | Kind::Jump => match &mut self.current {
                Some(call) => call.enter(function, time),
                None if is_wanted(function) => self.begin(function, time),
                None => {}
            },
            Kind::Exit => return self.leave(time, SlowEnd::Returned),
            Kind::Left => return self.leave(time, SlowEnd::Left),
            // A call that was open at a fork is its parent's.
            Kind::Inherited | Kind::None | Kind::Open => {}
            Kind::Mark => {
                if let Some(call) = &mut self.current {
                    call.mark(function, time);
                }
            }
            Kind::Chain => self.change(function, time),
            Kind::Pause => {
                self.pauses = self.pauses.wrapping_add(time);
                if let Some(call) = &mut self.current {
                    call.pause(time, function == READY);
                }
            }
            Kind::Lost => self.lose(time),
            Kind::Data => {
                self.wanted_bytes = self.wanted_bytes.min(function as usize);
                self.more(&time.to_le_bytes());
            }
            Kind::More => {
                self.more(&time.to_le_bytes());
                self.more(&function.to_le_bytes());
            }
            Kind::Thread => {
                self.forget();
                self.tid = function;
            }
            Kind::Snapshot => self.known = time.min(1 + SNAPSHOT_MAX),
        }
        if !matches!(kind, Kind::Pause | Kind::Data | Kind::More) {
            self.last = self.last.max(time);
            if !matches!(kind, Kind::Enter | Kind::Jump) {
                self.wanted_bytes = 0;
            }
        }
        None
    }

    fn begin(&mut self, function: u32, time: u64) {
        let tree = self.tree(function);
        self.current = Some(Box::new(Call::begin(tree, function, time)));
        // The arguments follow, if they are recorded.
        self.wanted_bytes = ARGUMENTS;
    }

    /// Returns a tree for a call of a function.
    fn tree(&mut self, function: u32) -> Tree {
        let same = self.spares.iter().position(|tree| tree.function() == function);
        match same {
            Some(at) => self.spares.swap_remove(at),
            None if self.spares.len() >= SPARES => self.spares.remove(0),
            None => Tree::new(function, &self.budget),
        }
    }

    /// Takes back the tree of a call that has ended.
    pub(crate) fn reuse(&mut self, call: Box<Call>) {
        self.spares.push(call.tree);
    }

    /// Forgets the nodes of typical calls, which have been removed.
    pub(crate) fn forget_typical(&mut self) {
        self.spares.clear();
        let open = self.current.iter_mut().chain(self.others.values_mut());
        open.for_each(|call| call.tree.forget_typical());
    }

    fn leave(&mut self, time: u64, end: SlowEnd) -> Option<Ended> {
        self.last = self.last.max(time);
        self.wanted_bytes = 0;
        let is_over = self.current.as_mut()?.leave(time);
        let call = self.current.take_if(|_| is_over)?;
        Some(Ended { call, end })
    }

    /// Adds bytes to the arguments of the current call.
    fn more(&mut self, bytes: &[u8]) {
        let Some(call) = self.current.as_mut().filter(|_| self.wanted_bytes > 0) else { return };
        let taken = self.wanted_bytes.min(bytes.len());
        call.arguments.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        self.wanted_bytes -= taken;
    }

    /// Makes another stack the current one.
    fn change(&mut self, to: u32, time: u64) {
        if to == self.stack {
            return;
        }
        if let Some(mut call) = self.current.take() {
            call.pass(time);
            match self.others.len() < STACKS {
                true => drop(self.others.insert(self.stack, call)),
                false => self.end_unknown(call),
            }
        }
        self.stack = to;
        self.current = self.others.remove(&to);
        if let Some(call) = &mut self.current {
            call.stood(time);
        }
    }

    /// Takes note of lost events: from now on, the open calls are unknown.
    pub(crate) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.known = 0;
        let current = self.current.take();
        // Whether the thread has run on those stacks is not known either.
        let others: Vec<_> = self.others.drain().map(|(_, call)| call).collect();
        others.into_iter().for_each(|call| self.end_unknown(call));
        let loss = self.loss.get_or_insert_default();
        loss.open.clear();
        loss.before = current.map(|call| (self.stack, call)).or_else(|| loss.before.take());
    }

    /// After events were lost: whether an event is one of those that say what is open.
    fn is_listed(&mut self, kind: Kind, function: u32, time: u64) -> bool {
        let Some(loss) = &mut self.loss else { return false };
        match kind {
            Kind::Open => {
                if loss.open.len() < SNAPSHOT_MAX as usize {
                    loss.open.push((function, time));
                }
            }
            Kind::Chain if loss.open.is_empty() => self.stack = function,
            Kind::Lost => self.lose(time),
            Kind::Snapshot => self.tid = function,
            Kind::Thread => {
                self.forget();
                self.tid = function;
                self.loss = Some(Loss::default());
            }
            Kind::Pause | Kind::None | Kind::Data | Kind::More => {}
            _ => return false,
        }
        true
    }

    /// Finds out which call is still open after events were lost, at the time of the first event since.
    fn resolve(&mut self, time: u64, is_wanted: &mut impl FnMut(u32) -> bool) {
        let Some(Loss { before, open }) = self.loss.take() else { return };
        let before = match before {
            Some((stack, call)) if stack == self.stack => Some(call),
            Some((_, call)) => {
                self.end_unknown(call);
                None
            }
            None => None,
        };
        let outermost = open.iter().position(|&(function, _)| is_wanted(function));
        let Some(at) = outermost else {
            before.into_iter().for_each(|call| self.end_unknown(call));
            return;
        };
        let (function, began) = open.get(at).copied().unwrap_or_default();
        let is_it = before.as_ref().map_or(Some(false), |call| is_same(call, function, began, time));
        let mut call = match (before, is_it) {
            (Some(call), Some(true)) => call,
            (before, is_it) => {
                // If both may be one call, it is counted once.
                before.into_iter().for_each(|call| self.end_lost(call, is_it.is_some()));
                Box::new(Call::begin(self.tree(function), function, began.min(time)))
            }
        };
        call.resume(open.iter().skip(at + 1).map(|&(function, _)| function), time);
        self.current = Some(call);
    }

    /// Forgets all open calls.
    fn forget(&mut self) {
        let others: Vec<_> = self.others.drain().map(|(_, call)| call).collect();
        let before = self.loss.take().and_then(|loss| loss.before).map(|(_, call)| call);
        let all = self.current.take().into_iter().chain(before).chain(others);
        all.collect::<Vec<_>>().into_iter().for_each(|call| self.end_unknown(call));
    }

    /// Ends a call of which it is not known when it ended.
    fn end_unknown(&mut self, call: Box<Call>) {
        self.end_lost(call, true);
    }

    /// The same, if the call `is_counted`.
    fn end_lost(&mut self, call: Box<Call>, is_counted: bool) {
        let count = self.unknown.entry(call.tree.function()).or_default();
        *count = count.saturating_add(u64::from(is_counted));
        if self.spares.len() < SPARES {
            self.reuse(call);
        }
    }

    /// Returns the calls of which it is not known when they ended, since the last time.
    pub(crate) fn take_unknown(&mut self) -> HashMap<u32, u64> {
        std::mem::take(&mut self.unknown)
    }

    /// Returns the time of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the wanted call on the current stack.
    pub(crate) fn current(&mut self) -> Option<&mut Call> {
        self.current.as_deref_mut()
    }

    /// Ends all open calls at this time.
    pub(crate) fn close(&mut self, time: u64) -> Vec<Ended> {
        if let Some((_, call)) = self.loss.take().and_then(|loss| loss.before) {
            self.end_unknown(call);
        }
        let mut others: Vec<_> = self.others.drain().collect();
        others.sort_unstable_by_key(|(stack, _)| *stack);
        let others = others.into_iter().map(|(_, mut call)| {
            call.stood(time);
            call
        });
        let all = self.current.take().into_iter().chain(others);
        let end = |mut call: Box<Call>| {
            call.close_all(time);
            Ended { call, end: SlowEnd::Open }
        };
        all.map(end).collect()
    }
}

/// Returns whether a call that was open before events were lost is the one that is open since; `None` if that is not known. `began` is when
/// that began, plus all pauses since then; some of these may be lost too.
fn is_same(call: &Call, function: u32, began: u64, time: u64) -> Option<bool> {
    if call.tree.function() != function {
        return Some(false);
    }
    // Pauses only make the beginning seem later, and before that one's last event no other call can have begun.
    if began <= call.last {
        return Some(true);
    }
    let lost = time.saturating_sub(call.last);
    // A call that has begun since then is told apart from one that was open for longer than what is lost.
    let was_open_for_long = call.last.saturating_sub(call.begin) >= lost;
    match began.checked_sub(call.begin.saturating_add(call.pauses))? {
        0 => Some(true),
        missing if missing <= lost => was_open_for_long.then_some(true),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests;
