//! Inclusive times by sampled stacks.
//!
//! A function or something that it called was running in all samples on whose stacks it is, so these samples are its inclusive time, and
//! those with an arc on their stacks are that of the arc. Each sample counts once, however often the function or the arc is on its stack.

use std::collections::HashMap;

use gmon_run::{Node, Stack};

use crate::model::{Arc, Run};

/// Returns the node of a sampled stack, of which the caller's node and the function have these indexes.
pub(crate) fn node(stack: &Stack, parent: Option<u32>, function: Option<u32>, period_ns: u64) -> Node {
    let (samples, self_ns) = (stack.samples, stack.samples.saturating_mul(period_ns));
    Node { parent, function, samples, self_ns, ..Node::default() }
}

/// Sets the inclusive times of functions and all times of arcs by the nodes of the run. The arcs must be sorted. An arc that is on stacks
/// and was not counted is added without calls. A call site of an arc has the arc's time in proportion to its calls.
pub(crate) fn add_times(run: &mut Run) {
    let Inclusive { functions, mut arcs } = inclusive(&run.nodes, run.functions.len());
    for (function, inclusive_ns) in run.functions.iter_mut().zip(functions) {
        function.inclusive_ns = inclusive_ns;
    }
    for sites in run.arcs.chunk_by_mut(|a, b| (a.caller, a.callee) == (b.caller, b.callee)) {
        let times = arcs.remove(&(sites[0].caller, sites[0].callee)).unwrap_or_default();
        let calls = sites.iter().fold(0_u128, |sum, arc| sum + u128::from(arc.calls));
        let mut before = 0_u128;
        let mut ends = [0_u64; 2];
        for arc in sites {
            before += u128::from(arc.calls);
            // The parts are laid end to end, so that they have the whole time together.
            let end = |ns: u64| (u128::from(ns) * before).checked_div(calls).unwrap_or(ns.into()) as u64;
            let next = [times.self_ns, times.inclusive_ns].map(end);
            (arc.self_ns, arc.inclusive_ns) = (next[0] - ends[0], next[1] - ends[1]);
            ends = next;
        }
    }
    // Where a path begins, nothing has called.
    let others = arcs.into_iter().filter(|((caller, _), times)| caller.is_some() || times.is_unknown);
    run.arcs.extend(others.map(|((caller, callee), ArcTimes { self_ns, inclusive_ns, .. })| Arc {
        caller,
        callee,
        self_ns,
        inclusive_ns,
        ..Arc::default()
    }));
    run.sort_arcs();
}

/// What stacks say of functions, by their indexes, and of arcs.
struct Inclusive {
    functions: Vec<u64>,
    arcs: HashMap<(Option<u32>, u32), ArcTimes>,
}

/// The times of an arc.
#[derive(Default)]
struct ArcTimes {
    self_ns: u64,
    inclusive_ns: u64,
    /// Whether there is a caller that is not known.
    is_unknown: bool,
    /// How often it is on the path that is being walked.
    on_path: u32,
}

/// A step of the walk through the tree.
enum Step {
    Down(u32),
    Up(u32),
}

/// Walks through the tree. The walk does not recurse: a path may have as many functions as there are nodes.
fn inclusive(nodes: &[Node], functions: usize) -> Inclusive {
    let totals = totals(nodes);
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    let mut steps = Vec::new();
    for (index, node) in (0..).zip(nodes) {
        match node.parent {
            Some(parent) => children[parent as usize].push(index),
            None => steps.push(Step::Down(index)),
        }
    }
    let mut found = Inclusive { functions: vec![0; functions], arcs: HashMap::new() };
    let mut on_path = vec![0_u32; functions];
    while let Some(step) = steps.pop() {
        let (Step::Down(index) | Step::Up(index)) = step;
        let node = &nodes[index as usize];
        let caller = node.parent.and_then(|parent| nodes[parent as usize].function);
        if let Some(function) = node.function {
            let arc = found.arcs.entry((caller, function)).or_default();
            let on_path = &mut on_path[function as usize];
            if let Step::Up(_) = step {
                *on_path -= 1;
                arc.on_path -= 1;
                continue;
            }
            if *on_path == 0 {
                let sum = &mut found.functions[function as usize];
                *sum = sum.saturating_add(totals[index as usize]);
            }
            if arc.on_path == 0 {
                arc.inclusive_ns = arc.inclusive_ns.saturating_add(totals[index as usize]);
            }
            arc.is_unknown |= caller.is_none() && node.parent.is_some();
            arc.self_ns = arc.self_ns.saturating_add(node.self_ns);
            *on_path += 1;
            arc.on_path += 1;
            steps.push(Step::Up(index));
        }
        steps.extend(children[index as usize].iter().map(|&child| Step::Down(child)));
    }
    found
}

/// Returns the time of each node with that of all below it.
fn totals(nodes: &[Node]) -> Vec<u64> {
    let mut totals: Vec<u64> = nodes.iter().map(|node| node.self_ns).collect();
    for index in (0..nodes.len()).rev() {
        if let Some(parent) = nodes[index].parent {
            let total = totals[index];
            let above = &mut totals[parent as usize];
            *above = above.saturating_add(total);
        }
    }
    totals
}

