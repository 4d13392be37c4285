//! What functions have of something, each with what those have that it calls.

use std::collections::HashMap;
use std::hash::Hash;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

/// An arc of a call graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<F> {
    /// `None` if no known function was running.
    pub(crate) caller: Option<F>,
    pub(crate) callee: F,
    /// The share of the arc in what the called function has, as all arcs that lead to it add up.
    pub(crate) weight: f64,
    /// The time of the arc's calls with what they call.
    pub(crate) lasted: f64,
}

/// What functions and arcs have of something, with what they call.
#[derive(Clone, Debug)]
pub(crate) struct Below<F> {
    functions: HashMap<F, f64>,
    /// In the order of the calls.
    pub(crate) arcs: Vec<f64>,
}

impl<F: Copy + Eq + Hash> Below<F> {
    /// Returns what functions have that have `own` themselves. A function's is divided among its callers by the weights of the calls.
    /// `lasted` tells the time of a function with what it calls.
    ///
    /// Functions that call each other in a circle have all of the circle's together, as gprof's cycles, and each of them so much of
    /// it as it has of their time.
    pub(crate) fn of(calls: &[Call<F>], own: impl Fn(F) -> f64, lasted: impl Fn(F) -> f64) -> Self {
        let circles = Circles::of(calls);
        let mut into: Vec<Vec<usize>> = vec![Vec::new(); circles.members.len()];
        for (at, call) in calls.iter().enumerate().filter(|(_, call)| circles.is_entered_by(call)) {
            into[circles.number_of[&call.callee]].push(at);
        }
        let mut below = Below { functions: HashMap::new(), arcs: vec![0.0; calls.len()] };
        let mut all: Vec<f64> =
            circles.members.iter().map(|members| members.iter().map(|&member| own(member)).sum()).collect();
        for (number, members) in circles.members.iter().enumerate() {
            let longest = members.iter().map(|&member| lasted(member)).fold(0.0, f64::max);
            for &member in members {
                below.functions.insert(member, all[number] * part(lasted(member), longest));
            }
            let weights: f64 = into[number].iter().map(|&at| calls[at].weight).sum();
            for &at in into[number].iter().filter(|_| weights > 0.0) {
                below.arcs[at] = all[number] * calls[at].weight / weights;
                if let Some(caller) = calls[at].caller {
                    all[circles.number_of[&caller]] += below.arcs[at];
                }
            }
        }
        // The calls of one arc of a circle may contain those of another, so each has what the function has in as much time.
        for (at, call) in calls.iter().enumerate().filter(|(_, call)| !circles.is_entered_by(call)) {
            let part = part(call.lasted, lasted(call.callee)).min(1.0);
            below.arcs[at] = below.function(call.callee) * part;
        }
        below
    }

    /// Returns what a function has; 0 if no arc leads to it.
    pub(crate) fn function(&self, function: F) -> f64 {
        self.functions.get(&function).copied().unwrap_or(0.0)
    }
}

/// Returns which part one time is of another; all of it if there is no time.
fn part(time: f64, of: f64) -> f64 {
    if of > 0.0 { time / of } else { 1.0 }
}

/// The circles of functions that call each other, as far as arcs show. A function that calls none that calls it is in one of its own.
struct Circles<F> {
    /// Those that are called come before those that call them.
    members: Vec<Vec<F>>,
    number_of: HashMap<F, usize>,
}

impl<F: Copy + Eq + Hash> Circles<F> {
    fn of(calls: &[Call<F>]) -> Self {
        let mut graph = DiGraph::<F, ()>::new();
        let mut places: HashMap<F, NodeIndex> = HashMap::new();
        let mut place = |function: F, graph: &mut DiGraph<F, ()>| {
            *places.entry(function).or_insert_with(|| graph.add_node(function))
        };
        for call in calls {
            let callee = place(call.callee, &mut graph);
            if let Some(caller) = call.caller {
                let caller = place(caller, &mut graph);
                graph.add_edge(caller, callee, ());
            }
        }
        let members: Vec<Vec<F>> = kosaraju_scc(&graph)
            .iter()
            .map(|circle| circle.iter().map(|&place| graph[place]).collect())
            .collect();
        let mut number_of = HashMap::new();
        for (number, members) in members.iter().enumerate() {
            number_of.extend(members.iter().map(|&member| (member, number)));
        }
        Circles { members, number_of }
    }

    /// Whether calls lead into the circle of the called function from outside.
    fn is_entered_by(&self, call: &Call<F>) -> bool {
        call.caller.and_then(|caller| self.number_of.get(&caller)) != self.number_of.get(&call.callee)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(caller: Option<u32>, callee: u32, calls: u32, lasted: u32) -> Call<u32> {
        Call { caller, callee, weight: calls.into(), lasted: lasted.into() }
    }

    /// 0 calls 1 and 4; 1 and 2 call each other, and 2 calls 3, as 4 does.
    #[test]
    fn circles_have_what_they_call() {
        let calls = [
            call(None, 0, 1, 1000),
            call(Some(0), 1, 1, 800),
            call(Some(1), 2, 50, 400),
            call(Some(2), 1, 49, 350),
            call(Some(2), 3, 30, 30),
            call(Some(4), 3, 10, 10),
            call(Some(0), 4, 1, 100),
        ];
        let below = Below::of(
            &calls,
            |function| [1.0, 10.0, 20.0, 40.0, 0.0][function as usize],
            |function| [1000.0, 800.0, 400.0, 40.0, 100.0][function as usize],
        );
        // Three quarters of what 3 has are the circle's, the rest is 4's, and nothing is lost on the way up.
        assert_eq!([3, 4, 1, 2, 0].map(|of| below.function(of)), [40.0, 10.0, 60.0, 30.0, 71.0]);
        assert_eq!(below.arcs, [71.0, 60.0, 30.0, 26.25, 30.0, 10.0, 10.0]);
        assert_eq!(below.function(7), 0.0);
    }

    /// A call graph as deep as a program with 200,000 functions may have it is no recursion here.
    #[test]
    fn deep_graphs() {
        const DEPTH: u32 = 200_000;
        let calls: Vec<Call<u32>> = (0..DEPTH).map(|n| call(n.checked_sub(1), n, 1, 1)).collect();
        let own = |function| if function == DEPTH - 1 { 1.0 } else { 0.0 };
        let below = Below::of(&calls, own, |_| 1.0);
        assert_eq!(below.function(0), 1.0);
    }
}
