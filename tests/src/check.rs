//! Compares a gmon.out with the calls that it should contain according to callgrind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};

use crate::elf::Program;
use crate::gprofdata::GmonOut;
use crate::normalise::Expected;

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    pub differences: Vec<String>,
    /// Facts that are the fault of neither side, but worth reporting.
    pub notes: Vec<String>,
    /// The number of pairs of caller and callee that were compared, and that of call instructions.
    pub arcs: usize,
    pub sites: usize,
    /// The number of pairs whose caller was compared with a set of possible callers.
    pub loose: usize,
    pub their_calls: u64,
    pub our_calls: u64,
}

impl Report {
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for difference in self.differences.iter().take(60) {
            writeln!(f, "- {difference}")?;
        }
        if self.differences.len() > 60 {
            writeln!(f, "- ... and {} more", self.differences.len() - 60)?;
        }
        write!(
            f,
            "{}: {} arcs ({} callees with callers known as a set), {} call sites; calls: callgrind {}, ours {}",
            if self.is_equal() { "equal" } else { "DIFFERENT" },
            self.arcs,
            self.loose,
            self.sites,
            self.their_calls,
            self.our_calls
        )
    }
}

/// Compares in two levels: by function (caller, callee, count), and by call instruction where callgrind saw
/// one.
///
/// Calls of the compiler's start-up functions ([`crate::elf::START_UP`]) are compared if both sides have
/// them. Their symbols have no size, so valgrind overlooks them (it sees a call only if it comes from another
/// object file), and a profiler may not treat them as functions either.
///
/// # Errors
/// The profile contains addresses outside the program.
pub fn compare(expected: &Expected, profile: &GmonOut, program: &Program) -> Result<Report> {
    let start = program.named("_start").context("the program has no _start")?.address;
    let mut report = Report::default();
    let mut ours: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut our_callees = BTreeSet::new();
    for ((from, callee), count) in &profile.arcs {
        let Some(caller) = program.owner(*from) else {
            report.differences.push(format!(
                "{from:#x} -> {}: {count} calls from an address in no function",
                program.label(*callee)
            ));
            continue;
        };
        if program.entry(*callee).is_none_or(|c| c.parent.is_some()) {
            report.differences.push(format!(
                "{} -> {}: {count} calls to what is no function's entry",
                program.label(*from),
                program.label(*callee)
            ));
            continue;
        }
        *ours.entry((caller.address, *callee)).or_default() += count;
        our_callees.insert(*callee);
    }
    let their_callees: BTreeSet<u64> =
        expected.arcs.keys().map(|(_, callee)| callee).chain(expected.loose.keys()).copied().collect();
    // `_init` calls it, which valgrind assigns to no function.
    let by_init: Vec<u64> = match program.named("__gmon_start__") {
        Some(start) => [Some(start), program.named("atexit")].iter().flatten().map(|f| f.address).collect(),
        None => Vec::new(),
    };
    let compared = |callee: u64| {
        if by_init.contains(&callee) {
            return false;
        }
        let start_up = program.entry(callee).is_some_and(|f| f.is_start_up());
        !start_up || (our_callees.contains(&callee) && their_callees.contains(&callee))
    };

    let pairs: BTreeSet<(u64, u64)> =
        ours.keys().chain(expected.arcs.keys()).copied().filter(|(_, callee)| compared(*callee)).collect();
    let mut surplus: BTreeMap<u64, u64> = BTreeMap::new(); // callee -> ours beyond the certain ones
    for pair in &pairs {
        let (caller, callee) = *pair;
        let theirs = expected.arcs.get(pair).copied().unwrap_or(0);
        let our = ours.get(pair).copied().unwrap_or(0);
        report.their_calls += theirs;
        report.our_calls += our;
        let may_be = expected.loose.get(&callee).is_some_and(|l| l.callers.contains(&caller));
        if our > theirs && may_be {
            *surplus.entry(callee).or_default() += our - theirs;
        } else if our != theirs {
            report.differences.push(format!(
                "{} -> {}: callgrind {theirs}, ours {our}",
                name(program, caller, start),
                program.label(callee)
            ));
        }
    }
    report.arcs = pairs.len();

    for (callee, loose) in expected.loose.iter().filter(|(callee, _)| compared(**callee)) {
        report.their_calls += loose.count;
        let our = surplus.get(callee).copied().unwrap_or(0);
        if our != loose.count {
            let callers: Vec<String> = loose.callers.iter().map(|c| name(program, *c, start)).collect();
            report.differences.push(format!(
                "({}) -> {}: callgrind {} calls through code that isn't hooked, ours {our}",
                callers.join(" or "),
                program.label(*callee),
                loose.count
            ));
        }
        if loose.callers.len() > 1 {
            report.loose += 1;
        } else {
            report.arcs += usize::from(!pairs.contains(&(*loose.callers.first().unwrap_or(&0), *callee)));
        }
    }
    compare_sites(expected, profile, program, &mut report);
    for (target, count) in &expected.unknown_targets {
        report.notes.push(format!("{count} calls to {}, where no function starts", program.label(*target)));
    }
    Ok(report)
}

fn compare_sites(expected: &Expected, profile: &GmonOut, program: &Program, report: &mut Report) {
    // The from-address is inside the call instruction, so the instruction that contains it is searched.
    let mut ours: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let sites: BTreeMap<u64, u64> = expected.sites.iter().map(|((site, _), s)| (*site, s.length)).collect();
    let mut callees = BTreeSet::new();
    for ((from, callee), count) in &profile.arcs {
        callees.insert(*callee);
        if let Some((site, length)) = sites.range(..=from).next_back()
            && from - site < *length
        {
            *ours.entry((*site, *callee)).or_default() += count;
        }
    }
    for ((site, callee), theirs) in &expected.sites {
        let start_up = program.entry(*callee).is_some_and(|f| f.is_start_up());
        if start_up && !callees.contains(callee) {
            continue;
        }
        // gprof drops the symbols of `.cold` parts, and would charge such a site to a neighbour. Any address
        // in the parent is better, and the first level has compared the count.
        if program.containing(*site).is_some_and(|f| f.parent.is_some()) {
            continue;
        }
        report.sites += 1;
        let our = ours.get(&(*site, *callee)).copied().unwrap_or(0);
        // Calls through a library may be charged to any address in the caller, including this one.
        let exact = !expected.loose.contains_key(callee);
        if our < theirs.count || (exact && our > theirs.count) {
            report.differences.push(format!(
                "call at {} ({site:#x}) -> {}: callgrind {}, ours {our}",
                program.label(*site),
                program.label(*callee),
                theirs.count
            ));
        }
    }
}

fn name(program: &Program, address: u64, start: u64) -> String {
    if address == start { "_start (nobody)".to_string() } else { program.label(address) }
}
