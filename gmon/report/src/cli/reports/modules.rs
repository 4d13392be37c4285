//! What a module's interface costs: the calls that enter it from other modules, the time while it or what it called was running, and
//! gprofinject's own time for its calls.

use std::collections::BTreeMap;

use gmon_export::{Run, Time};

use crate::cli::run_view::RunView;

/// The numbers of a module, or of the functions that were chosen of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interface {
    /// The calls by functions of other modules, or by unknown ones.
    pub(crate) from_outside: u64,
    /// The time in which one of its functions, or something that one had called, was running.
    pub(crate) inclusive_ns: u64,
    /// Whether that is an estimate: calls of the module within other calls of it may be in it twice.
    pub(crate) is_estimate: bool,
    /// The rest of the time of all functions.
    pub(crate) between_ns: u64,
    /// The part of gprofinject's own time, by the number of calls.
    pub(crate) overhead_ns: u64,
}

/// Returns the numbers by module, of the chosen functions.
pub(crate) fn interfaces(view: &RunView) -> BTreeMap<Option<u32>, Interface> {
    let run = view.run;
    let module = |function: u32| run.functions.get(function as usize).and_then(|function| function.module);
    let mut all: BTreeMap<Option<u32>, Interface> = BTreeMap::new();
    let mut calls: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for function in view.chosen() {
        all.entry(module(function)).or_default();
        let calls = calls.entry(module(function)).or_default();
        *calls = calls.saturating_add(run.functions[function as usize].calls);
    }
    for arc in run.arcs.iter().filter(|arc| view.chooses(arc.callee)) {
        let entered = module(arc.callee);
        if arc.caller.is_some_and(|caller| module(caller) == entered) {
            continue;
        }
        let Some(interface) = all.get_mut(&entered) else { continue };
        interface.from_outside = interface.from_outside.saturating_add(arc.calls);
        if run.nodes.is_empty() {
            interface.inclusive_ns = interface.inclusive_ns.saturating_add(arc.inclusive_ns);
        }
    }
    if run.nodes.is_empty() {
        for (&entered, interface) in &mut all {
            interface.is_estimate = run.time == Time::Estimated || comes_back(run, entered, &module);
        }
    } else {
        by_nodes(view, &module, &mut all);
    }
    let (total, overhead) = (run.total_ns(), overhead(run));
    for (entered, interface) in &mut all {
        interface.inclusive_ns = interface.inclusive_ns.min(total);
        interface.between_ns = total - interface.inclusive_ns;
        let part = u128::from(overhead) * u128::from(calls.get(entered).copied().unwrap_or(0));
        interface.overhead_ns = part.checked_div(run.calls().into()).map_or(0, |part| part as u64);
    }
    all
}

/// Returns gprofinject's own time in the run: as it was measured, or by samples in its code.
pub(crate) fn overhead(run: &Run) -> u64 {
    match run.time {
        Time::None | Time::Executed => 0,
        Time::Measured { .. } => {
            run.threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(thread.overhead_ns))
        }
        Time::Sampled | Time::Estimated => {
            let samples =
                run.programs.iter().fold(0, |sum: u64, program| sum.saturating_add(program.overhead));
            samples.saturating_mul(run.sample_period_ns)
        }
    }
}

/// Adds up the time of the paths: that of each node is of all modules on its path, once each.
fn by_nodes(
    view: &RunView,
    module: &impl Fn(u32) -> Option<u32>,
    all: &mut BTreeMap<Option<u32>, Interface>,
) {
    let nodes = &view.run.nodes;
    let mut totals: Vec<u64> = nodes.iter().map(|node| node.self_ns).collect();
    for index in (0..nodes.len()).rev() {
        if let Some(parent) = nodes[index].parent {
            totals[parent as usize] = totals[parent as usize].saturating_add(totals[index]);
        }
    }
    // Of a node within another one of the same module, the time is in that of the other. Modules are few, and paths share what is above.
    let entered: Vec<Option<u32>> = all.keys().copied().collect();
    for entered in entered {
        let is_its = |index: usize| {
            nodes[index]
                .function
                .is_some_and(|function| module(function) == entered && view.chooses(function))
        };
        let mut is_within = vec![false; nodes.len()];
        let mut sum = 0_u64;
        for (index, node) in nodes.iter().enumerate() {
            let above = node.parent.is_some_and(|parent| is_within[parent as usize]);
            is_within[index] = above || is_its(index);
            if is_within[index] && !above {
                sum = sum.saturating_add(totals[index]);
            }
        }
        if let Some(interface) = all.get_mut(&entered) {
            interface.inclusive_ns = sum;
        }
    }
}

/// Returns whether a function of another module that the module has called may have called the module in turn.
fn comes_back(run: &Run, entered: Option<u32>, module: &impl Fn(u32) -> Option<u32>) -> bool {
    let mut callees: Vec<Vec<u32>> = vec![Vec::new(); run.functions.len()];
    let mut next = Vec::new();
    for arc in &run.arcs {
        let Some(caller) = arc.caller else { continue };
        if module(caller) != entered {
            callees[caller as usize].push(arc.callee);
        } else if module(arc.callee) != entered {
            next.push(arc.callee);
        }
    }
    let mut seen = vec![false; run.functions.len()];
    while let Some(function) = next.pop() {
        if module(function) == entered {
            return true;
        }
        if !std::mem::replace(&mut seen[function as usize], true) {
            next.extend(&callees[function as usize]);
        }
    }
    false
}
