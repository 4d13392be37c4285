//! From a region file to a profile, and to the agent's account of the run.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use gmon::Arc;
use gprofinject_abi::region::LOST_NAMED;

use crate::options::{Clock, Measure};
use crate::os::clock::Moment;
use crate::profile::ends::Ends;
use crate::profile::falls;
use crate::profile::model::{self, Counters, Profile};
use crate::profile::possible::{Possible, greatest_kept};
use crate::profile::recorded;
use crate::profile::space::Space;
use crate::profile::tallied;
use crate::profile::times::Overhead;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::sampling::histogram::{ALWAYS, Histogram};
use crate::sampling::maps::Maps;
use crate::store::region::read::Region;
use crate::store::trouble::{failure, lost, trouble};

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
    /// Whether threads of the process have had their system calls dispatched to themselves, while which nothing new could be counted.
    pub(crate) dispatched: bool,
    /// What the agent could not see of the process: see [`RegionHeader::unseen`](gprofinject_abi::region::RegionHeader::unseen).
    pub(crate) unseen: u64,
    /// The number of children that are counted nowhere.
    pub(crate) lost_children: u64,
    /// The number of programs that the process has executed and that could not be followed.
    pub(crate) lost_programs: u64,
    /// The libraries that the agent could not hook, with the reasons; some of them may not have been wanted.
    pub(crate) lost: Vec<(PathBuf, String)>,
    /// The number of further ones.
    pub(crate) lost_libraries: u64,
    /// The libraries that the agent has found left out already: see
    /// [`RegionHeader::left_out_seen`](gprofinject_abi::region::RegionHeader::left_out_seen).
    pub(crate) left_out_seen: u64,
    /// The number of functions that Frida's gum should have patched and has not.
    pub(crate) unpatched: u64,
    /// The time for which Frida's gum worked, in nanoseconds.
    pub(crate) frida_ns: u64,
    /// The number of calls that were counted but not measured.
    pub(crate) unmeasured: u64,
    /// The number of calls whose values were not kept.
    pub(crate) unkept: u64,
    /// The memory that the counters occupy, in bytes.
    pub(crate) committed: u64,
}

/// Reads a region file into the profile of its process, to whose samples it adds the agent's. Returns the
/// agent's account, and the process's address space. `maps` are the files that the process has mapped, for
/// the agent's samples outside of the program. `ends` says when its threads have ended. `crash` is the address of the instruction that
/// killed the process, if it is known. What is not `possible` is left out, and the account says so.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn collect(
    region: &Region,
    profile: &mut Profile,
    libraries: &Numbered<Library>,
    maps: &Maps,
    crash: Option<u64>,
    ends: &Ends,
    possible: &Possible,
) -> io::Result<(Account, Option<Space>)> {
    let Some(module) = profile.modules.first_mut() else { return Ok((Account::default(), None)) };
    let planned = module.program;
    let (report, is_damaged) = region.report()?;
    let mut refused = Refused::default();
    let threads = region.threads()?;
    profile.threads = threads.count;
    let lost_calls = report.lost_calls.saturating_add(threads.lost_calls);
    let mut count = |value| refused.check("lost calls, threads or children", value, possible.calls);
    let mut account = Account {
        trouble: trouble(&report),
        setup_ns: report.setup_ns,
        lost_calls: count(lost_calls),
        lost_threads: count(report.lost_threads),
        bare_calls: count(report.bare_calls),
        lost_timers: count(report.lost_timers),
        frozen: report.frozen,
        dispatched: report.dispatched,
        unseen: report.unseen,
        lost_children: count(report.lost_children),
        lost_programs: count(report.lost_programs),
        lost: lost(&report),
        lost_libraries: count(report.lost_libraries.saturating_sub(LOST_NAMED as u64)),
        left_out_seen: report.left_out_seen,
        unpatched: (planned.frida() as u64).saturating_sub(report.frida_patched),
        frida_ns: report.frida_ns,
        unmeasured: 0,
        unkept: 0,
        committed: region.committed(),
        damage: if is_damaged { Some(OVERWRITTEN.to_owned()) } else { failure(&report) },
    };
    for time in [&mut account.setup_ns, &mut account.frida_ns] {
        *time = refused.check("time", *time, possible.time);
    }
    let mut samples = Histogram::new(module.samples.shape);
    samples.outside = report.samples_outside;
    region.histogram(|first, counts| samples.add_bins(first, counts))?;
    region.elsewhere(|address, count| maps.count(address, ALWAYS, count, &mut samples.elsewhere))?;
    let all = samples.inside().saturating_add(samples.outside);
    if refused.check("samples", all.max(samples.elsewhere.sum()), possible.samples) > 0 {
        module.samples.add_all(&samples);
        module.samples.elsewhere.add_all(samples.elsewhere);
    }

    let stopped =
        crash.and_then(|at| planned.original(at.wrapping_sub(report.bias).wrapping_sub(planned.shape.arena)));
    module.counters = Counters { values: region.block_counters()?, stopped };
    let space = Space::new(profile, libraries, &report, &region.loads()?);
    read_library_counters(region, profile, &space, crash)?;
    if !planned.blocks_only {
        read_arcs(region, profile, &space, &mut account.damage, &mut refused, possible)?;
    }
    check_blocks(profile, &mut refused, possible);
    account.unmeasured = read_times(region, profile, &space, report.pid, ends)?;
    account.unkept = read_values(region, profile, &space, &mut refused, possible)?;
    account.damage = refused.sentence().or(account.damage);
    Ok((account, Some(space)))
}

