//! Checks what does not depend on the speed of a machine in the measured times of a run.
//!
//! The number of measured calls of a function is that of its counted calls, which the caller has compared with what the program's
//! source says; and the times of a thread are parts of its life.

use std::collections::BTreeMap;
use std::path::Path;

use gmon_run::Recording;

use crate::elf::Program;
use crate::gprofdata::GmonOut;

/// Reads the file of measured times.
///
/// # Errors
/// It does not exist, or is damaged.
pub fn read(path: &Path) -> anyhow::Result<Recording> {
    let bytes = std::fs::read(path)?;
    Ok(Recording::read(&bytes)?)
}

/// Returns what is wrong in a file of measured times beside the counts of the same run. `cut_off` is the number of threads that are
/// cancelled at any instruction, also where a call has been counted in the table and not yet in the tree.
pub fn differences(path: &Path, counted: &GmonOut, program: &Program, cut_off: u64) -> Vec<String> {
    match read(path) {
        Ok(measured) => {
            [calls(&measured, counted, program), parts(&measured), nodes(&measured, cut_off)].concat()
        }
        Err(error) => vec![format!("{}: {error:#}", path.display())],
    }
}

/// The number of calls of a function that a signal may have interrupted between their count and their measurement, and that
/// did not continue: a thread was cancelled there, or a handler has jumped away.
const LOST_TO_SIGNALS: u64 = 8;

/// Returns the functions of the program of which not all calls were measured, or more than there were.
fn calls(measured: &Recording, counted: &GmonOut, program: &Program) -> Vec<String> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for row in &measured.rows {
        let function = &measured.functions[row.function as usize];
        if function.module == 0 {
            *sums.entry(function.address).or_default() += row.calls;
        }
    }
    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
    for ((_, to), count) in &counted.arcs {
        *expected.entry(*to).or_default() += count;
    }
    // A function that uses its return address has no exit hook, so its calls are not measured.
    let measured = sums.into_iter();
    let wrong = measured.filter_map(|(at, calls)| {
        let expected = expected.get(&at).copied().unwrap_or(0);
        let name = program.entry(at).map_or("?", |function| function.name());
        (calls.abs_diff(expected) > LOST_TO_SIGNALS + expected / 10_000)
            .then(|| format!("{name}: {calls} calls measured, {expected} counted"))
    });
    wrong.collect()
}

/// Returns the times that are not parts of others.
fn parts(measured: &Recording) -> Vec<String> {
    /// Each time is rounded.
    const ROUNDING: u64 = 1;
    let mut wrong = Vec::new();
    for row in &measured.rows {
        let name = &measured.functions[row.function as usize].name;
        if row.inclusive_ns + ROUNDING < row.self_ns || row.primitive > row.calls || row.open > row.calls {
            wrong.push(format!("{name}: {row:?}"));
        }
        let ended: u64 = row.histogram.iter().sum();
        if row.min_ns > row.max_ns || ended > row.calls {
            wrong.push(format!("{name}: {ended} calls in the histogram: {row:?}"));
        }
    }
    for (thread, number) in measured.threads.iter().zip(0..) {
        let rows = measured.rows.iter().filter(|row| row.thread == number);
        let own: u64 = rows.map(|row| row.self_raw_ns).sum();
        let rounding = ROUNDING * measured.functions.len() as u64;
        // Handlers that interrupt the agent at nearly every instruction, as some of the programs have them, are in the sum
        // twice now and then.
        if own > thread.life_ns + thread.life_ns / 2 + rounding {
            wrong.push(format!(
                "thread {}: lived for {} ns, but {own} ns are in its functions",
                thread.tid, thread.life_ns
            ));
        }
    }
    wrong
}

/// Returns the functions whose calls in the tree are not those in the table.
fn nodes(measured: &Recording, cut_off: u64) -> Vec<String> {
    if measured.nodes.is_empty() {
        return Vec::new();
    }
    let mut sums: BTreeMap<(u32, u32), [u64; 2]> = BTreeMap::new();
    for row in &measured.rows {
        sums.entry((row.thread, row.function)).or_default()[0] += row.calls;
    }
    for node in &measured.nodes {
        let Some(function) = node.function else { continue };
        sums.entry((node.thread, function)).or_default()[1] += node.calls;
    }
    let differ = |[table, tree]: [u64; 2]| table.abs_diff(tree) > cut_off && measured.nodes_lost == 0;
    let wrong = sums.into_iter().filter(|&(_, sums)| differ(sums));
    let name = |function: u32| &measured.functions[function as usize].name;
    wrong
        .map(|((_, function), [table, tree])| {
            format!("{}: {table} calls in the table, {tree} in the tree", name(function))
        })
        .collect()
}
