//! The tree of a flame graph: call paths of all threads, with the time of one run or of two.

use std::cmp::Reverse;
use std::collections::HashMap;

use gmon_run::Node;

/// A path, with its times in the old and the new run; a tree of one run has them as the new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The index of the path without its last call, which is less than that of this one.
    pub(crate) parent: Option<u32>,
    /// The number of the last call's function; `None` stands for several.
    pub(crate) function: Option<u32>,
    /// The times of the last call itself, in nanoseconds.
    pub(crate) own: [u64; 2],
    /// The times with that of all paths that go on from this one. Set by [`Flame::finish`].
    pub(crate) total: [u64; 2],
    /// The number of calls before the last.
    pub(crate) depth: u32,
}

/// A tree that grows.
#[derive(Default)]
pub(crate) struct Flame {
    boxes: Vec<Path>,
    places: HashMap<(Option<u32>, Option<u32>), u32>,
}

impl Flame {
    /// Adds the paths of a run as the old (0) or the new (1) ones. `number` returns the number that a function has in the tree.
    pub(crate) fn add(&mut self, nodes: &[Node], side: usize, number: impl Fn(u32) -> u32) {
        let mut places: Vec<u32> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let parent = node.parent.map(|parent| places[parent as usize]);
            let function = node.function.map(&number);
            let boxes = &mut self.boxes;
            let place = *self.places.entry((parent, function)).or_insert_with(|| {
                let depth = parent.map_or(0, |parent| boxes[parent as usize].depth + 1);
                boxes.push(Path { parent, function, depth, ..Path::default() });
                boxes.len() as u32 - 1
            });
            let own = &mut self.boxes[place as usize].own[side];
            *own = own.saturating_add(node.self_ns);
            places.push(place);
        }
    }

    /// Returns the tree: parents before their children, and these with the most time first. What has less than `least` in both runs is
    /// left out; the times of those around it count it.
    pub(crate) fn finish(mut self, least: [u64; 2]) -> Vec<Path> {
        for index in (0..self.boxes.len()).rev() {
            let Path { parent, own, total, .. } = self.boxes[index];
            let total = [0, 1].map(|side| total[side].saturating_add(own[side]));
            self.boxes[index].total = total;
            if let Some(parent) = parent {
                let above = &mut self.boxes[parent as usize].total;
                *above = [0, 1].map(|side| above[side].saturating_add(total[side]));
            }
        }
        let is_kept = |found: &Path| (0..2).any(|side| found.total[side] > least[side]);
        let mut order: Vec<u32> =
            (0..self.boxes.len() as u32).filter(|&index| is_kept(&self.boxes[index as usize])).collect();
        // By depth, so that parents come first. The sort is stable.
        order.sort_by_key(|&index| {
            let found = &self.boxes[index as usize];
            (found.depth, Reverse(found.total[1]), Reverse(found.total[0]))
        });
        let mut places: HashMap<u32, u32> = HashMap::new();
        let place = |(at, &index): (u32, &u32)| {
            places.insert(index, at);
            let found = self.boxes[index as usize];
            // A path that is kept has at most the time of the path before it.
            Path { parent: found.parent.and_then(|parent| places.get(&parent).copied()), ..found }
        };
        (0..).zip(&order).map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_runs_are_one_tree() {
        let node = |parent, function, thread, self_ns| Node {
            parent,
            function: Some(function),
            thread,
            self_ns,
            ..Node::default()
        };
        let mut flame = Flame::default();
        flame.add(
            &[node(None, 0, 0, 1), node(Some(0), 1, 0, 9), node(None, 0, 1, 2), node(Some(2), 1, 1, 4)],
            1,
            |f| f,
        );
        // The other run has other numbers of functions.
        flame.add(&[node(None, 5, 0, 8), node(Some(0), 7, 0, 1), node(Some(0), 6, 0, 100)], 0, |f| f - 5);
        let boxes = flame.finish([1, 0]);
        let found: Vec<_> = boxes.iter().map(|b| (b.parent, b.function, b.own, b.total, b.depth)).collect();
        assert_eq!(
            found,
            [(None, Some(0), [8, 3], [109, 16], 0), (Some(0), Some(1), [100, 13], [100, 13], 1)]
        );
    }
}
