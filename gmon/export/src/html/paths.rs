//! Which call paths a report contains.

use gmon_run::Node;

/// The most nodes that are kept as they are.
const MAX_NODES: usize = 600_000;

/// The nodes that a report contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Parents come before their children. What is left out below a node is in one child without a function.
    pub(crate) nodes: Vec<Node>,
    /// The number of nodes that are in no node of their own.
    pub(crate) left_out: usize,
}

/// Returns the nodes with the most time, counting that of all below them.
pub(crate) fn kept(nodes: &[Node]) -> Kept {
    at_most(nodes, MAX_NODES)
}

fn at_most(nodes: &[Node], limit: usize) -> Kept {
    if nodes.len() <= limit {
        return Kept { nodes: nodes.to_vec(), left_out: 0 };
    }
    let totals = totals(nodes);
    let mut sorted: Vec<u64> = totals.iter().map(|&(time, _)| time).collect();
    let (_, &mut bound, _) = sorted.select_nth_unstable_by(limit, |a, b| b.cmp(a));
    // A node has at least the time of each of its children, so a kept node's parent is kept.
    let mut out: Vec<Node> = Vec::new();
    let mut place: Vec<Option<u32>> = vec![None; nodes.len()];
    // The node that stands for all that is left out below a kept node; the last one is for those without a parent.
    let mut rests: std::collections::HashMap<(Option<u32>, u32), usize> = std::collections::HashMap::new();
    let mut left_out = 0;
    for (index, node) in nodes.iter().enumerate() {
        let parent = node.parent.map(|parent| place[parent as usize]);
        if totals[index].0 > bound {
            place[index] = Some(out.len() as u32);
            out.push(Node { parent: parent.flatten(), ..*node });
            continue;
        }
        left_out += 1;
        // What lies below a node that is left out is a part of its total.
        if parent == Some(None) {
            continue;
        }
        let (time, samples) = totals[index];
        let rest = *rests.entry((parent.flatten(), node.thread)).or_insert_with(|| {
            out.push(Node {
                parent: parent.flatten(),
                function: None,
                thread: node.thread,
                ..Node::default()
            });
            out.len() - 1
        });
        out[rest].calls = out[rest].calls.saturating_add(node.calls);
        out[rest].self_ns = out[rest].self_ns.saturating_add(time);
        out[rest].samples = out[rest].samples.saturating_add(samples);
    }
    Kept { nodes: out, left_out }
}

/// Returns the time and the samples of each node with all below it.
fn totals(nodes: &[Node]) -> Vec<(u64, u64)> {
    let mut totals: Vec<_> = nodes.iter().map(|node| (node.self_ns, node.samples)).collect();
    for index in (0..nodes.len()).rev() {
        if let Some(parent) = nodes[index].parent {
            let (time, samples) = totals[index];
            let total = &mut totals[parent as usize];
            *total = (total.0.saturating_add(time), total.1.saturating_add(samples));
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: Option<u32>, function: u32, self_ns: u64) -> Node {
        Node { parent, function: Some(function), self_ns, calls: 1, ..Node::default() }
    }

    #[test]
    fn the_largest_paths_are_kept_and_the_sum_stays() {
        let nodes = [
            node(None, 0, 1),
            node(Some(0), 1, 50),
            node(Some(0), 2, 3),
            node(Some(2), 3, 4),
            node(Some(1), 4, 20),
            node(Some(1), 5, 2),
            node(None, 6, 1),
        ];
        assert_eq!(at_most(&nodes, 7), Kept { nodes: nodes.to_vec(), left_out: 0 });
        let kept = at_most(&nodes, 3);
        let rest = |parent, self_ns, calls| Node { parent, self_ns, calls, ..Node::default() };
        let expected = vec![
            node(None, 0, 1),
            node(Some(0), 1, 50),
            // Function 2 with function 3 below it.
            rest(Some(0), 7, 1),
            node(Some(1), 4, 20),
            rest(Some(1), 2, 1),
            rest(None, 1, 1),
        ];
        assert_eq!(kept, Kept { nodes: expected, left_out: 4 });
    }

    #[test]
    fn nodes_without_time() {
        let nodes = [node(None, 0, 0), node(Some(0), 1, 0)];
        let kept = at_most(&nodes, 1);
        assert_eq!((kept.nodes.len(), kept.left_out), (1, 2));
    }
}
