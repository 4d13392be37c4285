//! The profile that gprof shows of a run whose calls were measured: with measured times in place of samples.
//!
//! gprof takes a histogram of samples for times. So each function gets as many samples, at a high rate, as its measured own time
//! amounts to. gprof distributes them among callers as ever, by the number of calls.

use std::collections::HashMap;

use gmon_export::formats::rate_of_times;

use crate::profile::model::{Module, Place, Profile};
use crate::profile::stacks::Tree;
use crate::profile::times::Times;
use crate::sampling::histogram::Histogram;

/// Returns the profile with the measured times.
pub(crate) fn profile(profile: &Profile, times: &Times) -> Profile {
    let ticks_per_ns = times.overhead.ticks_per_ns();
    let mut own: HashMap<Place, u64> = HashMap::new();
    for thread in &times.threads {
        // Functions that are in no table of functions have never been entered.
        let of_thread = thread.own();
        for function in &thread.functions {
            let ticks = of_thread.get(&function.function).copied().unwrap_or(0);
            let sum = own.entry(function.function).or_default();
            *sum = sum.saturating_add((ticks as f64 / ticks_per_ns).round() as u64);
        }
    }
    let rate = rate_of_times(own.values().copied().max().unwrap_or(0));
    let mut modules: Vec<Module> = profile
        .modules
        .iter()
        .map(|module| Module {
            program: module.program,
            library: module.library,
            samples: Histogram::new(module.program.shape),
            counters: module.counters.clone(),
        })
        .collect();
    for (place, nanoseconds) in own {
        let samples = (nanoseconds as f64 * f64::from(rate) / 1e9).round() as u64;
        if let Some(module) = modules.get_mut(place.module as usize).filter(|_| samples > 0) {
            module.samples.add_many(place.address, samples);
        }
    }
    Profile {
        name: profile.name.clone(),
        path: profile.path.clone(),
        modules,
        arcs: profile.arcs.clone(),
        generated: profile.generated.clone(),
        own: profile.own.clone(),
        has_own: true,
        totals: None,
        is_part: false,
        unhooked: Vec::new(),
        stacks: Tree::default(),
        in_agent: 0,
        threads: profile.threads,
        rate,
        values: Vec::new(),
        times: None,
    }
}
