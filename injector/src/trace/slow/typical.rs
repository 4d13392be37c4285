//! What is typical of the calls of a function: the tree of all of them.
//!
//! For each path, a histogram has the time that each call has spent in it, so that the median of all calls is known: a mean would be that of
//! the slowest ones.

use std::collections::HashMap;

use gmon_run::{SlowNode, Typical};
use gprofinject_abi::times::{BUCKETS, bucket, bucket_start};

use crate::profile::totals::Seed;
use crate::trace::slow::tree::{REST, ROOT, Tree, UNKNOWN};

/// The greatest number of paths of all functions together.
const NODES: usize = 1 << 16;
/// The greatest number of functions and programs. Calls of further ones are those of the last one.
const FUNCTIONS: usize = 1 << 10;

/// A function in a program. Times are in ticks.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) program: u32,
    node: u32,
    /// The calls that are in the tree.
    pub(crate) calls: u64,
    /// The calls that are not.
    pub(crate) others: u64,
    min: u64,
    max: u64,
    /// The calls that were slow enough to be kept.
    pub(crate) slow: u64,
}

#[derive(Clone, Debug)]
struct Node {
    parent: Option<u32>,
    /// `None` stands for all paths for which there was no room.
    function: Option<u32>,
    calls: u64,
    own: u64,
    /// The number of calls of the root that have the path.
    present: u64,
    /// The numbers of these calls by the time that they have spent in the path.
    histogram: Histogram,
}

/// Numbers of durations. Intervals at the end that are empty are left out.
#[derive(Clone, Debug, Default)]
struct Histogram(Vec<u64>);

impl Histogram {
    fn add(&mut self, ticks: u64) {
        let at = bucket(ticks);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(count) = self.0.get_mut(at) {
            *count += 1;
        }
    }

    /// Estimates the duration that the part `q` of `all` durations does not exceed; those that are not in the histogram are 0. Within an
    /// interval, durations are taken to be evenly distributed.
    fn quantile(&self, q: f64, all: u64) -> f64 {
        let counted = self.0.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
        let mut before = all.saturating_sub(counted) as f64;
        let wanted = q * all as f64;
        if before >= wanted {
            return 0.0;
        }
        for (at, &count) in self.0.iter().enumerate().filter(|&(_, &count)| count > 0) {
            if before + count as f64 >= wanted {
                let (low, high) = (bucket_start(at) as f64, bucket_start((at + 1).min(BUCKETS - 1)) as f64);
                return low + (wanted - before) / count as f64 * (high - low).max(0.0);
            }
            before += count as f64;
        }
        self.0.len().checked_sub(1).map_or(0.0, |last| bucket_start(last) as f64)
    }
}

/// All functions.
#[derive(Debug, Default)]
pub(crate) struct Typicals {
    roots: Vec<Root>,
    by_function: HashMap<(u32, u32), u32>,
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32, Seed>,
}

impl Typicals {
    /// Returns the index of a function of a program.
    pub(crate) fn root(&mut self, program: u32, function: u32) -> u32 {
        if let Some(&known) = self.by_function.get(&(program, function)) {
            return known;
        }
        if self.roots.len() >= FUNCTIONS {
            return FUNCTIONS as u32 - 1;
        }
        let node = self.add(None, Some(function));
        self.add(Some(node), None);
        let root = Root { program, node, calls: 0, others: 0, min: u64::MAX, max: 0, slow: 0 };
        self.roots.push(root);
        let index = self.roots.len() as u32 - 1;
        self.by_function.insert((program, function), index);
        index
    }

    pub(crate) fn get(&mut self, root: u32) -> Option<&mut Root> {
        self.roots.get_mut(root as usize)
    }

    /// Returns the number of calls of a function that were slow enough to be kept.
    pub(crate) fn slow_calls(&self, root: u32) -> u64 {
        self.roots.get(root as usize).map_or(0, |root| root.slow)
    }