/// Reads the measured durations of a process, whose open calls end with their threads. Returns the number of calls that were not
/// measured.
fn read_times(
    region: &Region,
    profile: &mut Profile,
    space: &Space,
    pid: u32,
    ends: &Ends,
) -> io::Result<u64> {
    let Some(Measure { clock, is_result: true, min_ns, most_ns, .. }) = space.program.measure else {
        return Ok(0);
    };
    let by_clock = |end: &Moment| if clock == Clock::Tsc { end.ticks } else { end.nanoseconds };
    let process = ends.process.as_ref().map(by_clock);
    let ends_of = |tid: u32| ends.threads.get(&tid).into_iter().flatten().map(by_clock);
    let report = region.report()?.0;
    let ticks = |part_256: u64| part_256 as f64 / 256.0;
    let mut overhead = Overhead {
        clock,
        inside: ticks(report.inside_256),
        outside: ticks(report.outside_256),
        spread: ticks(report.spread_256),
        min_ns,
    };
    let threads = region.times(process, ends_of)?;
    // A thread may have doubled the limit several times, but no further than it was told.
    let below = threads.iter().map(|thread| thread.below).max().unwrap_or(0);
    let times = (below as f64 / (min_ns as f64 * overhead.ticks_per_ns())).round();
    overhead.min_ns = min_ns.saturating_mul(times.max(1.0) as u64).min(most_ns);
    let unmeasured = threads.iter().fold(0_u64, |sum, thread| sum.saturating_add(thread.unmeasured));
    profile.times = Some(recorded::of_process(pid, threads, space, overhead));
    Ok(unmeasured)
}

/// Reads the values of arguments and results that the calls of a process had. Returns the number of calls whose values were not kept.
fn read_values(
    region: &Region,
    profile: &mut Profile,
    space: &Space,
    refused: &mut Refused,
    possible: &Possible,
) -> io::Result<u64> {
    let (tallies, lost) = region.tallies()?;
    profile.values = tallied::of_process(tallies, space);
    profile.values.retain(|of| {
        let all =
            of.counts.kept.iter().fold(of.counts.others.count, |sum, kept| sum.saturating_add(kept.count));
        refused.check("values of arguments", all, possible.calls) == all
    });
    Ok(refused.check("values of arguments", lost, possible.calls))
}

