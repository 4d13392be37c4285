//! The call paths of a run, for flame graphs: those that were recorded or sampled, or else the ones that the calls make likely.
//!
//! A run without call paths and sampled stacks has the calls and times of each pair of caller and callee, but not on which path a caller
//! was called. The likely paths follow gprof's rule from callee to caller: the time of a function is divided among its callers, and that of each of these
//! among theirs, by what was measured of the pair or else by the number of calls. They are an estimate: if `f` and `g` both call `h`, and
//! only the calls by `g` go on to `i`, the estimate has `f` above `i` as well.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::model::Run;
use gmon_run::Node;

/// The parts of the total below which a path does not fork: its whole time goes to the most likely caller.
const PARTS: f64 = 10_000.0;
/// The most calls on a path.
const DEEPEST: usize = 250;
/// The most steps from a callee to a caller in all.
const STEPS: usize = 3_000_000;

/// The paths of a run.
pub struct Paths<'r> {
    /// Parents come before their children. Those of an estimate are all of the thread 0 and have no calls.
    pub nodes: Cow<'r, [Node]>,
    /// Whether they are an estimate.
    pub is_estimate: bool,
}

impl<'r> Paths<'r> {
    /// Returns the paths of a run, and none if it has no times.
    pub fn of(run: &'r Run) -> Paths<'r> {
        match run.nodes.is_empty() {
            false => Paths { nodes: Cow::Borrowed(&run.nodes), is_estimate: false },
            true => Paths::likely(run),
        }
    }

    /// Returns the paths that the calls of a run make likely, whether or not others were recorded.
    pub(crate) fn likely(run: &Run) -> Paths<'static> {
        Paths { nodes: Cow::Owned(likely(run)), is_estimate: true }
    }
}

/// A caller of a function.
#[derive(Clone, Copy)]
struct Caller {
    /// `None` if no known function was running.
    function: Option<u32>,
    /// What its part of the function's own time depends on.
    own: f64,
    /// What its part of the time below the function depends on.
    inclusive: f64,
}

/// Returns the likely paths of a run's self times.
fn likely(run: &Run) -> Vec<Node> {
    let total = run.functions.iter().map(|function| function.self_ns as f64).sum::<f64>();
    if total <= 0.0 {
        return Vec::new();
    }
    let callers = callers(run);
    let mut trie = Trie::default();
    let mut steps = STEPS;
    let mut order: Vec<u32> = (0..run.functions.len() as u32).collect();
    order.retain(|&function| run.functions[function as usize].self_ns > 0);
    order.sort_by_key(|&function| std::cmp::Reverse(run.functions[function as usize].self_ns));
    for function in order {
        let own = run.functions[function as usize].self_ns as f64;
        let mut search = Search { callers: &callers, least: total / PARTS, steps: &mut steps };
        search.follow(function, own, &mut trie);
    }
    trie.nodes(run)
}

fn callers(run: &Run) -> Vec<Vec<Caller>> {
    let mut callers: Vec<Vec<Caller>> = vec![Vec::new(); run.functions.len()];
    let is_measured = run.time.is_measured();
    for arc in run.pairs().iter().filter(|arc| arc.caller != Some(arc.callee)) {
        // Of samples, gprof's rule knows no time within circles of functions, so calls decide everywhere.
        let [own, inclusive] = match is_measured {
            true => [arc.self_ns, arc.inclusive_ns],
            false => [arc.calls, arc.calls],
        };
        callers[arc.callee as usize].push(Caller {
            function: arc.caller,
            own: own as f64,
            inclusive: inclusive as f64,
        });
    }
    callers
}

/// The search for the paths that end at one function.
struct Search<'c> {
    callers: &'c [Vec<Caller>],
    /// The least time for which a path forks.
    least: f64,
    steps: &'c mut usize,
}

impl Search<'_> {
    fn follow(&mut self, function: u32, own: f64, trie: &mut Trie) {
        // Each entry: the path from the end on, and its time.
        let mut open = vec![(vec![function], own)];
        while let Some((path, time)) = open.pop() {
            let next = self.next(&path, time);
            if next.is_empty() {
                trie.add(&path, time);
                continue;
            }
            for (caller, time) in next {
                *self.steps = self.steps.saturating_sub(1);
                match caller {
                    None => trie.add(&path, time),
                    Some(caller) => {
                        let mut longer = path.clone();
                        longer.push(caller);
                        open.push((longer, time));
                    }
                }
            }
        }
    }

    /// Returns the callers among which a path's time is divided. There is none if the path ends there.
    fn next(&self, path: &[u32], time: f64) -> Vec<(Option<u32>, f64)> {
        let Some(&first) = path.last().filter(|_| path.len() < DEEPEST && *self.steps > 0) else {
            return Vec::new();
        };
        let weight = |caller: &Caller| if path.len() == 1 { caller.own } else { caller.inclusive };
        // A caller that is on the path makes a recursive call, which is one with the earlier one. Where there is no other, calls go in a
        // circle, of which calls alone do not say who began it: the path begins there.
        let is_new = |caller: &&Caller| caller.function.is_none_or(|function| !path.contains(&function));
        let known: Vec<(Option<u32>, f64)> = self.callers[first as usize]
            .iter()
            .filter(is_new)
            .map(|caller| (caller.function, weight(caller)))
            .filter(|(_, weight)| *weight > 0.0)
            .collect();
        let sum: f64 = known.iter().map(|(_, weight)| weight).sum();
        let Some(&most) = known.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { return Vec::new() };
        let mut rest = time;
        let mut parts = Vec::new();
        for (function, weight) in known {
            let part = time * weight / sum;
            if part >= self.least && function != most.0 {
                rest -= part;
                parts.push((function, part));
            }
        }
        parts.push((most.0, rest));
        parts
    }
}