impl Run {
    /// Returns the number of samples of whose callers some are not known, if inclusive times are those of sampled stacks.
    pub fn samples_without_callers(&self) -> u64 {
        // Whether callers are not known of each node.
        let mut unknown: Vec<bool> = Vec::with_capacity(self.nodes.len());
        let mut samples = 0_u64;
        for node in &self.nodes {
            let is_unknown = node.parent.map_or(node.function.is_none(), |parent| unknown[parent as usize]);
            unknown.push(is_unknown);
            samples = samples.saturating_add(if is_unknown { node.samples } else { 0 });
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::load;
    use crate::load::Detail;
    use crate::model::Time;
    use gmon_run::{Calls, Function, Hits, Module, Program, Recording};

    fn stack(program: u32, parent: Option<u32>, function: Option<u32>, samples: u64) -> Stack {
        Stack { program, parent, function, samples }
    }

    fn calls(caller: Option<u32>, site: u64, callee: u32, calls: u64) -> Calls {
        Calls { caller, site, callee, calls, ..Calls::default() }
    }

    /// `main` (0) calls `walk` (1), which calls itself and, from two call sites, `visit` (2); `sort` (3) of a library is not hooked, and
    /// calls `less` (4). A sample stands for 10 ns.
    fn recording() -> Recording {
        let function = |name: &str, address| Function { name: name.into(), address, ..Function::default() };
        let hits = |function, samples| Hits { function, samples, ..Hits::default() };
        Recording {
            programs: vec![Program { elsewhere: 6, ..Program::default() }],
            modules: vec![Module::default()],
            sample_period_ns: 10,
            functions: vec![
                function("main", 0x100),
                function("walk", 0x200),
                function("visit", 0x300),
                function("sort", 0x400),
                function("less", 0x500),
                function("idle", 0x600),
            ],
            calls: vec![
                calls(None, 0, 0, 1),
                calls(Some(0), 0x110, 1, 1),
                calls(Some(1), 0x210, 1, 7),
                calls(Some(1), 0x220, 2, 1),
                calls(Some(1), 0x230, 2, 2),
                calls(None, 0, 4, 50),
            ],
            hits: vec![hits(1, 5), hits(2, 11), hits(4, 4)],
            stacks: vec![
                stack(0, None, Some(0), 0),
                stack(0, Some(0), Some(1), 1),
                stack(0, Some(1), Some(1), 2),
                stack(0, Some(2), Some(2), 6),
                stack(0, Some(1), Some(2), 4),
                stack(0, Some(0), Some(3), 0),
                stack(0, Some(5), Some(4), 3),
                stack(0, None, None, 0),
                stack(0, Some(7), Some(4), 1),
            ],
            ..Recording::default()
        }
    }

    fn analysis(recording: &Recording) -> Run {
        recording.check().expect("a valid recording");
        load::recording(recording, Detail::Functions)
    }

    fn times(run: &Run) -> Vec<(&str, u64, u64)> {
        run.functions.iter().map(|f| (f.name.as_str(), f.self_ns, f.inclusive_ns)).collect()
    }

    #[test]
    fn a_sample_counts_once_for_each_function_on_its_stack() {
        let run = analysis(&recording());
        assert_eq!(run.time, Time::Sampled);
        // One sample in `visit` and two in `walk` have no stack.
        let expected = [
            ("main", 0, 160),
            ("walk", 50, 150),
            ("visit", 110, 110),
            ("sort", 0, 30),
            ("less", 40, 40),
            ("[elsewhere]", 60, 60),
        ];
        assert_eq!(times(&run), expected);
        assert!(run.cycles.is_empty() && run.functions.iter().all(|function| function.cycle.is_none()));
        let sum = run.nodes.iter().map(|node| node.self_ns).sum::<u64>();
        assert_eq!((sum, run.total_ns(), run.samples), (260, 260, 26));
        // Those of `less` with callers that are not known, and those without a stack.
        assert_eq!(run.samples_without_callers(), 1 + 3);
    }

    #[test]
    fn arcs_have_the_samples_on_whose_stacks_they_are() {
        let run = analysis(&recording());
        let arcs = run.arcs.iter().map(|a| (a.caller, a.callee, a.site, a.calls, a.self_ns, a.inclusive_ns));
        let expected = [
            (None, 0, None, 1, 0, 160),
            // Two samples of `walk` and one of `visit` have no stack.
            (None, 1, None, 0, 20, 20),
            (None, 2, None, 0, 10, 10),
            (None, 4, None, 50, 10, 10),
            (Some(0), 1, Some(0x110), 1, 10, 130),
            // On stacks and not counted.
            (Some(0), 3, None, 0, 0, 30),
            (Some(1), 1, Some(0x210), 7, 20, 80),
            // One of three calls, and two.
            (Some(1), 2, Some(0x220), 1, 33, 33),
            (Some(1), 2, Some(0x230), 2, 67, 67),
            (Some(3), 4, None, 0, 30, 30),
        ];
        assert_eq!(arcs.collect::<Vec<_>>(), expected);
    }

    /// The samples of the run without stacks are in the functions themselves only.
    #[test]
    fn a_run_with_stacks_and_one_without() {
        let mut sum = recording();
        sum.merge(Recording { stacks: Vec::new(), ..recording() }).expect("one period");
        let run = analysis(&sum);
        let expected = [
            ("main", 0, 160),
            ("walk", 100, 200),
            ("visit", 220, 220),
            ("sort", 0, 30),
            ("less", 80, 80),
            ("[elsewhere]", 120, 120),
        ];
        assert_eq!(times(&run), expected);
        assert_eq!(run.samples_without_callers(), 4 + 20);
        let without = analysis(&Recording { stacks: Vec::new(), ..recording() });
        assert_eq!((without.time, without.nodes.len()), (Time::Estimated, 0));
    }

    /// Each program has its own inclusive times, and both together have the sums.
    #[test]
    fn two_programs() {
        let mut both = recording();
        both.programs.push(Program { name: "other".into(), ..Program::default() });
        both.hits.push(Hits { program: 1, function: 2, samples: 8, ..Hits::default() });
        both.stacks.push(stack(1, None, Some(3), 0));
        both.stacks.push(stack(1, Some(9), Some(2), 7));
        let run = analysis(&both);
        assert_eq!(times(&run)[2..4], [("visit", 190, 190), ("sort", 0, 100)]);
        let mut rows: Vec<_> = load::by_program(&both)
            .iter()
            .map(|row| (row.program, row.function, row.self_ns, row.inclusive_ns))
            .collect();
        rows.sort_unstable();
        let expected = [
            (0, 0, 0, 160),
            (0, 1, 50, 150),
            (0, 2, 110, 110),
            (0, 3, 0, 30),
            (0, 4, 40, 40),
            (1, 2, 80, 80),
            (1, 3, 0, 70),
        ];
        assert_eq!(rows, expected);
        both.retain_programs(|program| program.name == "other");
        assert_eq!(times(&analysis(&both)), [("visit", 80, 80), ("sort", 0, 70)]);
    }

    /// The walk finds what is found by looking at each stack as a whole.
    #[test]
    fn stacks_at_random() {
        let mut state = 1_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..200 {
            let nodes: Vec<Node> = (0..60_u32)
                .map(|index| {
                    let parent = (below(8) > 0 && index > 0).then(|| below(index.into()) as u32);
                    let function = (parent.is_some() || below(2) > 0).then(|| below(5) as u32);
                    Node { parent, function, self_ns: below(4), ..Node::default() }
                })
                .collect();
            let (mut functions, mut arcs) = (vec![0; 5], BTreeMap::new());
            for node in &nodes {
                let path: Vec<&Node> =
                    std::iter::successors(Some(node), |node| Some(&nodes[node.parent? as usize])).collect();
                let on_path: BTreeSet<u32> = path.iter().filter_map(|node| node.function).collect();
                on_path.iter().for_each(|&function| functions[function as usize] += node.self_ns);
                let caller = |node: &Node| node.parent.and_then(|parent| nodes[parent as usize].function);
                let known = path.iter().filter_map(|node| Some((caller(node), node.function?)));
                for arc in known.collect::<BTreeSet<_>>() {
                    *arcs.entry(arc).or_insert(0) += node.self_ns;
                }
            }
            let found = inclusive(&nodes, 5);
            assert_eq!(found.functions, functions);
            let found: BTreeMap<_, _> =
                found.arcs.into_iter().map(|(arc, times)| (arc, times.inclusive_ns)).collect();
            assert_eq!(found, arcs);
        }
    }

    /// Measured times say more than samples: the stacks change nothing.
    #[test]
    fn measured_times_stay() {
        let mut measured = recording();
        measured.clock.ticks_per_second = 1e9;
        measured.threads.push(gmon_run::Thread::default());
        measured.rows.push(gmon_run::FunctionTimes {
            function: 1,
            calls: 8,
            self_ns: 7,
            inclusive_ns: 9,
            ..Default::default()
        });
        let without = analysis(&Recording { stacks: Vec::new(), ..measured.clone() });
        assert_eq!(analysis(&measured), without);
        assert!(without.time.is_measured());
    }

    /// A file may claim anything of its samples, and a stack may be as deep as the file is long.
    #[test]
    fn deep_and_hostile_stacks() {
        let mut deep = recording();
        let node = |index: u32| stack(0, index.checked_sub(1), Some(index % 3), u64::MAX);
        deep.stacks = (0..300_000).map(node).collect();
        let run = analysis(&deep);
        // All samples are on the outermost nodes.
        assert_eq!(times(&run)[..3], [("main", 0, 160), ("walk", 50, 160), ("visit", 110, 110)]);
        deep.hits.iter_mut().for_each(|hits| hits.samples = u64::MAX);
        assert_eq!(times(&analysis(&deep))[2].2, u64::MAX);
    }
}