/// Reads the basic-block counters of the libraries of a process into their modules. `crash` is as for [`collect`].
fn read_library_counters(
    region: &Region,
    profile: &mut Profile,
    space: &Space,
    crash: Option<u64>,
) -> io::Result<()> {
    let crash = crash.and_then(|at| space.in_arena(at));
    for (index, load) in space.loads() {
        let Some(module) = profile.modules.get_mut(index as usize) else { continue };
        let planned = module.program;
        let Some(plan) = planned.plan.as_ref().filter(|plan| planned.counts && plan.counter_bytes() > 0)
        else {
            continue;
        };
        let values = region.library_counters(load, plan.counter_bytes())?;
        let stopped = crash
            .filter(|place| place.module == index)
            .and_then(|place| planned.original(place.address.wrapping_sub(planned.shape.arena)));
        // A library that was loaded at several addresses has counted in several places.
        module.counters.add(Counters { values, stopped });
    }
    Ok(())
}

/// Reads what a child has counted in its parent's file, which is only calls and basic blocks, into the profile
/// of the child. Returns the account.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn collect_guest(
    process: u32,
    region: &Region,
    profile: &mut Profile,
    libraries: &Numbered<Library>,
    possible: &Possible,
) -> io::Result<Account> {
    let mut account = Account::default();
    let mut refused = Refused::default();
    let Some(module) = profile.modules.first_mut() else { return Ok(account) };
    module.counters.values = region.block_counters()?;
    let blocks_only = module.program.blocks_only;
    let space = Space::new(profile, libraries, &region.report()?.0, &region.loads()?);
    read_library_counters(region, profile, &space, None)?;
    if !blocks_only {
        read_arcs(region, profile, &space, &mut account.damage, &mut refused, possible)?;
    }
    check_blocks(profile, &mut refused, possible);
    account.unmeasured = read_times(region, profile, &space, process, &Ends::default())?;
    account.unkept = read_values(region, profile, &space, &mut refused, possible)?;
    let threads = region.threads()?;
    profile.threads = threads.count;
    account.lost_calls = refused.check("lost calls", threads.lost_calls, possible.calls);
    account.damage = refused.sentence().or(account.damage);
    Ok(account)
}

impl Account {
    /// Returns why the agent has made no system calls in the process for a time, or `None` if it has.
    pub(crate) fn why_silent(&self) -> Option<&'static str> {
        if self.frozen {
            Some("entered seccomp")
        } else if self.dispatched {
            Some("had system calls dispatched to a signal handler (PR_SET_SYSCALL_USER_DISPATCH)")
        } else {
            None
        }
    }

    /// Adds the account of another process that runs the same program.
    pub(crate) fn add(&mut self, other: Account) {
        self.trouble = self.trouble.take().or(other.trouble);
        self.damage = self.damage.take().or(other.damage);
        self.frozen |= other.frozen;
        self.lost.extend(other.lost);
        self.dispatched |= other.dispatched;
        self.unseen |= other.unseen;
        self.left_out_seen |= other.left_out_seen;
        for (sum, part) in [
            (&mut self.lost_calls, other.lost_calls),
            (&mut self.lost_threads, other.lost_threads),
            (&mut self.bare_calls, other.bare_calls),
            (&mut self.lost_timers, other.lost_timers),
            (&mut self.lost_children, other.lost_children),
            (&mut self.lost_programs, other.lost_programs),
            (&mut self.lost_libraries, other.lost_libraries),
            (&mut self.unpatched, other.unpatched),
            (&mut self.unmeasured, other.unmeasured),
            (&mut self.unkept, other.unkept),
            (&mut self.committed, other.committed),
        ] {
            *sum = sum.saturating_add(part);
        }
    }
}

/// Sets counters of basic blocks to zero that are higher than possible.
fn check_blocks(profile: &mut Profile, refused: &mut Refused, possible: &Possible) {
    for value in profile.modules.iter_mut().flat_map(|module| &mut module.counters.values) {
        *value = refused.check("executions of basic blocks", *value, possible.blocks);
    }
}