/// Paths from their beginnings on.
#[derive(Default)]
struct Trie {
    nodes: Vec<(Option<u32>, u32, f64)>,
    known: HashMap<(Option<u32>, u32), u32>,
}

impl Trie {
    /// Adds time to the path whose end is first.
    fn add(&mut self, path: &[u32], time: f64) {
        let mut at = None;
        for &function in path.iter().rev() {
            let next = *self.known.entry((at, function)).or_insert_with(|| {
                self.nodes.push((at, function, 0.0));
                self.nodes.len() as u32 - 1
            });
            at = Some(next);
        }
        if let Some(at) = at {
            self.nodes[at as usize].2 += time;
        }
    }

    /// Returns the nodes in whole nanoseconds. The nodes of a function have its self time in all.
    fn nodes(self, run: &Run) -> Vec<Node> {
        let mut before = vec![(0.0_f64, 0_u64); run.functions.len()];
        let node = |(parent, function, time): (Option<u32>, u32, f64)| {
            let (exact, whole) = &mut before[function as usize];
            *exact += time;
            let end = (exact.round() as u64).min(run.functions[function as usize].self_ns);
            let self_ns = end - *whole;
            *whole = end;
            Node { parent, function: Some(function), self_ns, ..Node::default() }
        };
        self.nodes.into_iter().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arc, Function, Time};

    fn run(own: &[u64], arcs: &[(Option<u32>, u32, u64)]) -> Run {
        let function = |&self_ns: &u64| Function { self_ns, ..Function::default() };
        let arc = |&(caller, callee, calls): &(Option<u32>, u32, u64)| Arc {
            caller,
            callee,
            calls,
            ..Arc::default()
        };
        let mut run = Run {
            time: Time::Estimated,
            functions: own.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..Run::default()
        };
        run.sort_arcs();
        run
    }

    /// Returns each path with its self time, as text.
    fn paths(run: &Run) -> Vec<String> {
        let paths = Paths::of(run);
        let mut names: Vec<String> = Vec::new();
        for node in paths.nodes.iter() {
            let above = node.parent.map_or(String::new(), |parent| format!("{};", names[parent as usize]));
            names.push(format!("{above}{}", node.function.expect("a function")));
        }
        let mut texts: Vec<_> = names
            .iter()
            .zip(paths.nodes.iter())
            .filter(|(_, n)| n.self_ns > 0)
            .map(|(name, n)| format!("{name} {}", n.self_ns))
            .collect();
        texts.sort();
        texts
    }

    #[test]
    fn callers_share_by_their_calls() {
        // 0 calls 1 and 2, which call 3 once and three times.
        let run = run(
            &[0, 10, 0, 400],
            &[(None, 0, 1), (Some(0), 1, 1), (Some(0), 2, 1), (Some(1), 3, 1), (Some(2), 3, 3)],
        );
        assert_eq!(paths(&run), ["0;1 10", "0;1;3 100", "0;2;3 300"]);
    }

    #[test]
    fn circles_end_and_no_time_is_lost() {
        // 1 and 2 call each other, and 3 itself; nothing is known of who calls 4.
        let run = run(
            &[5, 30, 50, 20, 7],
            &[
                (None, 0, 1),
                (Some(0), 1, 2),
                (Some(1), 2, 7),
                (Some(2), 1, 6),
                (Some(2), 3, 1),
                (Some(3), 3, 9),
            ],
        );
        let nodes = Paths::of(&run);
        assert!(nodes.is_estimate);
        assert_eq!(nodes.nodes.iter().map(|node| node.self_ns).sum::<u64>(), 112);
        let found = paths(&run);
        // What 1 has called 2 for, and 2 called 1, has no other beginning than 0 in the one case, and 2 in the other.
        assert_eq!(found, ["0 5", "0;1 8", "0;1;2 50", "0;1;2;3 20", "2;1 22", "4 7"]);
    }

    #[test]
    fn recorded_paths_are_no_estimate() {
        let node = Node { function: Some(0), self_ns: 3, ..Node::default() };
        let run = Run { nodes: vec![node], ..run(&[3], &[]) };
        let paths = Paths::of(&run);
        assert_eq!((paths.is_estimate, &paths.nodes[..]), (false, &[node][..]));
        assert!(Paths::of(&Run::default()).nodes.is_empty());
    }
}