    fn add(&mut self, parent: Option<u32>, function: Option<u32>) -> u32 {
        let histogram = Histogram::default();
        self.nodes.push(Node { parent, function, calls: 0, own: 0, present: 0, histogram });
        self.nodes.len() as u32 - 1
    }

    /// Adds a call that took so many ticks, of which the tree has [summed up](Tree::sum_up) times. `name` returns the number by which a
    /// function is known in all processes, or `None` if it is not known.
    pub(crate) fn add_call(
        &mut self,
        root: u32,
        duration: u64,
        tree: &mut Tree,
        mut name: impl FnMut(u32) -> Option<u32>,
    ) {
        let Some(of) = self.roots.get_mut(root as usize) else { return };
        of.calls = of.calls.saturating_add(1);
        (of.min, of.max) = (of.min.min(duration), of.max.max(duration));
        let (first, rest) = (of.node, of.node + 1);
        let mut in_rest = None;
        for at in 0..tree.visited().len() {
            let Some(&index) = tree.visited().get(at) else { continue };
            let Some(&node) = tree.node(index) else { continue };
            let place = match node.typical {
                UNKNOWN => {
                    let parent = tree.node(node.parent).map_or(rest, |parent| parent.typical);
                    let place = match index {
                        ROOT => first,
                        REST => rest,
                        _ => self.place(parent, rest, name(node.function)),
                    };
                    if let Some(node) = tree.node_mut(index) {
                        node.typical = place;
                    }
                    place
                }
                known => known,
            };
            let Some(typical) = self.nodes.get_mut(place as usize) else { continue };
            typical.calls = typical.calls.saturating_add(node.calls);
            typical.own = typical.own.saturating_add(node.own);
            if place == rest {
                *in_rest.get_or_insert(0_u64) += node.own;
            } else {
                typical.present += 1;
                // The root has the same duration as the call, whatever is left of it after rounding.
                typical.histogram.add(if index == ROOT { duration } else { node.total });
            }
        }
        if let (Some(total), Some(typical)) = (in_rest, self.nodes.get_mut(rest as usize)) {
            typical.present += 1;
            typical.histogram.add(total);
        }
    }

    /// Returns the node of a function that is called on the path of a node.
    fn place(&mut self, parent: u32, rest: u32, function: Option<u32>) -> u32 {
        let Some(function) = function.filter(|_| parent != rest) else { return rest };
        if let Some(&known) = self.children.get(&(parent, function)) {
            return known;
        }
        if self.nodes.len() >= NODES {
            return rest;
        }
        let node = self.add(Some(parent), Some(function));
        self.children.insert((parent, function), node);
        node
    }

    /// Returns what is typical of the calls of each function, and appends its trees. `ns` converts ticks.
    pub(crate) fn results(&self, nodes: &mut Vec<SlowNode>, ns: impl Fn(f64) -> u64) -> Vec<Typical> {
        // The nodes of each function, parents before their children.
        let mut by_root: Vec<Vec<usize>> = vec![Vec::new(); self.roots.len()];
        let mut root_of = Vec::with_capacity(self.nodes.len());
        let firsts: HashMap<u32, usize> = (0..).zip(&self.roots).map(|(at, root)| (root.node, at)).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            let root = match node.parent {
                None => firsts.get(&(index as u32)).copied().unwrap_or(0),
                Some(parent) => root_of.get(parent as usize).copied().unwrap_or(0),
            };
            root_of.push(root);
            if let Some(list) = by_root.get_mut(root).filter(|_| node.parent.is_none() || node.present > 0) {
                list.push(index);
            }
        }
        let mut numbers = vec![0_u32; self.nodes.len()];
        let typical = |(root, list): (&Root, Vec<usize>)| {
            let first = nodes.len() as u32;
            for index in list {
                let (Some(node), number) = (self.nodes.get(index), nodes.len() as u32) else { continue };
                if let Some(place) = numbers.get_mut(index) {
                    *place = number;
                }
                nodes.push(SlowNode {
                    parent: node.parent.and_then(|parent| numbers.get(parent as usize).copied()),
                    function: node.function,
                    calls: node.calls,
                    self_ns: ns(node.own as f64),
                    present: node.present,
                    median_ns: ns(node.histogram.quantile(0.5, root.calls)),
                    ..SlowNode::default()
                });
            }
            let (min_ns, max_ns) = (ns(root.min.min(root.max) as f64), ns(root.max as f64));
            let of_root = nodes.get_mut(first as usize);
            of_root.into_iter().for_each(|node| node.median_ns = node.median_ns.clamp(min_ns, max_ns));
            let histogram = self.nodes.get(root.node as usize).map(|node| node.histogram.clone());
            let p99_ns = ns(histogram.unwrap_or_default().quantile(0.99, root.calls)).clamp(min_ns, max_ns);
            let (program, calls, others) = (root.program, root.calls, root.others);
            Typical { program, node: first, calls, others, min_ns, max_ns, p99_ns, left_out: 0 }
        };
        self.roots.iter().zip(by_root).map(typical).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::slow::tree::Budget;

