//! A wanted call while it runs: its tree, its stack, and the times at which the scheduler may have taken it off the processor.

use std::collections::VecDeque;

use crate::trace::slow::off::Off;
use crate::trace::slow::tree::{ROOT, Tree};

/// The greatest number of open calls of a stack that are followed. Deeper ones are part of the deepest one that is.
const DEEPEST: usize = 1 << 16;
/// The greatest number of gaps that are remembered.
const GAPS: usize = 1 << 11;
/// The least number of ticks between two events for a gap. To leave the processor and come back takes longer.
const GAP: u64 = 1 << 11;
/// The greatest number of bytes of arguments.
pub(crate) const ARGUMENTS: usize = 1 << 12;

/// An open call on the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) node: u32,
    begin: u64,
    /// The pauses of the whole call before this one began.
    paused: u64,
}

/// The time between two events of a thread that were far apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    from: u64,
    to: u64,
    /// What of it can have been off the processor, and is not known to have been yet.
    room: u64,
    /// The node of the function that was running.
    pub(crate) node: u32,
}

/// A wanted call.
pub(crate) struct Call {
    pub(crate) tree: Tree,
    stack: Vec<Frame>,
    /// The number of open calls that are too deep to be followed.
    beyond: u64,
    pub(crate) begin: u64,
    /// The time of the last event.
    pub(crate) last: u64,
    /// The ticks that gprofinject took, without those of the measurement of each call.
    pub(crate) paused: u64,
    /// The part of them that is in no function's time yet.
    pending: u64,
    /// All pauses since the call began: also those in which others had the processor.
    pub(crate) pauses: u64,
    /// The ticks in which events were lost.
    pub(crate) lost: u64,
    pub(crate) is_incomplete: bool,
    pub(crate) gaps: Gaps,
    /// The encoded arguments.
    pub(crate) arguments: Vec<u8>,
}

/// When a call may have been off the processor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps(VecDeque<Gap>);

/// The time off the processor that belongs to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) node: u32,
    pub(crate) waiting: u64,
    pub(crate) ready: u64,
}

impl Gaps {
    fn add(&mut self, gap: Gap) {
        if self.0.len() >= GAPS {
            self.0.pop_front();
        }
        self.0.push_back(gap);
    }

    /// Returns the part of a time off the processor that belongs to a node, if one was running then.
    pub(crate) fn charge(&mut self, off: Off) -> Option<Charge> {
        // The scheduler's clock differs from the process's by a little, so that the middle of the time is looked for.
        let middle = off.from + off.to.saturating_sub(off.from) / 2;
        let after = self.0.partition_point(|gap| gap.to < middle);
        let gap = self.0.get_mut(after).filter(|gap| gap.from <= middle)?;
        let ticks = off.to.min(gap.to).saturating_sub(off.from.max(gap.from)).min(gap.room);
        gap.room -= ticks;
        let (waiting, ready) = if off.is_ready { (0, ticks) } else { (ticks, 0) };
        Some(Charge { node: gap.node, waiting, ready })
    }

    /// Gives the nodes of gaps other numbers.
    pub(crate) fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        self.0.iter_mut().for_each(|gap| gap.node = number(gap.node));
    }

    /// Forgets the gaps, because no more is to be learnt about them.
    pub(crate) fn forget(&mut self) {
        self.0 = VecDeque::new();
    }
}

impl Call {
    /// Begins a call of a function at this time, with a tree that another call has used.
    pub(crate) fn begin(mut tree: Tree, function: u32, time: u64) -> Call {
        tree.begin(function);
        Call {
            tree,
            stack: vec![Frame { node: ROOT, begin: time, paused: 0 }],
            beyond: 0,
            begin: time,
            last: time,
            paused: 0,
            pending: 0,
            pauses: 0,
            lost: 0,
            is_incomplete: false,
            gaps: Gaps::default(),
            arguments: Vec::new(),
        }
    }

    /// Returns the node of the innermost open call.
    pub(crate) fn innermost(&self) -> u32 {
        self.stack.last().map_or(ROOT, |frame| frame.node)
    }

    /// Gives the time up to now to the innermost open call.
    pub(crate) fn pass(&mut self, time: u64) {
        let passed = time.saturating_sub(self.last);
        if passed == 0 {
            return;
        }
        let paused = self.pending.min(passed);
        self.pending -= paused;
        self.paused += paused;
        let (node, own) = (self.innermost(), passed - paused);
        if let Some(node) = self.tree.node_mut(node) {
            node.own += own;
        }
        if passed >= GAP {
            self.gaps.add(Gap { from: self.last, to: time, room: own, node });
        }
        self.last = time;
    }

    /// Takes note of a pause, in which gprofinject took the time, or others had the processor (`is_ready`). That is a part of how long the
    /// call takes.
    pub(crate) fn pause(&mut self, ticks: u64, is_ready: bool) {
        self.pauses = self.pauses.saturating_add(ticks);
        if !is_ready {
            self.pending = self.pending.saturating_add(ticks);
        }
    }

    /// Takes note of the time in which the thread ran on another stack: for this call, it waited.
    pub(crate) fn stood(&mut self, time: u64) {
        let passed = time.saturating_sub(self.last);
        let node = self.innermost();
        if let Some(node) = self.tree.node_mut(node) {
            node.own += passed;
            node.waiting += passed;
        }
        self.last = self.last.max(time);
    }

