//! The tree of call paths, with paths of the same functions merged. No function here calls itself: a path may be
//! as deep as the tree has nodes.

use std::cmp::Reverse;
use std::collections::HashMap;

use gmon_export::Node;

/// A tree, or several: one for each function at which a path begins.
pub(crate) struct Tree {
    /// The nodes, parents before their children.
    pub(crate) nodes: Vec<Merged>,
    /// The self time of all nodes.
    pub(crate) total_ns: u64,
    /// The nodes in the order of their parents, those without a parent first. Children of a node are sorted by
    /// inclusive time.
    order: Vec<u32>,
    /// For each node, where its children begin in `order`, and in the end where those of the last one end.
    children: Vec<u32>,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) parent: Option<u32>,
    /// The function; `None` stands for all calls for which there was no room for nodes of their own.
    pub(crate) function: Option<u32>,
    /// The thread; 0 if all threads are merged.
    pub(crate) thread: u32,
    /// 1 for nodes without a parent.
    pub(crate) depth: u32,
    pub(crate) calls: u64,
    pub(crate) self_ns: u64,
    /// The part of it in which threads waited.
    pub(crate) waiting_ns: u64,
    pub(crate) samples: u64,
    /// The self time of this node and of those below.
    pub(crate) inclusive_ns: u64,
}

impl Tree {
    /// Merges nodes. Paths begin at the first function on the way for which `begins` is true; nodes that are in none
    /// are left out. Threads are merged too, unless `threads` is set.
    pub(crate) fn new(nodes: &[Node], threads: bool, begins: impl Fn(Option<u32>) -> bool) -> Tree {
        let mut merged: Vec<Merged> = Vec::new();
        let mut known: HashMap<(Option<u32>, u32, Option<u32>), u32> = HashMap::new();
        // What each node has become.
        let mut became: Vec<Option<u32>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let parent = node.parent.and_then(|parent| became[parent as usize]);
            if parent.is_none() && !begins(node.function) {
                became.push(None);
                continue;
            }
            let thread = if threads { node.thread } else { 0 };
            let index = *known.entry((parent, thread, node.function)).or_insert_with(|| {
                let above = parent.map_or(0, |parent| merged[parent as usize].depth);
                merged.push(Merged {
                    parent,
                    function: node.function,
                    thread,
                    depth: above + 1,
                    calls: 0,
                    self_ns: 0,
                    waiting_ns: 0,
                    samples: 0,
                    inclusive_ns: 0,
                });
                merged.len() as u32 - 1
            });
            let sum = &mut merged[index as usize];
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
            sum.waiting_ns = sum.waiting_ns.saturating_add(node.waiting_ns);
            sum.samples = sum.samples.saturating_add(node.samples);
            became.push(Some(index));
        }
        let mut total_ns = 0_u64;
        for index in (0..merged.len()).rev() {
            let node = &mut merged[index];
            total_ns = total_ns.saturating_add(node.self_ns);
            // The children come later, so their times have been added.
            node.inclusive_ns = node.inclusive_ns.saturating_add(node.self_ns);
            let (parent, inclusive_ns) = (node.parent, node.inclusive_ns);
            if let Some(parent) = parent {
                let parent = &mut merged[parent as usize];
                parent.inclusive_ns = parent.inclusive_ns.saturating_add(inclusive_ns);
            }
        }
        let (order, children) = children(&merged);
        Tree { nodes: merged, total_ns, order, children }
    }

    /// Returns the children of a node, or the nodes without a parent, by inclusive time.
    fn below(&self, node: Option<u32>) -> &[u32] {
        let range = match node {
            None => 0..self.children[0],
            Some(node) => self.children[node as usize]..self.children[node as usize + 1],
        };
        &self.order[range.start as usize..range.end as usize]
    }

    /// Returns the nodes with at least that inclusive time and at most that depth, each followed by those below it.
    /// Of several threads, the one with the most time comes first.
    pub(crate) fn shown(&self, min_ns: u64, depth: u32) -> Vec<u32> {
        let mut shown = Vec::new();
        let mut threads: HashMap<u32, u64> = HashMap::new();
        let mut next: Vec<u32> = self.below(None).to_vec();
        for &root in &next {
            let root = &self.nodes[root as usize];
            let sum = threads.entry(root.thread).or_default();
            *sum = sum.saturating_add(root.inclusive_ns);
        }
        next.sort_by_key(|&root| {
            let thread = self.nodes[root as usize].thread;
            (Reverse(threads[&thread]), thread)
        });
        next.reverse();
        while let Some(index) = next.pop() {
            let node = &self.nodes[index as usize];
            if node.inclusive_ns < min_ns || node.depth > depth {
                continue;
            }
            shown.push(index);
            next.extend(self.below(Some(index)).iter().rev());
        }
        shown
    }
}

