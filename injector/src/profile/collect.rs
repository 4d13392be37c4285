//! From the counters in a region file to arcs between link addresses.

use std::io;
use std::ops::Range;

use gmon::Arc;
use gprofinject_abi::region::{CALLER, ROOT, SITE, Slot, TAIL};

use crate::profile::falls;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;
use crate::store::region::read::{Counter, Region};
use crate::store::trouble::{failure, trouble};

/// What the agent of one process has done and counted.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// The arcs, sorted, each pair once.
    pub(crate) arcs: Vec<Arc>,
    /// The values of the basic-block counters.
    pub(crate) counters: Vec<u64>,
    /// The link address of the instruction at which the process was killed, if it is in a function whose
    /// basic blocks are counted.
    pub(crate) stopped: Option<u64>,
    /// Why the agent has hooked nothing, if so.
    pub(crate) trouble: Option<String>,
    /// What is wrong with the counters themselves.
    pub(crate) damage: Option<String>,
    pub(crate) setup_ns: u64,
    pub(crate) threads: u64,
    pub(crate) lost_calls: u64,
    pub(crate) lost_threads: u64,
    pub(crate) bare_calls: u64,
    pub(crate) lost_timers: u64,
    /// Whether the process has entered seccomp, after which nothing new could be counted.
    pub(crate) frozen: bool,
    /// The number of children that are counted nowhere.
    pub(crate) lost_children: u64,
    /// The number of programs that the process has executed and that could not be followed.
    pub(crate) lost_programs: u64,
    /// The number of functions that Frida's gum should have patched and has not.
    pub(crate) unpatched: u64,
    /// The time for which Frida's gum worked, in nanoseconds.
    pub(crate) frida_ns: u64,
    /// The memory that the counters occupy, in bytes.
    pub(crate) committed: u64,
}

impl Collected {
    /// The number of counted calls.
    pub(crate) fn calls(&self) -> u64 {
        self.arcs.iter().fold(0, |sum, arc| sum.saturating_add(arc.count))
    }
}

/// Reads a region file, and adds the agent's samples to the histogram. `crash` is the address of the
/// instruction that killed the process, if it is known.
pub(crate) fn collect(
    region: &Region,
    planned: &Planned,
    histogram: &mut Histogram,
    crash: Option<u64>,
) -> io::Result<Collected> {
    let (report, is_damaged) = region.report()?;
    let mut collected = Collected {
        trouble: trouble(&report),
        setup_ns: report.setup_ns,
        lost_calls: report.lost_calls,
        lost_threads: report.lost_threads,
        bare_calls: report.bare_calls,
        lost_timers: report.lost_timers,
        frozen: report.frozen,
        lost_children: report.lost_children,
        lost_programs: report.lost_programs,
        unpatched: (planned.frida() as u64).saturating_sub(report.frida_patched),
        frida_ns: report.frida_ns,
        committed: region.committed(),
        damage: if is_damaged { Some(OVERWRITTEN.to_owned()) } else { failure(&report) },
        ..Collected::default()
    };
    let threads = region.threads()?;
    collected.threads = threads.count;
    collected.lost_calls = collected.lost_calls.saturating_add(threads.lost_calls);
    histogram.outside = histogram.outside.saturating_add(report.samples_outside);
    region.histogram(|first, counts| histogram.add_bins(first, counts))?;

    if !planned.blocks_only {
        collected.arcs = arcs(region, planned, report.bias, &mut collected.damage)?;
    }
    collected.counters = region.block_counters()?;
    collected.stopped =
        crash.and_then(|at| planned.original(at.wrapping_sub(report.bias).wrapping_sub(planned.shape.arena)));
    Ok(collected)
}

const OVERWRITTEN: &str =
    "the program has overwritten or cut off the file of its counters: counts may be wrong";
const TOO_MANY: &str = "the file of the counters names more pairs of caller and function than a program can have: \
                        the program has overwritten it, and some are left out";

/// Returns what a child has counted in its parent's file: only calls and basic blocks.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn collect_guest(region: &Region, planned: &Planned) -> io::Result<Collected> {
    let mut collected = Collected::default();
    if !planned.blocks_only {
        let bias = region.report()?.0.bias;
        collected.arcs = arcs(region, planned, bias, &mut collected.damage)?;
    }
    collected.counters = region.block_counters()?;
    let threads = region.threads()?;
    (collected.threads, collected.lost_calls) = (threads.count, threads.lost_calls);
    Ok(collected)
}

fn arcs(region: &Region, planned: &Planned, bias: u64, damage: &mut Option<String>) -> io::Result<Vec<Arc>> {
    let mut arcs = Vec::new();
    let mut is_full = false;
    region.counters(&slot_owners(planned), |counter| {
        arcs.extend(arc(&counter, planned, bias).filter(|_| !is_full));
        if arcs.len() >= 2 * ARCS_MAX {
            arcs = summed(std::mem::take(&mut arcs));
            is_full = arcs.len() >= ARCS_MAX;
        }
    })?;
    if is_full {
        *damage = Some(TOO_MANY.to_owned());
    }
    Ok(falls::without(summed(arcs), planned))
}

/// The number of different arcs that are read at most. The linker of the largest programs has a hundredth of
/// that.
const ARCS_MAX: usize = 1 << 21;

/// Returns the byte ranges of home slots in a thread's counters, sorted, each with the number of its
/// function.
fn slot_owners(planned: &Planned) -> Vec<(Range<u64>, u32)> {
    let records = planned.plan.iter().flat_map(|plan| &plan.records);
    let mut owners: Vec<_> = records
        .zip(0..)
        .map(|(record, number)| {
            let start = u64::from(record.slots);
            (start..start + u64::from(record.slot_count) * size_of::<Slot>() as u64, number)
        })
        .collect();
    owners.sort_unstable_by_key(|(range, _)| range.start);
    owners
}

/// Returns the arc of a counter, or `None` if the plan has no function of the counter's number: then the
/// program has overwritten the counter.
fn arc(counter: &Counter, planned: &Planned, bias: u64) -> Option<Arc> {
    let to = planned.entry(counter.function)?;
    if falls::is_one(counter, to, planned, bias) {
        return None;
    }
    let known = match counter.key {
        ROOT => None,
        key if key & CALLER != 0 => planned.entry((key & !CALLER) as u32),
        key if key & TAIL != 0 => planned.tail_caller((key & !TAIL) as u32, counter.function),
        key if key & SITE != 0 => Some(key & !SITE),
        return_address => planned.caller(return_address.wrapping_sub(bias)),
    };
    Some(Arc { from: known.unwrap_or_else(|| planned.root()), to, count: counter.count })
}

/// Sorts the arcs and adds up the counts of equal ones.
pub(crate) fn summed(mut arcs: Vec<Arc>) -> Vec<Arc> {
    arcs.sort_unstable();
    arcs.dedup_by(|next, first| {
        let same = (next.from, next.to) == (first.from, first.to);
        if same {
            first.count = first.count.saturating_add(next.count);
        }
        same
    });
    arcs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_arcs_are_summed() {
        let arc = |from, to, count| Arc { from, to, count };
        let arcs = vec![arc(2, 1, 5), arc(1, 1, 1), arc(2, 1, u64::MAX), arc(2, 2, 1)];
        assert_eq!(summed(arcs), [arc(1, 1, 1), arc(2, 1, u64::MAX), arc(2, 2, 1)]);
    }
}
