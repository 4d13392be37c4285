//! The slowest calls of functions (`gprofinject --slow`), beside what is typical of all their calls.
//!
//! All durations are of wall time, because a call that waits is as slow for who waits for it as one that runs.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The slowest calls of a run, and what is typical of all calls of the same functions.
///
/// Both have a tree of what was called, which is folded: calls of a function by the same path are one [node](SlowNode). A recursive call
/// is in the node of the first call of its function on the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// The functions whose slowest calls were kept, by program.
    pub typical: Vec<Typical>,
    /// The slowest calls; those of a run from the longest to the shortest.
    pub calls: Vec<SlowCall>,
    /// The nodes of all trees. A node without a parent begins a tree, and the nodes after it, up to the next one without a parent, are
    /// those of its tree, parents before their children.
    pub nodes: Vec<SlowNode>,
}

/// A function whose slowest calls were kept, in a program: what is typical of all its calls.
///
/// Calls within another call of a wanted function are none of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Typical {
    /// The index of the program.
    pub program: u32,
    /// The index of the [node](Slow::nodes) with which the tree of all calls begins. Its function is the one whose calls these are.
    pub node: u32,
    /// The calls that are in the tree: all that have ended and of which no event was lost.
    pub calls: u64,
    /// The calls that are not, because events within them were lost or they had not ended.
    pub others: u64,
    /// The shortest and the longest of the calls in the tree.
    pub min_ns: u64,
    pub max_ns: u64,
    /// An estimate of the duration that 99 % of these calls do not exceed.
    pub p99_ns: u64,
    /// The calls that were slow enough to be kept, and for which there was no room.
    pub left_out: u64,
}

/// How a slow call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowEnd {
    /// It returned.
    #[default]
    Returned,
    /// By an exception, a longjmp, or the end of its thread.
    Left,
    /// It had not ended when its process was, or when that was left.
    Open,
}

/// One of the slowest calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowCall {
    /// The index of its function in [`Slow::typical`].
    pub typical: u32,
    /// The index of the [node](Slow::nodes) with which its tree begins.
    pub node: u32,
    /// The numbers of the process and of the thread.
    pub pid: u32,
    pub tid: u32,
    /// The name of the thread, or an empty text if it is not known.
    pub thread: String,
    /// The arguments as text, or an empty one if they were not recorded.
    pub arguments: String,
    /// When the call began, in nanoseconds since 1970 (UTC).
    pub start_unix_ns: u64,
    /// The duration, without gprofinject's own time.
    pub duration_ns: u64,
    /// The time that gprofinject took within the call. It is in no other time.
    pub overhead_ns: u64,
    /// The part of the duration in which the thread waited for something, and that in which others had the processor though the thread
    /// could have run. `None` if that is not known.
    pub waiting_ns: Option<u64>,
    pub ready_ns: Option<u64>,
    /// The part of the duration of which events were lost, so that it is in no node.
    pub lost_ns: u64,
    /// Whether events within the call were lost: then calls are missing in its tree, and the duration is at least
    /// [`duration_ns`](SlowCall::duration_ns).
    pub is_incomplete: bool,
    pub end: SlowEnd,
}

/// A node of a tree of slow calls: a function together with the path by which it was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowNode {
    /// The index of the caller's node, which is less than that of this node. `None` at the beginning of a tree.
    pub parent: Option<u32>,
    /// The index of the function. `None`, which is never at the beginning of a tree, stands for all calls for which there was no room for
    /// nodes of their own.
    pub function: Option<u32>,
    pub calls: u64,
    /// The time in the function itself.
    pub self_ns: u64,
    /// Of a slow call: the longest call of this path.
    pub longest_ns: u64,
    /// Of a slow call: the part of `self_ns` in which the thread waited; 0 if that is not known.
    pub waiting_ns: u64,
    /// Of a slow call: the part of `self_ns` in which others had the processor; 0 if that is not known.
    pub ready_ns: u64,
    /// Of a typical call: the number of calls in which the path occurs.
    pub present: u64,
    /// Of a typical call: an estimate of the time with everything called that half of all calls do not exceed in this path. It is 0 if
    /// fewer than half of the calls have the path.
    pub median_ns: u64,
}

