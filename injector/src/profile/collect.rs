//! From a region file to a profile, and to the agent's account of the run.

use std::io;
use std::ops::Range;

use gmon::Arc;
use gprofinject_abi::region::{CALLER, ROOT, SITE, Slot, TAIL};

use crate::profile::falls;
use crate::profile::model::{self, Counters, PROGRAM, Profile};
use crate::program::planned::Planned;
use crate::store::region::read::{Counter, Region};
use crate::store::trouble::{failure, trouble};

/// What the agent of one process says about itself: troubles, losses and costs. The counts are in the
/// [`Profile`].
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Why the agent has hooked nothing, if so.
    pub(crate) trouble: Option<String>,
    /// What is wrong with the counters themselves.
    pub(crate) damage: Option<String>,
    pub(crate) setup_ns: u64,
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

/// Reads a region file into the profile of its process, to whose samples it adds the agent's. Returns the
/// agent's account. `crash` is the address of the instruction that killed the process, if it is known.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn collect(region: &Region, profile: &mut Profile, crash: Option<u64>) -> io::Result<Account> {
    let Some(module) = profile.modules.first_mut() else { return Ok(Account::default()) };
    let planned = module.program;
    let (report, is_damaged) = region.report()?;
    let mut account = Account {
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
    };
    let threads = region.threads()?;
    profile.threads = threads.count;
    account.lost_calls = account.lost_calls.saturating_add(threads.lost_calls);
    let samples = &mut module.samples;
    samples.outside = samples.outside.saturating_add(report.samples_outside);
    region.histogram(|first, counts| samples.add_bins(first, counts))?;

    if !planned.blocks_only {
        profile.arcs = arcs(region, planned, report.bias, &mut account.damage)?;
    }
    let stopped =
        crash.and_then(|at| planned.original(at.wrapping_sub(report.bias).wrapping_sub(planned.shape.arena)));
    module.counters = Counters { values: region.block_counters()?, stopped };
    Ok(account)
}

/// Reads what a child has counted in its parent's file, which is only calls and basic blocks, into the profile
/// of the child. Returns the account.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn collect_guest(region: &Region, profile: &mut Profile) -> io::Result<Account> {
    let mut account = Account::default();
    let Some(module) = profile.modules.first_mut() else { return Ok(account) };
    if !module.program.blocks_only {
        let bias = region.report()?.0.bias;
        profile.arcs = arcs(region, module.program, bias, &mut account.damage)?;
    }
    module.counters.values = region.block_counters()?;
    let threads = region.threads()?;
    (profile.threads, account.lost_calls) = (threads.count, threads.lost_calls);
    Ok(account)
}

const OVERWRITTEN: &str =
    "the program has overwritten or cut off the file of its counters: counts may be wrong";
const TOO_MANY: &str = "the file of the counters names more pairs of caller and function than a program can have: \
                        the program has overwritten it, and some are left out";

/// Returns the arcs of the program, sorted, each pair once. `damage` is set if there are too many.
fn arcs(
    region: &Region,
    planned: &Planned,
    bias: u64,
    damage: &mut Option<String>,
) -> io::Result<Vec<model::Arc>> {
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
    let arcs = falls::without(summed(arcs), planned);
    Ok(arcs.into_iter().map(|arc| model::Arc::inside(PROGRAM, arc)).collect())
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
