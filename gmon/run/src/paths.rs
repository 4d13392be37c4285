//! The call paths that the nodes of a tree stand for, as samples with whole stacks have them.
//!
//! A tree of n nodes may contain n²/2 frames: a path can be as deep as the tree has nodes. Where a tree contains
//! more frames than [`MAX_FRAMES`], the middle of deep paths is left out. The nodes themselves are in the file too
//! (`Nodes` in `wire.rs`), so only readers other than this crate notice.

/// The number of frames that the paths of all nodes may have. A frame takes two bytes or so in the file, before
/// compression.
const MAX_FRAMES: u64 = 64 << 20;
/// The name of the frame that stands for those of a path for which there is no room.
pub const LEFT_OUT_NAME: &str = "[frames left out]";
/// The number of frames that each path may have in any case.
const MIN_LIMIT: u32 = 16;

/// A frame of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The index of a node.
    Node(u32),
    /// Any number of frames are left out here.
    LeftOut,
}

/// The paths of the nodes.
pub struct Paths {
    /// The index of each node's parent.
    parents: Vec<Option<u32>>,
    /// The number of frames of each node's path.
    depths: Vec<u32>,
    /// The number of frames above which the middle of a path is left out.
    limit: u32,
    /// For each node whose path is longer, the node of the last of the outermost frames that remain.
    outer: Vec<u32>,
}

impl Paths {
    /// Returns the paths of the nodes with these parents, of which each comes before its children.
    pub fn new(parents: impl Iterator<Item = Option<u32>>) -> Paths {
        Paths::bounded(parents.collect(), MAX_FRAMES)
    }

    fn bounded(parents: Vec<Option<u32>>, frames: u64) -> Paths {
        let mut depths: Vec<u32> = Vec::with_capacity(parents.len());
        for index in 0..parents.len() {
            let above = parent(&parents, index).map_or(0, |parent| depths[parent]);
            depths.push(above + 1);
        }
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let sum = |limit: u32| depths.iter().map(|&depth| u64::from(depth.min(limit))).sum::<u64>();
        // The largest limit with which all frames fit: the sum grows with the limit.
        let (mut limit, mut too_large) = (MIN_LIMIT, deepest.max(MIN_LIMIT) + 1);
        while too_large - limit > 1 {
            let middle = limit + (too_large - limit) / 2;
            if sum(middle) <= frames {
                limit = middle;
            } else {
                too_large = middle;
            }
        }
        let mut outer = Vec::new();
        if limit < deepest {
            for (index, &depth) in depths.iter().enumerate() {
                outer.push(match parent(&parents, index) {
                    Some(parent) if depth > limit / 2 - 1 => outer[parent],
                    _ => index as u32,
                });
            }
        }
        Paths { parents, depths, limit, outer }
    }

    /// Appends the path of a node, from the node itself to the beginning of the path.
    pub fn append(&self, node: usize, path: &mut Vec<Frame>) {
        let depth = self.depths.get(node).copied().unwrap_or(0);
        if depth <= self.limit {
            self.up(node, depth, path);
            return;
        }
        let outer = self.limit / 2 - 1;
        self.up(node, self.limit - self.limit / 2, path);
        path.push(Frame::LeftOut);
        self.up(self.outer[node] as usize, outer, path);
    }

    /// Appends a node and those above it, at most `frames` of them.
    fn up(&self, node: usize, frames: u32, path: &mut Vec<Frame>) {
        let mut at = Some(node);
        for _ in 0..frames {
            let Some(node) = at else { break };
            path.push(Frame::Node(node as u32));
            at = parent(&self.parents, node);
        }
    }
}

/// Returns the index of a node's parent, which comes before the node.
fn parent(parents: &[Option<u32>], node: usize) -> Option<usize> {
    parents[node].map(|parent| parent as usize).filter(|&parent| parent < node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(paths: &Paths, node: usize) -> Vec<Option<u32>> {
        let mut path = Vec::new();
        paths.append(node, &mut path);
        let index = |frame| if let Frame::Node(index) = frame { Some(index) } else { None };
        path.into_iter().map(index).collect()
    }

    fn chain(len: u32) -> Vec<Option<u32>> {
        (0..len).map(|index| index.checked_sub(1)).collect()
    }

    #[test]
    fn whole_paths() {
        let mut nodes = chain(20);
        nodes.push(Some(1));
        let paths = Paths::new(nodes.into_iter());
        assert_eq!(path(&paths, 20), [Some(20), Some(1), Some(0)]);
        assert_eq!(path(&paths, 19), (0..20).rev().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn the_middle_is_left_out() {
        let nodes = chain(100);
        let paths = Paths::bounded(nodes, 0);
        assert_eq!(path(&paths, 15), (0..16).rev().map(Some).collect::<Vec<_>>());
        let expected: Vec<_> =
            (92..100).rev().map(Some).chain([None]).chain((0..7).rev().map(Some)).collect();
        assert_eq!(path(&paths, 99), expected);
        assert_eq!(expected.len(), 16);
    }

    /// The frames of all nodes of a path of 100,000 would be 5 billion.
    #[test]
    fn deep_recursion() {
        let nodes = chain(100_000);
        let paths = Paths::new(nodes.iter().copied());
        let mut frames = Vec::new();
        let sum: u64 = (0..nodes.len())
            .map(|node| {
                frames.clear();
                paths.append(node, &mut frames);
                frames.len() as u64
            })
            .sum();
        assert!((MAX_FRAMES - 100_000..=MAX_FRAMES).contains(&sum), "{sum}");
    }

    /// The parents of nodes that are not valid end the path.
    #[test]
    fn parents_after_their_children() {
        let nodes = [Some(1), Some(0)];
        assert_eq!(path(&Paths::new(nodes.into_iter()), 1), [Some(1), Some(0)]);
    }
}