impl Slow {
    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.typical.is_empty()
    }

    /// Returns the indexes of the nodes of a tree that begins with this node.
    pub fn tree(&self, root: u32) -> Range<usize> {
        let root = root as usize;
        let after = self.nodes.get(root + 1..).unwrap_or_default();
        let end = after.iter().position(|node| node.parent.is_none()).unwrap_or(after.len());
        root..root + 1 + end
    }

    /// Returns for each node of a tree its time with everything that was called.
    pub fn inclusive(&self, tree: Range<usize>) -> Vec<u64> {
        let first = tree.start;
        let nodes = self.nodes.get(tree).unwrap_or_default();
        let mut sums: Vec<u64> = nodes.iter().map(|node| node.self_ns).collect();
        for (at, node) in nodes.iter().enumerate().rev() {
            let sum = sums.get(at).copied().unwrap_or(0);
            let parent = node.parent.and_then(|parent| (parent as usize).checked_sub(first));
            if let Some(outer) = parent.and_then(|parent| sums.get_mut(parent)) {
                *outer = outer.saturating_add(sum);
            }
        }
        sums
    }

    /// Appends those of another run. `program` and `function` say which index each has in this run; those without one are left out.
    pub fn append(
        &mut self,
        other: Slow,
        program: impl Fn(u32) -> Option<u32>,
        function: impl Fn(u32) -> u32,
    ) {
        let programs: Vec<Option<u32>> = other.typical.iter().map(|of| program(of.program)).collect();
        let is_kept = |call: &&SlowCall| programs.get(call.typical as usize).copied().flatten().is_some();
        let typical = other.typical.iter().zip(&programs).filter(|(_, program)| program.is_some());
        let kept = typical.map(|(typical, _)| typical.node);
        let kept: HashSet<u32> =
            kept.chain(other.calls.iter().filter(is_kept).map(|call| call.node)).collect();
        // The nodes stay in their order, so that a sum does not depend on how runs are grouped.
        let begins = (0..).zip(&other.nodes).filter(|(_, node)| node.parent.is_none());
        let begins = begins.map(|(index, _)| index).filter(|index| kept.contains(index));
        let roots: HashMap<u32, u32> =
            begins.map(|root| (root, self.copy(&other, root, &function))).collect();
        let root = |node: u32| roots.get(&node).copied().unwrap_or(0);
        let mut numbers = Vec::with_capacity(programs.len());
        for (typical, program) in other.typical.iter().zip(programs) {
            numbers.push(program.map(|program| {
                self.typical.push(Typical { program, node: root(typical.node), ..*typical });
                self.typical.len() as u32 - 1
            }));
        }
        for call in &other.calls {
            let Some(typical) = numbers.get(call.typical as usize).copied().flatten() else { continue };
            self.calls.push(SlowCall { typical, node: root(call.node), ..call.clone() });
        }
    }

    /// Leaves out all calls but so many of the slowest ones, and the functions of which no call is left.
    pub(crate) fn keep_slowest(&mut self, most: usize) {
        let mut all = std::mem::take(self);
        all.calls.sort_by_key(|call| std::cmp::Reverse(call.duration_ns));
        all.calls.truncate(most);
        let mut is_used = vec![false; all.typical.len()];
        for call in &all.calls {
            if let Some(is_used) = is_used.get_mut(call.typical as usize) {
                *is_used = true;
            }
        }
        let mut numbers = Vec::with_capacity(is_used.len());
        for (typical, is_used) in all.typical.iter().zip(is_used) {
            numbers.push(is_used.then(|| {
                let node = self.copy(&all, typical.node, &|function| function);
                self.typical.push(Typical { node, ..*typical });
                self.typical.len() as u32 - 1
            }));
        }
        for call in &all.calls {
            let Some(typical) = numbers.get(call.typical as usize).copied().flatten() else { continue };
            let node = self.copy(&all, call.node, &|function| function);
            self.calls.push(SlowCall { typical, node, ..call.clone() });
        }
    }

    /// Appends a tree of another run. Returns the index of its first node.
    fn copy(&mut self, other: &Slow, root: u32, function: &impl Fn(u32) -> u32) -> u32 {
        let first = self.nodes.len() as u32;
        let nodes = other.nodes.get(other.tree(root)).unwrap_or_default();
        self.nodes.extend(nodes.iter().map(|node| SlowNode {
            parent: node.parent.map(|parent| parent - root + first),
            function: node.function.map(function),
            ..*node
        }));
        first
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn node(parent: Option<u32>, function: Option<u32>, self_ns: u64) -> SlowNode {
        SlowNode { parent, function, self_ns, ..SlowNode::default() }
    }

    /// Returns calls of two functions, one of each that was kept.
    pub(crate) fn slow() -> Slow {
        Slow {
            typical: vec![
                Typical { program: 0, node: 0, ..Typical::default() },
                Typical { program: 1, node: 2, ..Typical::default() },
            ],
            calls: vec![
                SlowCall { typical: 1, node: 4, ..SlowCall::default() },
                SlowCall { typical: 0, node: 3, ..SlowCall::default() },
            ],
            nodes: vec![
                node(None, Some(0), 5),
                node(Some(0), Some(1), 7),
                node(None, Some(1), 1),
                node(None, Some(0), 9),
                node(None, Some(1), 100),
                node(Some(4), Some(0), 20),
                node(Some(5), None, 3),
            ],
        }
    }

    #[test]
    fn trees_are_found_and_summed() {
        let slow = slow();
        assert_eq!(slow.tree(4), 4..7);
        assert_eq!(slow.inclusive(slow.tree(4)), [123, 23, 3]);
        assert_eq!(slow.inclusive(slow.tree(0)), [12, 7]);
    }

    #[test]
    fn what_other_programs_have_is_left_out() {
        let mut sum = slow();
        sum.append(slow(), |program| (program == 1).then_some(0), |function| 1 - function);
        assert_eq!((sum.typical.len(), sum.calls.len(), sum.nodes.len()), (3, 3, 11));
        let call = &sum.calls[2];
        assert_eq!((call.typical, sum.typical[2].program), (2, 0));
        assert_eq!(sum.nodes[sum.tree(call.node)][1], node(Some(8), Some(1), 20));
    }

    #[test]
    fn the_slowest_are_kept() {
        let mut slow = slow();
        (slow.calls[0].duration_ns, slow.calls[1].duration_ns) = (5, 6);
        slow.keep_slowest(1);
        assert_eq!((slow.typical.len(), slow.calls.len(), slow.nodes.len()), (1, 1, 3));
        assert_eq!((slow.calls[0].duration_ns, slow.nodes[slow.calls[0].node as usize].self_ns), (6, 9));
    }
}
