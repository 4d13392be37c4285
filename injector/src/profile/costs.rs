//! Why most samples of a program are in gprofinject's own code, if they are, as advice for the user.

use std::fmt;

use crate::options::Clock;
use crate::profile::model::{Arc, Module, Place, Profile};
use crate::profile::placement::Placed;

/// The share of gprofinject's own code in the samples, in percent, from which on the user is told.
const MUCH: f64 = 50.0;
/// The CPU time in seconds from which on the share is not accidental.
const LONG: u64 = 2;
/// A process that runs for fewer seconds of CPU time is short: preparing it takes a considerable part of that.
const SHORT: f64 = 0.05;

/// What the user has to know about a profile of which most samples are in gprofinject's own code.
#[derive(Clone, Debug)]
pub(crate) struct Advice {
    /// The share of gprofinject's own code in the samples, in percent.
    percent: f64,
    why: String,
    /// What helps. Each option of it can be added to those of the run.
    pub(crate) help: String,
}

impl fmt::Display for Advice {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Advice { percent, why, help } = self;
        write!(
            out,
            "{percent:.0} % of the samples were in gprofinject's own code, mostly because {why}: {help}"
        )
    }
}

/// Returns advice if at least half of the samples of two seconds and more are in gprofinject's own code. The profile is the sum of so
/// many `processes`.
pub(crate) fn advice(profile: &Profile, placed: &Placed, processes: u32) -> Option<Advice> {
    let (all, rate) = (placed.all(), u64::from(profile.rate));
    if placed.own_percent() < MUCH || rate == 0 || all < LONG * rate {
        return None;
    }
    let each = all as f64 / rate as f64 / f64::from(processes.max(1));
    let (why, mut help) = cause(profile, processes, each)?;
    let program = profile.modules.first().map(|module| module.program);
    // Measuring takes entries and exits, and counting blocks takes hooks.
    if !program.is_some_and(|program| program.measure.is_some() || program.counts) {
        help.push("--hooks none only samples".to_owned());
    }
    Some(Advice { percent: placed.own_percent(), why, help: help.join(", ") })
}

/// Returns why most samples are gprofinject's own, and what helps except to hook nothing. A process takes `each` seconds.
fn cause(profile: &Profile, processes: u32, each: f64) -> Option<(String, Vec<String>)> {
    if processes > 1 && each < SHORT {
        return Some((
            format!(
                "its {processes} processes run for {:.0} ms each, and preparing one takes time",
                each * 1e3
            ),
            vec!["--no-follow leaves them out".to_owned()],
        ));
    }
    let measure = profile.modules.first().and_then(|module| module.program.measure);
    if let Some(measure) = measure.filter(|measure| measure.is_result) {
        let mut help = vec!["-X leaves functions out".to_owned()];
        if measure.min_ns == 0 && measure.clock == Clock::Tsc && measure.trace.is_none() {
            help.insert(0, "--min-time only counts short calls".to_owned());
        }
        return Some(("most calls take less time than measuring them does".to_owned(), help));
    }
    let in_hooks = |module: &&Module| module.samples_in_hooks();
    let dearest = profile.modules.iter().max_by_key(in_hooks)?;
    let name = profile.name_of(dearest);
    if dearest.samples_in_hooks() >= profile.in_agent {
        let mut help = vec![format!("-X '{name}!GLOB' leaves some of them out")];
        if dearest.program.hooks() == "both" {
            help.push("--hooks entry takes less time for each call".to_owned());
        }
        return Some((format!("functions of {name} are so short"), help));
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
        return Some((
            format!(
                "{most} calls of functions of {called} come from code that is not hooked, such as a library that is left out or \
                 code that is made at run time"
            ),
            vec![
                "--libs all hooks all libraries".to_owned(),
                format!("-X '{called}!GLOB' leaves functions out"),
            ],
        ));
    }
    Some((
        "many functions have more callers than there is room for beside them".to_owned(),
        vec!["-X leaves functions out".to_owned()],
    ))
}

/// Whether calls from this place come from code that is not hooked: then the function that was running is known, and no call
/// instruction.
fn is_from_outside(profile: &Profile, from: Place) -> bool {
    let module = profile.modules.get(from.module as usize);
    let plan = module.and_then(|module| module.program.plan.as_ref());
    plan.is_none_or(|plan| plan.records.binary_search_by_key(&from.address, |record| record.entry).is_ok())
}
