//! Estimates inclusive times from self times and numbers of calls, as gprof does.
//!
//! gprof knows how long a function ran, but not on whose behalf. It divides the time of a function and of everything that it
//! called among its callers by the number of their calls, as if each call took equally long. Functions that call each
//! other in a circle are treated as one: their common time is divided among those who call into the circle. The rule is that
//! of binutils 2.40 (`gprof/cg_arcs.c`, `cg_assemble` and `propagate_time`).

use crate::model::{Cycle, Run};

/// Sets the inclusive times of functions and all times of arcs, and finds the cycles. The arcs must be sorted, and the number
/// of calls of each function must be known.
pub fn estimate(run: &mut Run) {
    let pairs = run.pairs();
    let mut calls_of: Vec<Vec<(u32, u64)>> = vec![Vec::new(); run.functions.len()];
    for arc in &pairs {
        if let Some(caller) = arc.caller.filter(|&caller| caller != arc.callee && arc.calls > 0) {
            calls_of[caller as usize].push((arc.callee, arc.calls));
        }
    }
    let (group_of, groups) = circles(&calls_of);

    // The calls into each group from outside of it, and among its functions.
    let mut calls = vec![0_u64; groups.len()];
    let mut internal = vec![0_u64; groups.len()];
    for arc in pairs.iter().filter(|arc| arc.caller != Some(arc.callee)) {
        let group = group_of[arc.callee as usize];
        let within = arc.caller.is_some_and(|caller| group_of[caller as usize] == group);
        let sum = if within { &mut internal[group] } else { &mut calls[group] };
        *sum = sum.saturating_add(arc.calls);
    }

    // Callees come before callers.
    let mut own = vec![0.0; groups.len()];
    let mut below = vec![0.0; groups.len()];
    let mut below_of = vec![0.0; run.functions.len()];
    for (group, members) in groups.iter().enumerate() {
        for &member in members {
            own[group] += run.functions[member as usize].self_ns as f64;
            for &(callee, count) in &calls_of[member as usize] {
                let callee = group_of[callee as usize];
                if callee != group && calls[callee] > 0 {
                    let share = count as f64 / calls[callee] as f64 * (own[callee] + below[callee]);
                    below_of[member as usize] += share;
                    below[group] += share;
                }
            }
        }
    }

    for (function, below) in run.functions.iter_mut().zip(&below_of) {
        function.inclusive_ns = function.self_ns.saturating_add(rounded(*below));
    }
    for arc in &mut run.arcs {
        let group = group_of[arc.callee as usize];
        let within = arc.caller.is_some_and(|caller| group_of[caller as usize] == group);
        (arc.self_ns, arc.inclusive_ns) = (0, 0);
        if !within && calls[group] > 0 {
            let share = arc.calls as f64 / calls[group] as f64;
            arc.self_ns = rounded(share * own[group]);
            arc.inclusive_ns = rounded(share * (own[group] + below[group]));
        }
    }
    run.cycles.clear();
    for (group, mut functions) in groups.into_iter().enumerate().filter(|(_, members)| members.len() > 1) {
        functions.sort_unstable();
        for &function in &functions {
            run.functions[function as usize].cycle = Some(run.cycles.len() as u32);
        }
        run.cycles.push(Cycle {
            functions,
            calls: calls[group],
            internal: internal[group],
            self_ns: rounded(own[group]),
            inclusive_ns: rounded(own[group] + below[group]),
        });
    }
}

fn rounded(ns: f64) -> u64 {
    ns.round() as u64
}