    #[test]
    fn quantiles_count_calls_without_the_path() {
        let mut histogram = Histogram::default();
        (0..60).for_each(|_| histogram.add(1000));
        let median = histogram.quantile(0.5, 100);
        assert!((896.0..1024.0).contains(&median), "{median}");
        assert_eq!(histogram.quantile(0.5, 121), 0.0, "fewer than half of the calls have it");
        assert_eq!(Histogram::default().quantile(0.5, 0), 0.0);
        histogram.add(u64::MAX);
        assert!(histogram.quantile(1.0, 61) >= bucket_start(BUCKETS - 1) as f64);
    }

    #[test]
    fn the_median_is_not_that_of_the_slowest() {
        let mut typicals = Typicals::default();
        let root = typicals.root(0, 70);
        let mut tree = Tree::new(7, &Budget::default());
        for call in 0..101_u64 {
            tree.begin(7);
            let own = if call < 5 { 1_000_000 } else { 2000 };
            let child = tree.enter(ROOT, 1);
            tree.node_mut(ROOT).expect("it is there").own = 100;
            tree.node_mut(child).expect("it is there").own = own;
            tree.enter(REST, 2);
            tree.sum_up(0, 0);
            typicals.add_call(root, own + 100, &mut tree, |function| Some(function * 10));
        }
        let mut nodes = vec![SlowNode::default()];
        let found = typicals.results(&mut nodes, |ticks| ticks as u64);
        assert_eq!(
            (found[0].node, found[0].calls, found[0].min_ns, found[0].max_ns),
            (1, 101, 2100, 1_000_100)
        );
        assert!((1792..2560).contains(&nodes[1].median_ns) && found[0].p99_ns > 500_000, "{nodes:?}");
        let child = nodes.iter().find(|node| node.function == Some(10)).expect("it is there");
        assert_eq!((child.parent, child.calls, child.self_ns, child.present), (Some(1), 101, 5_192_000, 101));
        assert!((1792..2560).contains(&child.median_ns), "{child:?}");
        assert!(nodes.iter().any(|node| node.function.is_none() && node.calls == 101));
    }

    #[test]
    fn paths_are_bounded() {
        let mut typicals = Typicals::default();
        let root = typicals.root(0, 0);
        for round in 0..30 {
            let mut tree = Tree::new(0, &Budget::default());
            tree.begin(0);
            for function in 0..4000 {
                tree.enter(ROOT, 1 + function + round * 4000);
            }
            tree.sum_up(0, 0);
            typicals.add_call(root, 10, &mut tree, Some);
        }
        assert_eq!(typicals.nodes.len(), NODES);
        let mut nodes = Vec::new();
        typicals.results(&mut nodes, |ticks| ticks as u64);
        assert_eq!(nodes.iter().map(|node| node.calls).sum::<u64>(), 30 * 4001);
    }
}
