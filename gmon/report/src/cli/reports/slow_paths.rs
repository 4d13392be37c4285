//! A slow call beside what is typical: the paths of both, and by how much they differ.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use gmon_export::{Slow, SlowCall, SlowNode};

/// A path of a slow call, of the typical one, or of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The index of the caller's path.
    pub(crate) parent: Option<usize>,
    /// The number of calls on the path, with this one.
    pub(crate) depth: u32,
    pub(crate) function: Option<u32>,
    /// The node in the slow call; zeros if it does not have the path.
    pub(crate) node: SlowNode,
    /// The time of the slow call in this path, with everything called, and that of the typical call.
    pub(crate) slow_ns: u64,
    pub(crate) typical_ns: u64,
}

impl Path {
    /// Returns the time of the slow call minus that of the typical call.
    pub(crate) fn difference_ns(&self) -> i64 {
        let saturated = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        saturated(self.slow_ns) - saturated(self.typical_ns)
    }
}

/// Returns the paths of a call and of the typical one that differ by at least `least_ns`, parents before their children, and among the
/// children of a path those first that differ most; and the number of the others. The call itself is always the first path.
pub(crate) fn compare(slow: &Slow, call: &SlowCall, least_ns: u64) -> (Vec<Path>, usize) {
    let typical = slow.typical.get(call.typical as usize).map_or(0, |typical| typical.node);
    let all = both(slow, slow.tree(call.node), slow.tree(typical));
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); all.len()];
    for (index, path) in all.iter().enumerate() {
        if let Some(list) = path.parent.and_then(|parent| children.get_mut(parent)) {
            list.push(index);
        }
    }
    let size = |index: &usize| all.get(*index).map_or(0, |path| path.difference_ns().unsigned_abs());
    let mut paths: Vec<Path> = Vec::new();
    let mut numbers = vec![0; all.len()];
    let mut left: Vec<usize> = if all.is_empty() { Vec::new() } else { vec![0] };
    while let Some(index) = left.pop() {
        let Some(path) = all.get(index) else { continue };
        if index > 0 && path.difference_ns().unsigned_abs() < least_ns {
            continue;
        }
        if let Some(number) = numbers.get_mut(index) {
            *number = paths.len();
        }
        let parent = path.parent.and_then(|parent| numbers.get(parent).copied());
        paths.push(Path { parent, ..path.clone() });
        let mut list = children.get_mut(index).map(std::mem::take).unwrap_or_default();
        list.sort_by_key(|index| Reverse(size(index)));
        // The last one is taken first.
        left.extend(list.into_iter().rev());
    }
    let others = all.len() - paths.len();
    (paths, others)
}

/// Returns the paths of two trees of the same function, parents before their children.
fn both(slow: &Slow, tree: Range<usize>, typical: Range<usize>) -> Vec<Path> {
    let (own, first) = (slow.inclusive(tree.clone()), tree.start);
    let nodes = slow.nodes.get(tree).unwrap_or_default();
    let mut all: Vec<Path> = Vec::with_capacity(nodes.len());
    let mut by_path: HashMap<(Option<usize>, Option<u32>), usize> = HashMap::new();
    for (node, slow_ns) in nodes.iter().zip(own) {
        let parent = node.parent.and_then(|parent| (parent as usize).checked_sub(first));
        let depth = parent.and_then(|parent| all.get(parent)).map_or(0, |parent| parent.depth) + 1;
        by_path.insert((parent, node.function), all.len());
        all.push(Path { parent, depth, function: node.function, node: *node, slow_ns, typical_ns: 0 });
    }
    // The path of each node of the typical call.
    let mut numbers = Vec::with_capacity(typical.len());
    let first = typical.start;
    for node in slow.nodes.get(typical).unwrap_or_default() {
        let parent = node.parent.and_then(|parent| (parent as usize).checked_sub(first));
        let parent = parent.and_then(|parent| numbers.get(parent).copied());
        if parent == Some(usize::MAX) {
            numbers.push(usize::MAX);
            continue;
        }
        let depth = parent.and_then(|parent: usize| all.get(parent)).map_or(0, |parent| parent.depth) + 1;
        let known = by_path.get(&(parent, node.function)).copied();
        // What fewer than half of all calls do is not typical.
        let Some(index) = known.or((node.median_ns > 0).then_some(all.len())) else {
            numbers.push(usize::MAX);
            continue;
        };
        if index == all.len() {
            by_path.insert((parent, node.function), index);
            all.push(Path { parent, depth, function: node.function, ..Path::default() });
        }
        if let Some(path) = all.get_mut(index) {
            path.typical_ns = path.typical_ns.saturating_add(node.median_ns);
        }
        numbers.push(index);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_export::Typical;

    #[test]
    fn what_differs_most_is_first() {
        let node = |parent, function, self_ns, median_ns| SlowNode {
            parent,
            function: Some(function),
            self_ns,
            median_ns,
            ..SlowNode::default()
        };
        let slow = Slow {
            typical: vec![Typical::default()],
            calls: vec![SlowCall { node: 4, ..SlowCall::default() }],
            nodes: vec![
                node(None, 0, 0, 100),
                node(Some(0), 1, 0, 50),
                node(Some(0), 2, 0, 20),
                node(Some(1), 3, 0, 45),
                node(None, 0, 10, 0),
                node(Some(4), 2, 21, 0),
                node(Some(4), 1, 40, 0),
                node(Some(6), 4, 900, 0),
            ],
        };
        let (paths, others) = compare(&slow, &slow.calls[0], 0);
        let found: Vec<_> = paths
            .iter()
            .map(|path| (path.depth, path.function, path.slow_ns, path.difference_ns()))
            .collect();
        assert_eq!(
            found,
            [
                (1, Some(0), 971, 871),
                (2, Some(1), 940, 890),
                (3, Some(4), 900, 900),
                (3, Some(3), 0, -45),
                (2, Some(2), 21, 1)
            ]
        );
        assert_eq!((others, paths[2].parent, paths[4].parent), (0, Some(1), Some(0)));
        let (paths, others) = compare(&slow, &slow.calls[0], 46);
        assert_eq!((paths.len(), others), (3, 2));
    }
}
