//! How often control passed along each edge between the basic blocks of a function, by conservation of flow: what comes to a block
//! leaves it.
//!
//! An edge that is the only one of unknown count on one side of a block has what the others there leave. Where that does not go on,
//! edges are open: the counts of blocks are the same for more than one choice of the counts of edges (two branches to the same two
//! blocks, for example). These get the most even choice, found by iterative proportional fitting (Deming and Stephan, 1940): all begin
//! equal and are scaled to the sums on the two sides of each block in turn. They then get whole numbers one after the other, and after
//! each of them what follows from conservation.

/// A way of control from one block to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The index of the block that it leaves; `None` if it enters the function.
    pub(crate) from: Option<usize>,
    /// The index of the block to which it leads; `None` if it leaves the function.
    pub(crate) to: Option<usize>,
    /// How often control passed, if that is known already.
    pub(crate) count: Option<u64>,
}

/// The counts of all edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Solved {
    /// In the order of the edges.
    pub(crate) counts: Vec<u64>,
    /// The edges that conservation leaves open.
    pub(crate) open: Vec<usize>,
}

/// The number of times that all open edges are scaled.
const ROUNDS: usize = 40;

/// Returns the counts of edges between blocks with these counts. Where there are no edges on one side of a block, nothing follows from
/// its count there.
pub(crate) fn solve(blocks: &[u64], edges: &[Edge]) -> Solved {
    let mut solver = Solver::new(blocks, edges);
    solver.follow();
    let open: Vec<usize> = (0..edges.len()).filter(|&edge| solver.counts[edge].is_none()).collect();
    let wanted = solver.fitted(&open);
    let mut order: Vec<usize> = (0..open.len()).collect();
    order.sort_by(|&a, &b| wanted[b].total_cmp(&wanted[a]));
    for at in order {
        let edge = open[at];
        if solver.counts[edge].is_none() {
            let most = solver.sides(edge).map(|side| solver.left[side]).min().unwrap_or(0);
            solver.set(edge, (wanted[at].round() as u64).min(most));
            solver.follow();
        }
    }
    Solved { counts: solver.counts.into_iter().map(|count| count.unwrap_or(0)).collect(), open }
}

struct Solver<'e> {
    edges: &'e [Edge],
    counts: Vec<Option<u64>>,
    /// The edges of each side: at 2b those that leave block b, at 2b + 1 those that lead to it.
    of_side: Vec<Vec<usize>>,
    /// What remains of the block's count on each side.
    left: Vec<u64>,
    /// The number of edges of unknown count on each side.
    unknown: Vec<usize>,
    /// Sides that may have a single one.
    ready: Vec<usize>,
}

impl<'e> Solver<'e> {
    fn new(blocks: &[u64], edges: &'e [Edge]) -> Solver<'e> {
        let mut solver = Solver {
            edges,
            counts: vec![None; edges.len()],
            of_side: vec![Vec::new(); 2 * blocks.len()],
            left: blocks.iter().flat_map(|&count| [count, count]).collect(),
            unknown: vec![0; 2 * blocks.len()],
            ready: Vec::new(),
        };
        for edge in 0..edges.len() {
            for side in solver.sides(edge) {
                solver.of_side[side].push(edge);
                solver.unknown[side] += 1;
            }
        }
        for (index, edge) in edges.iter().enumerate() {
            if let Some(count) = edge.count {
                solver.set(index, count);
            }
        }
        solver.ready = (0..2 * blocks.len()).rev().collect();
        solver
    }

    /// The sides of blocks that an edge is on.
    fn sides(&self, edge: usize) -> impl Iterator<Item = usize> + use<> {
        let Edge { from, to, .. } = self.edges[edge];
        from.map(|from| 2 * from).into_iter().chain(to.map(|to| 2 * to + 1))
    }

    fn set(&mut self, edge: usize, count: u64) {
        self.counts[edge] = Some(count);
        for side in self.sides(edge) {
            // Counts of a run that was killed may not add up.
            self.left[side] = self.left[side].saturating_sub(count);
            self.unknown[side] -= 1;
            self.ready.push(side);
        }
    }

    /// Sets all edges that follow from others.
    fn follow(&mut self) {
        while let Some(side) = self.ready.pop() {
            // Where nothing remains, no other edge has anything.
            let rest = match (self.unknown[side], self.left[side]) {
                (0, _) => continue,
                (_, 0) => 0,
                (1, rest) => rest,
                _ => continue,
            };
            let unknown: Vec<usize> =
                self.of_side[side].iter().copied().filter(|&edge| self.counts[edge].is_none()).collect();
            for edge in unknown {
                self.set(edge, rest);
            }
        }
    }

    /// Returns the most even counts of open edges.
    fn fitted(&self, open: &[usize]) -> Vec<f64> {
        let mut wanted = vec![1.0; open.len()];
        let mut of_side: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut place = vec![usize::MAX; self.of_side.len()];
        for (at, &edge) in open.iter().enumerate() {
            for side in self.sides(edge) {
                if place[side] == usize::MAX {
                    place[side] = of_side.len();
                    of_side.push((side, Vec::new()));
                }
                of_side[place[side]].1.push(at);
            }
        }
        for _ in 0..ROUNDS {
            for (side, members) in &of_side {
                let sum: f64 = members.iter().map(|&at| wanted[at]).sum();
                if sum > 0.0 {
                    let factor = self.left[*side] as f64 / sum;
                    members.iter().for_each(|&at| wanted[at] *= factor);
                }
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: usize, to: usize) -> Edge {
        Edge { from: Some(from), to: Some(to), count: None }
    }

    /// A loop with a condition in it: everything follows.
    #[test]
    fn what_follows_from_blocks() {
        // 0 -> 1; 1 -> 2, 3; 2 -> 4; 3 -> 4; 4 -> 1, 5
        let edges = [edge(0, 1), edge(1, 2), edge(1, 3), edge(2, 4), edge(3, 4), edge(4, 1), edge(4, 5)];
        let solved = solve(&[1, 100, 30, 70, 100, 1], &edges);
        assert_eq!(solved.counts, [1, 30, 70, 30, 70, 99, 1]);
        assert!(solved.open.is_empty());
    }

    /// Two blocks that both branch to the same two.
    #[test]
    fn what_is_open_is_even_and_adds_up() {
        let edges = [edge(0, 2), edge(0, 3), edge(1, 2), edge(1, 3)];
        let solved = solve(&[60, 40, 50, 50], &edges);
        assert_eq!(solved.counts, [30, 30, 20, 20]);
        assert_eq!(solved.open, [0, 1, 2, 3]);
        let solved = solve(&[7, 4, 5, 6], &edges);
        let [a, b, c, d] = solved.counts[..] else { panic!("four edges") };
        assert_eq!([a + b, c + d, a + c, b + d], [7, 4, 5, 6]);
    }

    #[test]
    fn nothing_remains_for_other_edges() {
        // A branch never taken, to a block to which others lead.
        let edges = [edge(0, 2), edge(0, 1), edge(1, 2)];
        let solved = solve(&[5, 5, 5], &edges);
        assert_eq!(solved.counts, [0, 5, 5]);
    }

    #[test]
    fn counts_that_do_not_add_up() {
        let edges = [Edge { from: None, to: Some(1), count: Some(u64::MAX) }, edge(0, 1)];
        let solved = solve(&[u64::MAX, 3], &edges);
        // What is known remains, and what is left of the other block's count decides.
        assert_eq!(solved.counts[0], u64::MAX);
        assert!(solved.open.is_empty());
    }
}
