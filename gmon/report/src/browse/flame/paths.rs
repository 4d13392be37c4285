//! The call paths of all threads together.

use std::cmp::Reverse;
use std::collections::HashMap;

use gmon_export::{Node, Run};

use crate::browse::flame::frame::{Frame, Of, Unit};

/// A tree of call paths, in which the children of a node have different functions.
pub(crate) struct Paths {
    nodes: Vec<Merged>,
    pub(crate) unit: Unit,
}

struct Merged {
    of: Of,
    own: u64,
    /// With all below it.
    weight: u64,
    /// The one with the greatest weight first.
    children: Vec<u32>,
}

impl Paths {
    /// Returns the paths of a run; `None` if they were not recorded.
    pub(crate) fn new(run: &Run) -> Option<Paths> {
        if run.nodes.is_empty() {
            return None;
        }
        let has = |get: fn(&Node) -> u64| run.nodes.iter().any(|node| get(node) > 0);
        let (unit, get): (Unit, fn(&Node) -> u64) = match () {
            () if has(|node| node.self_ns) => (Unit::Nanoseconds, |node| node.self_ns),
            () if has(|node| node.samples) => (Unit::Samples, |node| node.samples),
            () => (Unit::Calls, |node| node.calls),
        };
        let root = Merged { of: Of::All, own: 0, weight: 0, children: Vec::new() };
        let mut nodes = vec![root];
        let mut known: HashMap<(u32, Option<u32>), u32> = HashMap::new();
        // The merged node of each node.
        let mut places: Vec<u32> = Vec::with_capacity(run.nodes.len());
        for node in &run.nodes {
            let parent = node.parent.and_then(|parent| places.get(parent as usize)).copied().unwrap_or(0);
            let place = *known.entry((parent, node.function)).or_insert_with(|| {
                let of = node.function.map_or(Of::Rest, Of::Function);
                nodes.push(Merged { of, own: 0, weight: 0, children: Vec::new() });
                nodes.len() as u32 - 1
            });
            let own = &mut nodes[place as usize].own;
            *own = own.saturating_add(get(node));
            places.push(place);
        }
        let mut parents = vec![0; nodes.len()];
        known.into_iter().for_each(|((parent, _), place)| parents[place as usize] = parent);
        // Parents come before their children.
        for place in (1..nodes.len()).rev() {
            let parent = parents[place] as usize;
            nodes[place].weight = nodes[place].weight.saturating_add(nodes[place].own);
            let weight = nodes[place].weight;
            nodes[parent].weight = nodes[parent].weight.saturating_add(weight);
            nodes[parent].children.push(place as u32);
        }
        let weights: Vec<u64> = nodes.iter().map(|node| node.weight).collect();
        for node in &mut nodes {
            node.children.sort_by_key(|&child| (Reverse(weights[child as usize]), child));
        }
        Some(Paths { nodes, unit })
    }

    /// Returns the frame of everything.
    pub(crate) fn root(&self) -> Frame {
        self.frame(0)
    }

    /// Returns the frames below a frame, the widest first.
    pub(crate) fn children(&self, frame: &Frame) -> Vec<Frame> {
        let children = self.nodes.get(frame.node as usize).map_or(&[][..], |node| &node.children);
        children.iter().map(|&child| self.frame(child)).collect()
    }

    fn frame(&self, node: u32) -> Frame {
        let Merged { of, own, weight, .. } = &self.nodes[node as usize];
        Frame { of: *of, node, weight: *weight as f64, own: *own as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_together() {
        let node =
            |parent, function, thread, self_ns| Node { parent, function, thread, self_ns, ..Node::default() };
        let run = Run {
            nodes: vec![
                node(None, Some(0), 0, 1),
                node(None, Some(0), 1, 2),
                node(Some(0), Some(1), 0, 10),
                node(Some(1), Some(1), 1, 20),
                node(Some(1), None, 1, 50),
            ],
            ..Run::default()
        };
        let paths = Paths::new(&run).expect("paths");
        let root = paths.root();
        assert_eq!((root.of, root.weight, paths.unit), (Of::All, 83.0, Unit::Nanoseconds));
        let first = paths.children(&root);
        assert_eq!(
            first.iter().map(|f| (f.of, f.weight, f.own)).collect::<Vec<_>>(),
            [(Of::Function(0), 83.0, 3.0)]
        );
        let second: Vec<_> = paths.children(&first[0]).iter().map(|f| (f.of, f.weight)).collect();
        assert_eq!(second, [(Of::Rest, 50.0), (Of::Function(1), 30.0)]);
        assert!(Paths::new(&Run::default()).is_none());
    }
}
