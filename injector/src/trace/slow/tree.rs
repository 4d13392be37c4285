//! The tree of a call while it runs: what was called in it, by path.
//!
//! A tree is used for one call of a function after the other. Its nodes stay from one to the next, and only those that a call reaches are
//! set to zero, because most calls of a function take the same paths.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::profile::totals::Seed;

/// The node of the call itself.
pub(crate) const ROOT: u32 = 0;
/// The node of all calls for which there was no room for nodes of their own.
pub(crate) const REST: u32 = 1;
/// The greatest number of nodes of a tree. A call has room for half of them at least.
const NODES: usize = 1 << 14;
/// The greatest number of nodes of the trees of all threads.
const NODES_OF_ALL: usize = 1 << 21;
/// No node of the typical call is known.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// The number of nodes of the trees of all threads.
pub(crate) type Budget = Arc<AtomicUsize>;

/// A function together with the path by which it was called. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The number of the function in its process.
    pub(crate) function: u32,
    pub(crate) parent: u32,
    /// The number of the call that has reached this node last.
    round: u32,
    pub(crate) calls: u64,
    /// The calls that the function has made on this path.
    pub(crate) made: u64,
    /// The time in the function itself.
    pub(crate) own: u64,
    /// The longest call.
    pub(crate) longest: u64,
    /// The parts of `own` in which the thread waited, and in which others had the processor.
    pub(crate) waiting: u64,
    pub(crate) ready: u64,
    /// The time with everything called, which is computed when the call has ended.
    pub(crate) total: u64,
    /// The node of the typical call with the same path, or [`UNKNOWN`].
    pub(crate) typical: u32,
}

impl Node {
    /// Returns the node of a function that no call has reached.
    fn new(function: u32, parent: u32) -> Node {
        Node {
            function,
            parent,
            round: 0,
            calls: 0,
            made: 0,
            own: 0,
            longest: 0,
            waiting: 0,
            ready: 0,
            total: 0,
            typical: UNKNOWN,
        }
    }

    /// Returns the part of `own` in which the thread was off the processor.
    fn off(&self) -> u64 {
        self.waiting.saturating_add(self.ready).min(self.own)
    }
}

/// The tree of a call.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// The nodes by their parents and functions. A recursive call is in the node of the first call of its function on the path.
    children: HashMap<(u32, u32), u32, Seed>,
    /// The last element of `children` that was looked up.
    recent: (u32, u32, u32),
    round: u32,
    /// The nodes that the present call has reached, parents before their children.
    visited: Vec<u32>,
    budget: Budget,
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.budget.fetch_sub(self.nodes.len(), Ordering::Relaxed);
    }
}

impl Tree {
    /// Returns a tree for calls of the function with this number in its process.
    pub(crate) fn new(function: u32, budget: &Budget) -> Tree {
        let mut tree = Tree {
            nodes: Vec::new(),
            children: HashMap::default(),
            recent: (UNKNOWN, 0, 0),
            round: 0,
            visited: Vec::new(),
            budget: Arc::clone(budget),
        };
        tree.reset(function);
        tree
    }

    /// Removes all nodes but those of the call itself and of calls without a node.
    fn reset(&mut self, function: u32) {
        self.budget.fetch_sub(self.nodes.len(), Ordering::Relaxed);
        self.nodes.clear();
        self.children.clear();
        self.recent = (UNKNOWN, 0, 0);
        // There is always room for these.
        self.budget.fetch_add(2, Ordering::Relaxed);
        self.add(function, ROOT);
        self.add(UNKNOWN, ROOT);
    }

    fn add(&mut self, function: u32, parent: u32) -> u32 {
        self.nodes.push(Node::new(function, parent));
        self.nodes.len() as u32 - 1
    }

    /// Returns the number of the function whose calls the tree is for.
    pub(crate) fn function(&self) -> u32 {
        self.nodes.first().map_or(UNKNOWN, |node| node.function)
    }