    /// Begins a call within this one.
    pub(crate) fn enter(&mut self, function: u32, time: u64) {
        self.pass(time);
        if self.beyond > 0 || self.stack.len() >= DEEPEST {
            self.beyond += 1;
            return;
        }
        let node = self.tree.enter(self.innermost(), function);
        self.stack.push(Frame { node, begin: self.last, paused: self.paused });
    }

    /// Counts a call whose end is not seen.
    pub(crate) fn mark(&mut self, function: u32, time: u64) {
        self.pass(time);
        if self.beyond == 0 {
            self.tree.enter(self.innermost(), function);
        }
    }

    /// Ends the innermost open call. Returns whether it was the last one.
    pub(crate) fn leave(&mut self, time: u64) -> bool {
        self.pass(time);
        if self.beyond > 0 {
            self.beyond -= 1;
            return false;
        }
        if let Some(frame) = self.stack.pop() {
            self.close(frame);
        }
        self.stack.is_empty()
    }

    fn close(&mut self, frame: Frame) {
        let lasted = self.last.saturating_sub(frame.begin).saturating_sub(self.paused - frame.paused);
        if let Some(node) = self.tree.node_mut(frame.node) {
            node.longest = node.longest.max(lasted);
        }
    }

    /// Ends all open calls at this time.
    pub(crate) fn close_all(&mut self, time: u64) {
        self.pass(time);
        while let Some(frame) = self.stack.pop() {
            self.close(frame);
        }
    }

    /// Continues after events were lost. `open` has the functions of the calls that are open within this one, from the outermost one inwards.
    pub(crate) fn resume(&mut self, open: impl Iterator<Item = u32>, time: u64) {
        self.is_incomplete = true;
        self.lost += time.saturating_sub(self.last);
        self.last = self.last.max(time);
        (self.pending, self.beyond) = (0, 0);
        let mut depth = 1;
        for function in open {
            let is_it =
                |frame: &Frame| self.tree.node(frame.node).is_some_and(|node| node.function == function);
            if !self.stack.get(depth).is_some_and(is_it) {
                self.stack.truncate(depth);
                self.enter(function, time);
            }
            depth += 1;
        }
        self.stack.truncate(depth);
    }

    /// Adds a time off the processor. Returns `false` if this is of a time that the events have not reached.
    pub(crate) fn charge(&mut self, off: Off) -> bool {
        if off.to > self.last {
            return false;
        }
        if let Some(charge) = self.gaps.charge(off)
            && let Some(node) = self.tree.node_mut(charge.node)
        {
            node.waiting += charge.waiting;
            node.ready += charge.ready;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::slow::tree::Budget;

    fn call(function: u32, time: u64) -> Call {
        Call::begin(Tree::new(function, &Budget::default()), function, time)
    }

    fn own(call: &Call) -> Vec<(u32, u64, u64, u64)> {
        let nodes = call.tree.visited().iter().filter_map(|&index| call.tree.node(index));
        nodes.map(|node| (node.function, node.calls, node.own, node.longest)).collect()
    }

    #[test]
    fn each_function_has_the_time_in_which_it_is_innermost() {
        let mut call = call(9, 1000);
        call.enter(1, 1010);
        call.enter(2, 1030);
        call.pause(7, false);
        call.pause(5, true);
        assert!(!call.leave(1060));
        assert!(!call.leave(1100));
        call.enter(1, 1100);
        assert!(!call.leave(1105));
        assert!(call.leave(1200));
        assert_eq!(own(&call), [(9, 1, 105, 193), (1, 2, 65, 83), (2, 1, 23, 23)]);
        assert_eq!((call.paused, call.last - call.begin), (7, 200));
    }

    #[test]
    fn waits_belong_to_who_was_innermost() {
        let off = |from, to, is_ready| Off { from, to, is_ready };
        let mut call = call(9, 0);
        call.enter(1, 10_000);
        call.enter(2, 50_000);
        assert!(!call.charge(off(60_000, 70_000, false)), "no event has been read of that time");
        assert!(!call.leave(90_000));
        assert!(call.charge(off(60_000, 70_000, false)));
        assert!(call.charge(off(12_000, 12_500, true)));
        // A little longer than what there was.
        assert!(call.charge(off(9_900, 20_000, false)));
        // Before the call.
        assert!(call.charge(off(0, 0, false)));
        call.close_all(100_000);
        let waits = [ROOT, 2, 3].map(|index| call.tree.node(index).map(|node| (node.waiting, node.ready)));
        assert_eq!(waits, [Some((0, 0)), Some((10_000, 500)), Some((10_000, 0))]);
    }

    #[test]
    fn too_deep_calls_are_part_of_the_deepest_one() {
        let mut call = call(0, 0);
        for depth in 1..200_000 {
            call.enter(depth as u32 % 3, depth);
        }
        for depth in 1..200_000 {
            assert!(!call.leave(200_000 + depth));
        }
        assert!(call.leave(500_000));
        let sum: u64 = own(&call).iter().map(|node| node.2).sum();
        assert_eq!(sum, 500_000);
    }

    #[test]
    fn what_is_still_open_after_a_loss_goes_on() {
        let mut call = call(9, 0);
        call.enter(1, 100);
        call.enter(2, 200);
        call.enter(3, 300);
        call.resume([1, 4].into_iter(), 1000);
        assert!(call.is_incomplete && call.lost == 700);
        assert!(!call.leave(1100) && !call.leave(1200) && call.leave(1300));
        let found = own(&call);
        assert_eq!(
            found,
            [(9, 1, 200, 1300), (1, 1, 200, 1100), (2, 1, 100, 0), (3, 1, 0, 0), (4, 1, 100, 100)]
        );
    }
}
