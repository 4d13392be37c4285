//! Why most samples of a program are in gprofinject's own code, if they are, as advice for the user.

use crate::profile::model::{Arc, Module, Place, Profile};
use crate::profile::placement::Placed;

/// The share of gprofinject's own code in the samples, in percent, from which on the user is told.
const MUCH: f64 = 50.0;
/// The CPU time in seconds from which on the share is not accidental.
const LONG: u64 = 2;
/// A process that runs for fewer seconds of CPU time is short: preparing it takes a considerable part of that.
const SHORT: f64 = 0.05;

/// Returns what the user has to know if at least half of the samples of two seconds and more are in gprofinject's own code, in one
/// sentence. The profile is the sum of so many `processes`.
pub(crate) fn advice(profile: &Profile, placed: &Placed, processes: u32) -> Option<String> {
    let (all, rate) = (placed.all(), u64::from(profile.rate));
    if placed.own_percent() < MUCH || rate == 0 || all < LONG * rate {
        return None;
    }
    let each = all as f64 / rate as f64 / f64::from(processes.max(1));
    let hooks = profile.modules.first().map_or("none", |module| module.program.hooks());
    let begin = format!(
        "{:.0} % of the samples were in gprofinject's own code, mostly because",
        placed.own_percent()
    );
    let only = "--hooks none only samples";
    if processes > 1 && each < SHORT {
        return Some(format!(
            "{begin} its {processes} processes run for {:.0} ms each, and preparing one takes time; {only}, and --no-follow leaves \
             them out",
            each * 1e3
        ));
    }
    let in_hooks = |module: &&Module| module.samples_in_hooks();
    let dearest = profile.modules.iter().max_by_key(in_hooks)?;
    let name = profile.name_of(dearest);
    if dearest.samples_in_hooks() >= profile.in_agent {
        let less = if hooks == "both" { "--hooks entry takes less time for each call, " } else { "" };
        return Some(format!(
            "{begin} functions of {name} are so short: {less}-X '{name}!GLOB' leaves some of them out; {only}"
        ));
    }
    let from_outside = |arc: &&Arc| is_from_outside(profile, arc.from);
    let mut calls = vec![0_u64; profile.modules.len()];
    for arc in profile.arcs.iter().filter(from_outside) {
        if let Some(sum) = calls.get_mut(arc.to.module as usize) {
            *sum = sum.saturating_add(arc.count);
        }
    }
    let (index, &most) = calls.iter().enumerate().max_by_key(|&(_, calls)| *calls)?;
    let called = profile.modules.get(index).map(|module| profile.name_of(module))?;
    if most >= profile.calls() / 10 {
        return Some(format!(
            "{begin} {most} calls of functions of {called} come from code that is not hooked, such as a library that is left out \
             or code that is made at run time: --libs all hooks all libraries, -X '{called}!GLOB' leaves functions out; {only}"
        ));
    }
    Some(format!(
        "{begin} many functions have more callers than there is room for beside them: -X leaves functions out; {only}"
    ))
}

/// Whether calls from this place come from code that is not hooked: then the function that was running is known, and no call
/// instruction.
fn is_from_outside(profile: &Profile, from: Place) -> bool {
    let module = profile.modules.get(from.module as usize);
    let plan = module.and_then(|module| module.program.plan.as_ref());
    plan.is_none_or(|plan| plan.records.binary_search_by_key(&from.address, |record| record.entry).is_ok())
}