    /// Begins another call of a function.
    pub(crate) fn begin(&mut self, function: u32) {
        if function != self.function() || self.nodes.len() > NODES / 2 || self.round == u32::MAX {
            self.reset(function);
            self.round = 0;
        }
        self.round += 1;
        self.visited.clear();
        self.touch(ROOT);
        if let Some(root) = self.nodes.first_mut() {
            root.calls = 1;
        }
    }

    /// Forgets the nodes of the typical call, which have been removed.
    pub(crate) fn forget_typical(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.typical = UNKNOWN);
    }

    /// Counts a call of a function by that of a node. Returns its node.
    pub(crate) fn enter(&mut self, parent: u32, function: u32) -> u32 {
        let node = self.find(parent, function);
        self.touch(node);
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.calls += 1;
        }
        if let Some(parent) = self.nodes.get_mut(parent as usize) {
            parent.made += 1;
        }
        node
    }

    fn find(&mut self, parent: u32, function: u32) -> u32 {
        if parent == REST {
            return REST;
        }
        if (self.recent.0, self.recent.1) == (parent, function) {
            return self.recent.2;
        }
        let known = self.children.get(&(parent, function)).copied();
        let node = known.unwrap_or_else(|| self.learn(parent, function));
        if node != REST {
            self.recent = (parent, function, node);
        }
        node
    }

    /// Returns the node for a path that no call has taken before.
    fn learn(&mut self, parent: u32, function: u32) -> u32 {
        let mut outer = parent;
        let above = std::iter::from_fn(|| {
            let at = outer;
            let node = self.nodes.get(at as usize)?;
            outer = if at == ROOT { UNKNOWN } else { node.parent };
            Some((at, node.function))
        });
        let same = above.into_iter().find(|&(_, known)| known == function).map(|(at, _)| at);
        let node = match same {
            Some(node) => node,
            None if self.nodes.len() >= NODES || self.children.len() >= 4 * NODES => return REST,
            None if self.budget.fetch_add(1, Ordering::Relaxed) >= NODES_OF_ALL => {
                self.budget.fetch_sub(1, Ordering::Relaxed);
                return REST;
            }
            None => self.add(function, parent),
        };
        // There are as many elements as pairs of a node and a function that it has called. Without one, a recursive call is searched for.
        if self.children.len() < 4 * NODES {
            self.children.insert((parent, function), node);
        }
        node
    }

    /// Makes a node one that the present call has reached.
    fn touch(&mut self, index: u32) {
        let round = self.round;
        if let Some(node) = self.nodes.get_mut(index as usize).filter(|node| node.round != round) {
            *node = Node { round, typical: node.typical, ..Node::new(node.function, node.parent) };
            self.visited.push(index);
        }
    }

    pub(crate) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    pub(crate) fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    /// Returns the nodes that the present call has reached, parents before their children.
    pub(crate) fn visited(&self) -> &[u32] {
        &self.visited
    }

    /// Takes the overhead of gprofinject, in ticks inside and outside of the interval of each call, out of the times of the call, which has
    /// ended, and adds up the times of nodes with everything called.
    ///
    /// The overhead of a call is a mean, and functions of a few instructions may have less time than that. What is too little there is taken
    /// from the time for which the other functions ran, so that the sum is the duration of the call, as with recorded paths
    /// ([`gmon_run::overhead`]).
    pub(crate) fn sum_up(&mut self, inside: u64, outside: u64) {
        let visited = std::mem::take(&mut self.visited);
        let (mut sum, mut off, mut running) = (0.0, 0.0, 0.0);
        for &index in &visited {
            if let Some(node) = self.nodes.get_mut(index as usize) {
                let overhead =
                    node.calls.saturating_mul(inside).saturating_add(node.made.saturating_mul(outside));
                sum += node.own as f64 - overhead as f64;
                node.own = node.own.saturating_sub(overhead);
                off += node.off() as f64;
                running += (node.own - node.off()) as f64;
            }
        }
        let factor = if running > 0.0 { ((sum - off) / running).clamp(0.0, 1.0) } else { 1.0 };
        for &index in &visited {
            if let Some(node) = self.nodes.get_mut(index as usize) {
                // Nothing negative is left by a cast.
                node.own = node.off() + ((node.own - node.off()) as f64 * factor).round() as u64;
                node.total = node.own;
            }
        }
        for &index in visited.iter().rev() {
            let Some(&Node { parent, total, .. }) = self.nodes.get(index as usize) else { continue };
            if let Some(outer) = self.nodes.get_mut(parent as usize).filter(|_| index != ROOT) {
                outer.total = outer.total.saturating_add(total);
            }
        }
        self.visited = visited;
    }

    /// Returns the number of calls within the call, with itself.
    pub(crate) fn calls(&self) -> u64 {
        let nodes = self.visited.iter().filter_map(|&index| self.nodes.get(index as usize));
        nodes.map(|node| node.calls).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(tree: &Tree) -> Vec<(u32, u32, u64)> {
        let nodes = tree.visited().iter().filter_map(|&index| tree.node(index));
        nodes.map(|node| (node.parent, node.function, node.calls)).collect()
    }

    #[test]
    fn calls_are_by_path_and_recursion_is_folded() {
        let budget = Budget::default();
        let mut tree = Tree::new(7, &budget);
        tree.begin(7);
        let a = tree.enter(ROOT, 1);
        let b = tree.enter(a, 2);
        assert_eq!(tree.enter(b, 1), a, "the function is on the path");
        assert_eq!(tree.enter(b, 7), ROOT, "and so is the function itself");
        assert_eq!(tree.enter(ROOT, 1), a);
        assert_ne!(tree.enter(ROOT, 2), b, "another path");
        assert_eq!(paths(&tree), [(0, 7, 2), (ROOT, 1, 3), (a, 2, 1), (ROOT, 2, 1)]);

        // The next call begins with zeros and has only what it reaches.
        tree.begin(7);
        tree.enter(ROOT, 2);
        assert_eq!(paths(&tree), [(0, 7, 1), (ROOT, 2, 1)]);
        tree.begin(8);
        assert_eq!(paths(&tree), [(0, 8, 1)]);
        assert_eq!(budget.load(Ordering::Relaxed), 2);
        drop(tree);
        assert_eq!(budget.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn there_is_a_node_for_what_has_no_room() {
        let budget = Budget::default();
        let mut tree = Tree::new(0, &budget);
        tree.begin(0);
        for function in 1..100_000 {
            let node = tree.enter(ROOT, function);
            tree.enter(node, 200_000);
        }
        assert_eq!(tree.nodes.len(), NODES);
        let rest = tree.node(REST).map(|node| node.calls).expect("it is there");
        assert_eq!(tree.calls(), 1 + 2 * 99_999);
        assert!(rest > 150_000, "{rest}");
        // The next call has room again.
        tree.begin(0);
        assert_ne!(tree.enter(ROOT, 200_000), REST);
        assert!(budget.load(Ordering::Relaxed) < 5);
    }

    #[test]
    fn threads_share_the_room() {
        let budget = Budget::default();
        budget.store(NODES_OF_ALL - 3, Ordering::Relaxed);
        let mut tree = Tree::new(0, &budget);
        tree.begin(0);
        assert_ne!(tree.enter(ROOT, 1), REST);
        assert_eq!(tree.enter(ROOT, 2), REST);
    }

    #[test]
    fn sums_have_no_overhead() {
        let mut tree = Tree::new(0, &Budget::default());
        tree.begin(0);
        let a = tree.enter(ROOT, 1);
        tree.enter(ROOT, 1);
        let b = tree.enter(a, 2);
        for (node, own) in [(ROOT, 100), (a, 50), (b, 5)] {
            tree.node_mut(node).expect("it is there").own = own;
        }
        tree.sum_up(10, 2);
        let found = [ROOT, a, b].map(|node| tree.node(node).map(|node| (node.own, node.total)));
        // 100 less its own 10 and 2 calls outside of it; 50 less 20 and 2; 5 less 10. What is missing there is taken from the others.
        assert_eq!(found, [Some((82, 109)), Some((27, 27)), Some((0, 0))]);
    }
}
