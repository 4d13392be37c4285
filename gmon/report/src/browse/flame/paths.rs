//! The call paths of all threads together, recorded, sampled or estimated.

use std::cmp::Reverse;
use std::collections::HashMap;

use gmon_export::{Function, Node, Run};

use crate::browse::flame::frame::{Frame, Of, Unit};

/// A tree of call paths, in which the children of a node have different functions.
pub(crate) struct Paths {
    nodes: Vec<Merged>,
    pub(crate) unit: Unit,
    /// Whether the paths were neither recorded nor sampled.
    pub(crate) is_estimate: bool,
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
    /// Returns the paths of a run: those that were recorded or sampled, or else the ones that its calls make likely.
    pub(crate) fn new(run: &Run) -> Paths {
        let has = |get: fn(&Node) -> u64| run.nodes.iter().any(|node| get(node) > 0);
        let of_time: fn(&Node) -> u64 = |node| node.self_ns;
        let (unit, get) = match () {
            () if run.nodes.is_empty() => (Unit::of(run), of_time),
            () if has(of_time) => (Unit::of_times(run), of_time),
            () if has(|node| node.samples) => (Unit::Samples, (|node| node.samples) as fn(&Node) -> u64),
            () => (Unit::Calls, (|node| node.calls) as fn(&Node) -> u64),
        };
        let weighed = (run.nodes.is_empty() && !matches!(unit, Unit::Nanoseconds | Unit::Executed))
            .then(|| weighed(run, unit));
        let found = gmon_export::Paths::of(weighed.as_ref().unwrap_or(run));
        let root = Merged { of: Of::All, own: 0, weight: 0, children: Vec::new() };
        let mut nodes = vec![root];
        let mut known: HashMap<(u32, Option<u32>), u32> = HashMap::new();
        // The merged node of each node.
        let mut places: Vec<u32> = Vec::with_capacity(found.nodes.len());
        for node in found.nodes.iter() {
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
        Paths { nodes, unit, is_estimate: found.is_estimate }
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

/// Returns the call graph of a run without times, in which each call or executed instruction has taken a nanosecond.
fn weighed(run: &Run, unit: Unit) -> Run {
    let function = |function: &Function| Function {
        self_ns: if unit == Unit::Instructions { function.instructions } else { function.calls },
        ..Function::default()
    };
    Run { functions: run.functions.iter().map(function).collect(), arcs: run.pairs(), ..Run::default() }
}

#[cfg(test)]
mod tests {
    use gmon_export::{Arc, Time};

    use super::*;

    fn run(own: &[u64], arcs: &[(Option<u32>, u32, u64)]) -> Run {
        let function = |&self_ns: &u64| Function { self_ns, ..Function::default() };
        let arc = |&(caller, callee, calls): &(Option<u32>, u32, u64)| Arc {
            caller,
            callee,
            calls,
            ..Arc::default()
        };
        Run {
            time: Time::Estimated,
            functions: own.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..Run::default()
        }
    }

    /// Returns the frames as a text, each with its weight, and what is below it in brackets.
    fn tree(paths: &Paths, frame: &Frame) -> String {
        let below: Vec<String> = paths.children(frame).iter().map(|child| tree(paths, child)).collect();
        let name = match frame.of {
            Of::All => "all".to_owned(),
            Of::Function(index) => index.to_string(),
            Of::Rest => "rest".to_owned(),
        };
        format!("{name}={:.0}/{:.0}({})", frame.weight, frame.own, below.join(" "))
    }

    fn text(run: &Run) -> String {
        let paths = Paths::new(run);
        assert!(paths.is_estimate);
        tree(&paths, &paths.root())
    }

    #[test]
    fn by_gprof_s_rule_along_paths() {
        let run = run(
            &[10, 20, 40, 8],
            &[(None, 0, 1), (None, 1, 1), (Some(0), 2, 1), (Some(1), 2, 3), (Some(2), 2, 9), (Some(2), 3, 5)],
        );
        let expected = "all=78/0(1=56/20(2=36/30(3=6/6())) 0=22/10(2=12/10(3=2/2())))";
        assert_eq!(text(&run), expected);
    }

    #[test]
    fn without_times_by_calls() {
        let mut run = run(&[0, 0], &[(None, 0, 2), (Some(0), 1, 6)]);
        run.time = Time::None;
        (run.functions[0].calls, run.functions[1].calls) = (2, 6);
        assert_eq!(text(&run), "all=8/0(0=8/2(1=6/6()))");
        assert_eq!(text(&Run::default()), "all=0/0()");
    }

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
        let paths = Paths::new(&run);
        assert!(!paths.is_estimate);
        let root = paths.root();
        assert_eq!((root.of, root.weight, paths.unit), (Of::All, 83.0, Unit::Nanoseconds));
        let first = paths.children(&root);
        assert_eq!(
            first.iter().map(|f| (f.of, f.weight, f.own)).collect::<Vec<_>>(),
            [(Of::Function(0), 83.0, 3.0)]
        );
        let second: Vec<_> = paths.children(&first[0]).iter().map(|f| (f.of, f.weight)).collect();
        assert_eq!(second, [(Of::Rest, 50.0), (Of::Function(1), 30.0)]);
    }
}
