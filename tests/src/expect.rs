//! Compares a profile with the arcs that a small program's source lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::directives::Arc;
use crate::elf::{Function, Program};
use crate::gprofdata::GmonOut;

/// Returns the arcs by the addresses of caller and callee. A name that cannot be resolved is already a
/// difference.
fn resolve(arcs: &[Arc], program: &Program) -> (BTreeMap<(u64, u64), u64>, Vec<String>) {
    let mut resolved = BTreeMap::new();
    let mut differences = Vec::new();
    for arc in arcs {
        match (find(program, &arc.caller), find(program, &arc.callee)) {
            // Functions that the linker has folded (ICF) share an address, and their arcs are added.
            (Some(caller), Some(callee)) => {
                *resolved.entry((caller.address, callee.address)).or_default() += arc.count
            }
            _ => differences.push(format!("the program lacks {} or {}", arc.caller, arc.callee)),
        }
    }
    (resolved, differences)
}

/// Returns the function of that name, or the only clone that the compiler has made of it.
fn find<'p>(program: &'p Program, name: &str) -> Option<&'p Function> {
    program.named(name).or_else(|| {
        let is_clone = |n: &String| n.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        program.functions().find(|f| f.parent.is_none() && f.names.iter().any(is_clone))
    })
}

/// Returns all differences between the listed arcs and the profile's, as lines.
pub fn compare(arcs: &[Arc], others_allowed: bool, profile: &GmonOut, program: &Program) -> Vec<String> {
    let (expected, mut differences) = resolve(arcs, program);
    let listed: BTreeSet<u64> = expected.keys().map(|(_, callee)| *callee).collect();
    let mut ours: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for ((from, callee), count) in &profile.arcs {
        let Some(caller) = program.owner(*from) else {
            let callee = program.label(*callee);
            differences.push(format!("{from:#x} -> {callee}: {count} calls from an address in no function"));
            continue;
        };
        let start_up = program.entry(*callee).is_some_and(Function::is_start_up);
        if caller.is_start_up() && start_up {
            continue;
        }
        if listed.contains(callee) || !(others_allowed || start_up) {
            *ours.entry((caller.address, *callee)).or_default() += count;
        }
    }
    let pairs: BTreeSet<(u64, u64)> = expected.keys().chain(ours.keys()).copied().collect();
    for pair in pairs {
        let (want, have) = (expected.get(&pair).unwrap_or(&0), ours.get(&pair).unwrap_or(&0));
        if want != have {
            let (caller, callee) = (program.label(pair.0), program.label(pair.1));
            differences.push(format!("{caller} -> {callee}: expected {want}, got {have}"));
        }
    }
    differences
}

/// Returns the differences from a profile in which some functions were not hooked. Calls of those functions
/// are not counted, and calls that they make count as their callers'. So the totals of all other functions
/// must be those listed, and each arc between two of the others must have at least its own count; exactly
/// that count, if no call can come from a function that was not hooked.
pub fn compare_without(
    refused: &BTreeSet<u64>,
    arcs: &[Arc],
    others_allowed: bool,
    profile: &GmonOut,
    program: &Program,
) -> Vec<String> {
    let (expected, mut differences) = resolve(arcs, program);
    let mut ours: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for ((from, callee), count) in &profile.arcs {
        match program.owner(*from) {
            Some(caller) => *ours.entry((caller.address, *callee)).or_default() += count,
            None => differences.push(format!("{count} calls from {from:#x}, an address in no function")),
        }
    }
    let callees: BTreeSet<u64> = expected.keys().chain(ours.keys()).map(|(_, callee)| *callee).collect();
    for callee in callees {
        let into = |arcs: &BTreeMap<(u64, u64), u64>| -> BTreeMap<u64, u64> {
            arcs.iter()
                .filter(|((_, to), _)| *to == callee)
                .map(|((from, _), count)| (*from, *count))
                .collect()
        };
        let (want, have) = (into(&expected), into(&ours));
        let start_up = program.entry(callee).is_some_and(Function::is_start_up);
        if want.is_empty() && (others_allowed || start_up) {
            continue;
        }
        let name = program.label(callee);
        if refused.contains(&callee) {
            if !have.is_empty() {
                differences.push(format!("{name} is refused, and has calls: {have:?}"));
            }
            continue;
        }
        let (expected, got): (u64, u64) = (want.values().sum(), have.values().sum());
        if expected != got {
            differences.push(format!("all calls of {name}: expected {expected}, got {got}"));
        }
        for (caller, expected) in want.iter().filter(|(caller, _)| !left_alone(refused, program, **caller)) {
            let got = have.get(caller).copied().unwrap_or(0);
            if got < *expected {
                let caller = program.label(*caller);
                differences.push(format!("{caller} -> {name}: expected {expected} at least, got {got}"));
            }
        }
    }
    differences
}

/// Whether a caller was not hooked. Every profiler refuses the program's entry point, which is the root of
/// the calls.
fn left_alone(refused: &BTreeSet<u64>, program: &Program, caller: u64) -> bool {
    refused.contains(&caller) && program.entry(caller).is_none_or(|f| !f.names.iter().any(|n| n == "_start"))
}

/// Returns the profile that contains exactly what is listed, to compare the lists themselves with callgrind.
pub fn as_profile(arcs: &[Arc], program: &Program) -> (GmonOut, Vec<String>) {
    let (arcs, differences) = resolve(arcs, program);
    (GmonOut { arcs, ..GmonOut::default() }, differences)
}