/// Returns the group of each function, and the functions of each group. Two functions are in one group if each calls the
/// other, directly or through others. A group comes after all groups that it calls. The algorithm is Tarjan's.
fn circles(calls_of: &[Vec<(u32, u64)>]) -> (Vec<usize>, Vec<Vec<u32>>) {
    const NONE: usize = usize::MAX;
    let count = calls_of.len();
    let mut found = vec![NONE; count];
    let mut lowest = vec![NONE; count];
    let mut group_of = vec![NONE; count];
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let (mut order, mut open) = (0, Vec::new());
    for root in 0..count {
        if found[root] != NONE {
            continue;
        }
        // Each function on the path, with the number of its callees that were looked at.
        let mut path = vec![(root, 0)];
        while let Some((function, tried)) = path.last_mut() {
            let function = *function;
            if *tried == 0 {
                (found[function], lowest[function]) = (order, order);
                order += 1;
                open.push(function);
            }
            if let Some(&(callee, _)) = calls_of[function].get(*tried) {
                *tried += 1;
                let callee = callee as usize;
                if found[callee] == NONE {
                    path.push((callee, 0));
                } else if group_of[callee] == NONE {
                    lowest[function] = lowest[function].min(found[callee]);
                }
                continue;
            }
            path.pop();
            if let Some(&(caller, _)) = path.last() {
                lowest[caller] = lowest[caller].min(lowest[function]);
            }
            if lowest[function] == found[function] {
                let mut members = Vec::new();
                while let Some(member) = open.pop() {
                    group_of[member] = groups.len();
                    members.push(member as u32);
                    if member == function {
                        break;
                    }
                }
                groups.push(members);
            }
        }
    }
    (group_of, groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arc, Function};

    /// Returns a run of functions with self times in ns, and arcs `(caller, callee, calls)`.
    fn run(own: &[u64], arcs: &[(u32, u32, u64)]) -> Run {
        let function = |&self_ns: &u64| Function { self_ns, ..Function::default() };
        let arc = |&(caller, callee, calls): &(u32, u32, u64)| Arc {
            caller: Some(caller),
            callee,
            calls,
            ..Arc::default()
        };
        let mut run = Run {
            functions: own.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..Run::default()
        };
        run.sort_arcs();
        estimate(&mut run);
        run
    }

    fn inclusive(run: &Run) -> Vec<u64> {
        run.functions.iter().map(|function| function.inclusive_ns).collect()
    }

    #[test]
    fn by_numbers_of_calls() {
        // 0 and 1 call 2 once and three times; 2 calls 3 and itself.
        let run = run(&[10, 20, 40, 8], &[(0, 2, 1), (1, 2, 3), (2, 3, 5), (2, 2, 100)]);
        assert_eq!(inclusive(&run), [10 + 12, 20 + 36, 48, 8]);
        let times: Vec<_> = run.arcs.iter().map(|arc| (arc.self_ns, arc.inclusive_ns)).collect();
        assert_eq!(times, [(10, 12), (30, 36), (0, 0), (8, 8)]);
        assert!(run.cycles.is_empty());
    }

    #[test]
    fn a_cycle_is_one_function() {
        // 0 calls 1, 1 and 2 call each other, 2 calls 3.
        let run = run(&[0, 30, 50, 20], &[(0, 1, 2), (1, 2, 7), (2, 1, 6), (2, 3, 1)]);
        assert_eq!(inclusive(&run), [100, 30, 70, 20]);
        let cycle = Cycle { functions: vec![1, 2], calls: 2, internal: 13, self_ns: 80, inclusive_ns: 100 };
        assert_eq!(run.cycles, [cycle]);
        assert_eq!(run.functions.iter().map(|f| f.cycle).collect::<Vec<_>>(), [None, Some(0), Some(0), None]);
    }

    #[test]
    fn a_long_chain_does_not_overflow_the_stack() {
        let arcs: Vec<_> = (0..200_000).map(|caller| (caller, caller + 1, 1)).collect();
        let run = run(&vec![1; 200_001], &arcs);
        assert_eq!(run.functions[0].inclusive_ns, 200_001);
    }

    /// In a chain whose end calls the beginning, the search returns to functions that it has already found.
    #[test]
    fn circles_within_circles() {
        let run =
            run(&[1; 6], &[(0, 1, 1), (1, 2, 1), (2, 0, 1), (2, 3, 1), (3, 4, 1), (4, 3, 1), (5, 4, 1)]);
        let cycles: Vec<_> = run.cycles.iter().map(|cycle| cycle.functions.clone()).collect();
        assert_eq!(cycles, [vec![3, 4], vec![0, 1, 2]]);
        assert_eq!(run.cycles[0].calls, 2);
    }
}
