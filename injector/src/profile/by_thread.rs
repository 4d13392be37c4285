//! The name and the CPU time of each thread, and the CPU time of its functions, from samples and events that know their thread.

use std::collections::HashMap;

use crate::options::Clock;
use crate::profile::elsewhere::{self, Where};
use crate::profile::model::{Place, Profile};
use crate::profile::recorded::{self, Cpu};
use crate::profile::space::Space;
use crate::sampling::histogram::Histogram;
use crate::sampling::samples::Threads;
use crate::store::shape;

/// Adds the names and samples of threads to what was measured of them. `space` is the process's address space, if it was hooked.
pub(crate) fn add(profile: &mut Profile, space: Option<&Space>, kernel: &Threads) {
    let Some(mut times) = profile.times.take() else { return };
    let mut left: HashMap<u32, &Histogram> =
        kernel.histograms.iter().map(|(&tid, histogram)| (tid, histogram)).collect();
    let recorded = std::mem::take(&mut times.recorded);
    for (index, thread) in times.threads.iter_mut().enumerate() {
        // One without a name of its own has that of the process.
        let name = kernel.names.get(&thread.tid).or_else(|| kernel.names.get(&thread.pid));
        thread.name = name.map_or_else(|| profile.name.clone(), |name| name.to_string());
        // Threads may have the same number one after the other. All samples are the first one's then.
        if let Some(histogram) = left.remove(&thread.tid) {
            (thread.samples, thread.samples_by_function) = of_thread(profile, space, histogram);
        } else if kernel.histograms.is_empty() {
            continue;
        }
        // No overhead is among the instructions.
        let is_fitted = times.overhead.clock != Clock::Instructions;
        if let (Some(space), Some(recorded), true) = (space, recorded.get(index), is_fitted) {
            // A thread without samples has not run for long.
            let (samples, ticks_per_ns) = (thread.samples as f64, times.overhead.ticks_per_ns());
            let period = ticks_per_ns * 1e9 / f64::from(profile.rate.max(1));
            let system =
                if kernel.is_without_kernel { recorded.system_ns as f64 * ticks_per_ns } else { 0.0 };
            let cpu = Cpu { used: samples * period + system, deviation: (samples + 1.0).sqrt() * period };
            let misfit = recorded::fit(thread, recorded, space, cpu);
            times.misfit = times.misfit.max(misfit);
        }
    }
    profile.times = Some(times);
}

/// Returns the number of a thread's samples outside of gprofinject's own code, and those in each function itself.
fn of_thread(profile: &Profile, space: Option<&Space>, histogram: &Histogram) -> (u64, HashMap<Place, u64>) {
    let mut by_function: HashMap<Place, u64> = HashMap::new();
    let (mut all, mut agent) = (histogram.outside, 0_u64);
    // Returns whether a place is in a module's own code.
    let mut count = |index: u32, place: shape::Place, samples: u64| {
        let Some(module) = profile.modules.get(index as usize) else { return true };
        if let Some(address) = module.function_at(place) {
            let sum = by_function.entry(Place { module: index, address }).or_default();
            *sum = sum.saturating_add(samples);
        }
        module.program.text_address(place).is_some()
    };
    for (place, samples) in histogram.places() {
        if count(0, place, samples) {
            all = all.saturating_add(samples);
        }
    }
    let elsewhere = &histogram.elsewhere;
    let memory = elsewhere.memory.iter().map(|(&(_, address), &samples)| (address, samples));
    let unmapped = elsewhere.unmapped.iter().map(|(&address, &samples)| (address, samples));
    let memory = memory.chain(unmapped);
    let memory = memory.map(|(address, samples)| (elsewhere::of_memory(space, address), samples));
    let files = elsewhere.files.iter();
    let files = files.map(|((file, offset), &samples)| (elsewhere::of_file(profile, file, *offset), samples));
    for (found, samples) in memory.chain(files) {
        let is_own = match found {
            Where::Agent => true,
            Where::Other => false,
            Where::Hooked(Place { module, address }) => {
                let place = profile.modules.get(module as usize).and_then(|m| m.program.shape.place(address));
                place.is_some_and(|place| !count(module, place, samples))
            }
        };
        if is_own {
            agent = agent.saturating_add(samples);
        }
    }
    (all.saturating_sub(agent), by_function)
}