/// What was left out because it is not [`Possible`].
#[derive(Default)]
struct Refused(Vec<&'static str>);

impl Refused {
    /// Returns a number if it is possible, and otherwise zero.
    fn check(&mut self, what: &'static str, value: u64, most: u64) -> u64 {
        if value <= most {
            return value;
        }
        self.add(what);
        0
    }

    fn add(&mut self, what: &'static str) {
        if !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    /// Returns what there is to say, if anything was left out.
    fn sentence(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| {
            format!(
                "the program has overwritten the file of its counters, which names more {} than the time allows; these are \
                 left out",
                self.0.join(", ")
            )
        })
    }
}

const OVERWRITTEN: &str =
    "the program has overwritten or cut off the file of its counters: counts may be wrong";
const TOO_MANY: &str = "the file of the counters names more pairs of caller and function than a program can have: \
                        the program has overwritten it, and some are left out";

/// Reads the arcs of a process into its profile. `damage` is set if there are too many.
fn read_arcs(
    region: &Region,
    profile: &mut Profile,
    space: &Space,
    damage: &mut Option<String>,
    refused: &mut Refused,
    possible: &Possible,
) -> io::Result<()> {
    /// As many arcs as the process before had. There may be many processes, and most run the same programs.
    static ROOM: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let room = [&ROOM[0], &ROOM[1]].map(|room| room.load(Ordering::Relaxed));
    let (mut whole, mut own) = (Vec::with_capacity(room[0]), Vec::with_capacity(room[1]));
    let (mut is_full, has_own) = (false, profile.has_own);
    let homes = space.homes();
    region.counters(
        || homes.finder(),
        |counter| {
            let counted = space.counted(&counter);
            whole.extend(counted.whole.filter(|_| !is_full));
            own.extend(counted.own.filter(|_| has_own && !is_full));
            if whole.len().max(own.len()) >= 2 * ARCS_MAX {
                summed_up(&mut whole);
                own = summed(std::mem::take(&mut own));
                is_full = whole.len().max(own.len()) >= ARCS_MAX;
            }
        },
    )?;
    ROOM[0].store(whole.len(), Ordering::Relaxed);
    ROOM[1].store(own.len(), Ordering::Relaxed);
    if is_full {
        *damage = Some(TOO_MANY.to_owned());
    }
    // What else there is to do needs the sums.
    if profile.is_part
        && !space.has_entry_hooks()
        && is_at_most(possible.calls, whole.iter().map(|arc| arc.count))
        && is_at_most(possible.calls, own.iter().map(|arc| arc.count))
    {
        (profile.own, profile.arcs) = (own, whole);
        return Ok(());
    }
    summed_up(&mut whole);
    let mut own = summed(own);
    let kept = greatest_kept(whole.iter().map(|arc| arc.count), possible.calls)
        .min(greatest_kept(own.iter().map(|arc| arc.count), possible.calls));
    if kept < u64::MAX {
        refused.add("calls");
        whole.retain(|arc| arc.count <= kept);
        own.retain(|arc| arc.count <= kept);
    }
    profile.own = falls::without(own, space.program);
    profile.arcs = space.without_falls(whole);
    Ok(())
}

/// Whether counts together are at most that.
fn is_at_most(most: u64, mut counts: impl Iterator<Item = u64>) -> bool {
    counts.try_fold(0_u64, u64::checked_add).is_some_and(|sum| sum <= most)
}

/// Sorts the arcs and adds up the counts of equal ones.
fn summed_up(arcs: &mut Vec<model::Arc>) {
    arcs.sort_unstable();
    arcs.dedup_by(|next, first| {
        let same = (next.from, next.to) == (first.from, first.to);
        if same {
            first.count = first.count.saturating_add(next.count);
        }
        same
    });
}

/// The number of different arcs that are read at most. The linker of the largest programs has a hundredth of
/// that.
const ARCS_MAX: usize = 1 << 21;

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