/// Returns the nodes by parent, and where the children of each begin.
fn children(nodes: &[Merged]) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..nodes.len() as u32).collect();
    order.sort_by_key(|&index| {
        let node = &nodes[index as usize];
        // Calls that have no node of their own come last.
        (
            node.parent.map(u64::from).map_or(0, |parent| parent + 1),
            node.function.is_none(),
            Reverse(node.inclusive_ns),
        )
    });
    let mut children = vec![0; nodes.len() + 1];
    let mut counts = vec![0; nodes.len() + 1];
    for node in nodes {
        counts[node.parent.map_or(0, |parent| parent as usize + 1)] += 1;
    }
    let mut end = 0;
    for (begin, count) in children.iter_mut().zip(counts) {
        // Those without a parent come first; where they end, the children of the first node begin.
        end += count;
        *begin = end;
    }
    (order, children)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: Option<u32>, function: u32, thread: u32, self_ns: u64) -> Node {
        Node { parent, function: Some(function), thread, calls: 1, self_ns, ..Node::default() }
    }

    /// Two threads: main -> a -> b, main -> b; main -> b -> b.
    fn nodes() -> Vec<Node> {
        vec![
            node(None, 0, 0, 1),
            node(Some(0), 1, 0, 2),
            node(Some(1), 2, 0, 3),
            node(Some(0), 2, 0, 40),
            node(None, 0, 1, 500),
            node(Some(4), 2, 1, 6000),
            node(Some(5), 2, 1, 70_000),
        ]
    }

    /// Returns depth, function, calls, self and inclusive time of the nodes that are shown.
    fn shown(tree: &Tree, min_ns: u64, depth: u32) -> Vec<(u32, u32, u64, u64, u64)> {
        let shown = tree.shown(min_ns, depth).into_iter().map(|index| &tree.nodes[index as usize]);
        shown.map(|n| (n.depth, n.function.unwrap_or(u32::MAX), n.calls, n.self_ns, n.inclusive_ns)).collect()
    }

    #[test]
    fn threads_are_merged() {
        let tree = Tree::new(&nodes(), false, |_| true);
        assert_eq!(tree.total_ns, 76_546);
        let all = [
            (1, 0, 2, 501, 76_546),
            (2, 2, 2, 6040, 76_040),
            (3, 2, 1, 70_000, 70_000),
            (2, 1, 1, 2, 5),
            (3, 2, 1, 3, 3),
        ];
        assert_eq!(shown(&tree, 0, u32::MAX), all);
        assert_eq!(shown(&tree, 5, u32::MAX), all[..4]);
        assert_eq!(shown(&tree, 0, 2), [all[0], all[1], all[3]]);
        assert_eq!(shown(&Tree::new(&[], false, |_| true), 0, 9), []);
    }

    #[test]
    fn or_not() {
        let tree = Tree::new(&nodes(), true, |_| true);
        let expected = [
            (1, 0, 1, 500, 76_500),
            (2, 2, 1, 6000, 76_000),
            (3, 2, 1, 70_000, 70_000),
            (1, 0, 1, 1, 46),
            (2, 2, 1, 40, 40),
            (2, 1, 1, 2, 5),
            (3, 2, 1, 3, 3),
        ];
        assert_eq!(shown(&tree, 0, u32::MAX), expected);
    }

    /// A path begins at the outermost of the functions.
    #[test]
    fn below_a_function() {
        let tree = Tree::new(&nodes(), false, |function| function == Some(2));
        let expected = [(1, 2, 3, 6043, 76_043), (2, 2, 1, 70_000, 70_000)];
        assert_eq!(shown(&tree, 0, u32::MAX), expected);
        assert_eq!(tree.total_ns, 76_043);
    }

    #[test]
    fn deep_paths() {
        let nodes: Vec<Node> = (0..200_000_u32).map(|index| node(index.checked_sub(1), 0, 0, 1)).collect();
        let tree = Tree::new(&nodes, false, |_| true);
        assert_eq!(tree.nodes[0].inclusive_ns, 200_000);
        assert_eq!(tree.shown(0, u32::MAX).len(), 200_000);
    }

    #[test]
    fn other_calls_come_last() {
        let rest = Node { function: None, ..node(Some(0), 0, 0, 100) };
        let nodes = [node(None, 0, 0, 1), rest, node(Some(0), 1, 0, 1)];
        let tree = Tree::new(&nodes, false, |_| true);
        assert_eq!(tree.shown(0, 9), [0, 2, 1]);
    }
}
