//! The profile that gprof shows of a run whose calls were measured: with measured times in place of samples.
//!
//! gprof takes a histogram of samples for times. So each function gets as many samples, at a high rate, as its measured own time
//! amounts to. gprof distributes them among callers as ever, by the number of calls.

use gmon_measured::Measured;

use crate::profile::model::{Counters, Module, Profile};
use crate::sampling::histogram::Histogram;

/// The rates that the histogram can have, in samples per second, each with the longest own time of a function in seconds up to
/// which it is taken. A bin of 16 bits needs another copy of the whole histogram for each 65,535 samples. The rates are few,
/// so that profiles of similar runs have the same one and gprof can sum them.
const RATES: [(u32, f64); 2] = [(100_000, 20.0), (10_000, 200.0)];
/// The rate for longer times.
const LOWEST: u32 = 1000;

/// Returns the profile with the measured times.
pub(crate) fn profile(profile: &Profile, measured: &Measured) -> Profile {
    let mut own = vec![0_u64; measured.functions.len()];
    for row in &measured.rows {
        if let Some(sum) = own.get_mut(row.function as usize) {
            *sum = sum.saturating_add(row.self_ns);
        }
    }
    let longest = own.iter().copied().max().unwrap_or(0) as f64 / 1e9;
    let rate = RATES.into_iter().find(|(_, most)| longest <= *most).map_or(LOWEST, |(rate, _)| rate);
    let mut modules: Vec<Module> = profile
        .modules
        .iter()
        .map(|module| Module {
            program: module.program,
            library: module.library,
            samples: Histogram::new(module.program.shape),
            counters: Counters::default(),
        })
        .collect();
    for (function, nanoseconds) in measured.functions.iter().zip(own) {
        let samples = (nanoseconds as f64 * f64::from(rate) / 1e9).round() as u64;
        if let Some(module) = modules.get_mut(function.module as usize).filter(|_| samples > 0) {
            module.samples.add_many(function.address, samples);
        }
    }
    Profile {
        name: profile.name.clone(),
        path: profile.path.clone(),
        modules,
        arcs: profile.arcs.clone(),
        own: profile.own.clone(),
        totals: None,
        is_part: false,
        named: Vec::new(),
        in_agent: 0,
        threads: profile.threads,
        rate,
        times: None,
    }
}
