//! From what the threads of a process have recorded of their calls' durations to the durations, without the overhead.

use std::borrow::Cow;

use gmon_run::overhead::{Factors, Recorded};
use gmon_run::ticks::{Arc, Thread};

use crate::profile::place::Place;
use crate::profile::space::Space;
use crate::profile::times::{Overhead, Times};
use crate::store::region::times::{Tail, ThreadTimes};

/// The standard deviation of the overhead of calls in real programs, as a share of what the calibration measures: it depends on what else
/// the processor does, and on how many arcs there are (docs/benchmarks.md, "Measured times").
const CALIBRATION: f64 = 0.15;
/// The same of calls that are only counted, of which less is taken out than was calibrated.
const SHORT_CALIBRATION: f64 = 0.5;
/// The part of the samples in the gates that stands for the program's instructions before them: where the processor waits for the clock, it
/// is interrupted late.
const SKID: f64 = 0.03;
/// A thread that has run for less than one part of so many of the time after its last event has waited for the rest of it.
const READY: u64 = 20;
/// The overhead is between these parts of what was calibrated.
const FACTORS: (f64, f64) = (0.5, 4.0);

/// Returns what the threads of a process have recorded, with functions as places.
pub(crate) fn of_process(pid: u32, recorded: Vec<ThreadTimes>, space: &Space, overhead: Overhead) -> Times {
    let threads =
        recorded.iter().map(|recorded| of_thread(pid, recorded, space, Factors::CALIBRATED)).collect();
    let deviation = recorded.iter().map(|recorded| recorded.deviation).max().unwrap_or(0);
    // Threads on different processors may differ. What is told is of the one that has made most of the calls.
    let calls = |of: &&ThreadTimes| (of.recorded.calls() + of.recorded.counted()) as u64;
    let (inside, outside) = recorded
        .iter()
        .filter(|recorded| recorded.calibrations > 0)
        .max_by_key(calls)
        .map_or((overhead.inside, overhead.outside), |most| {
            (most.recorded.inside as f64, most.recorded.outside as f64)
        });
    let overhead = Overhead { inside, outside, spread: overhead.spread + deviation as f64, ..overhead };
    let calibrations = recorded.iter().fold(0_u64, |sum, recorded| sum.saturating_add(recorded.calibrations));
    Times { overhead, threads, recorded, misfit: 0.0, calibrations }
}

/// What samples say of a thread's CPU time outside of gprofinject's own code, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) used: f64,
    /// The standard deviation of `used`.
    pub(crate) deviation: f64,
}

impl Cpu {
    /// Returns how much of a thread's last `lasted` ticks it has not run, if it ran for `before` ticks until then; 0 if that may be chance.
    fn idle(self, before: f64, lasted: u64) -> u64 {
        let idle = lasted as f64 - (self.used - before).max(0.0);
        if idle > 3.0 * self.deviation { idle as u64 } else { 0 }
    }
}

/// Fits the overhead of a thread's calls to its CPU time, and adds to the waiting times what the agent could not see. Returns by how much
/// the overhead of a call differs from what was calibrated, as a share of that.
///
/// The calibration, before the program begins, does not know how much slower a call becomes while the processor does the program's work,
/// or another thread's on the same core. What the samples say is exact in the mean.
pub(crate) fn fit(thread: &mut Thread<Place>, recorded: &ThreadTimes, space: &Space, cpu: Cpu) -> f64 {
    let recorded = without_ready_end(recorded, cpu);
    let factors = factors(thread, &recorded, cpu);
    if factors != Factors::CALIBRATED || matches!(recorded, Cow::Owned(_)) {
        let fitted = of_thread(thread.pid, &recorded, space, factors);
        *thread = Thread {
            name: std::mem::take(&mut thread.name),
            samples: thread.samples,
            samples_by_function: std::mem::take(&mut thread.samples_by_function),
            ..fitted
        };
    }
    if let Some(&Tail { caller, callee, lasted, node, .. }) = recorded.tail.as_ref() {
        let before = recorded.recorded.own(factors) - recorded.recorded.waited() - lasted as f64;
        let idle = cpu.idle(before, lasted);
        let place = (caller.and_then(|caller| space.entry(caller)), space.entry(callee));
        let is_it = |arc: &&mut Arc<Place>| (arc.caller, Some(arc.callee)) == place;
        if let Some(arc) = thread.arcs.iter_mut().find(is_it) {
            arc.waited = arc.waited.saturating_add(idle);
        }
        if let Some(node) = node.and_then(|node| thread.nodes.get_mut(node as usize)) {
            node.waited = node.waited.saturating_add(idle);
        }
    }
    (factors.measured - 1.0).abs()
}

/// Returns what a thread has recorded without the time after its last event for which others had the processor. A thread that waits does
/// not run at all, and from one that is ready the processor is not taken away for long.
fn without_ready_end(recorded: &ThreadTimes, cpu: Cpu) -> Cow<'_, ThreadTimes> {
    let Some(tail) = recorded.tail.as_ref().filter(|_| recorded.ready.is_some()) else {
        return Cow::Borrowed(recorded);
    };
    let before = recorded.recorded.own(Factors::CALIBRATED) - recorded.recorded.waited() - tail.lasted as f64;
    let idle = cpu.idle(before, tail.lasted);
    let is_ready = idle > 0 && tail.lasted - idle > tail.lasted / READY;
    let earlier = is_ready.then(|| recorded.ended_earlier(idle)).flatten();
    earlier.map_or(Cow::Borrowed(recorded), Cow::Owned)
}

/// Returns how many times the overhead that was calibrated a call of a thread has cost.
fn factors(thread: &Thread<Place>, recorded: &ThreadTimes, cpu: Cpu) -> Factors {
    let calls = &recorded.recorded;
    // What the thread did after its last event may have been to wait.
    let tail = recorded.tail.as_ref().map_or(0, |tail| tail.lasted) as f64;
    let calibrated = calls.own(Factors::CALIBRATED);
    let ran = calibrated - calls.waited() - tail;
    // Time outside of all hooked functions is in the CPU time as far as the thread has run there.
    let outside = (recorded.life as f64 - calibrated - thread.overhead as f64).max(0.0);
    let least = cpu.used - tail - outside;
    let excess = ran - ran.clamp(least, least.max(cpu.used + SKID * thread.overhead as f64));
    let [measured, counted] = variances(calls);
    let (calibration, samples) = (measured.of_all + counted.of_all, cpu.deviation * cpu.deviation);
    if excess == 0.0 || calibration == 0.0 {
        return Factors::CALIBRATED;
    }
    let wanted = calibrated - excess * calibration / (calibration + samples);
    let most = measured.of_one.max(counted.of_one);
    let factors = |by: f64| {
        let [measured, counted] =
            [measured, counted].map(|of| (1.0 + by * of.of_one / most).clamp(FACTORS.0, FACTORS.1));
        Factors { measured, counted }
    };
    // The sum falls as the factors grow.
    let (mut low, mut high) = (FACTORS.0 - 1.0, FACTORS.1 - 1.0);
    for _ in 0..32 {
        let middle = (low + high) / 2.0;
        if calls.own(factors(middle)) > wanted { low = middle } else { high = middle }
    }
    factors(low)
}

/// How uncertain the overhead of one kind of calls is: of all of them, in square ticks, and how that grows with what one of them costs. What the
/// samples want taken out is divided among both kinds by the former, so the factors differ from 1 by the latter.
#[derive(Clone, Copy, Debug)]
struct Variance {
    of_all: f64,
    of_one: f64,
}

/// Returns how uncertain the overhead of measured calls is, and of those that were only counted.
fn variances(calls: &Recorded<u32>) -> [Variance; 2] {
    let measured = (calls.calls() * (calls.inside + calls.outside) as f64, CALIBRATION);
    let counted = (calls.counted() * calls.short as f64, SHORT_CALIBRATION);
    [measured, counted].map(|(overhead, deviation)| {
        let of_one = deviation * deviation * overhead;
        Variance { of_all: of_one * overhead, of_one }
    })
}

/// Returns what a thread has measured, without the overhead.
fn of_thread(pid: u32, recorded: &ThreadTimes, space: &Space, factors: Factors) -> Thread<Place> {
    let thread = recorded.recorded.without_overhead(factors);
    // What was taken out too much is in no time that the agent has recorded.
    let life = recorded.life.saturating_add(recorded.recorded.taken_too_much(factors));
    Thread {
        pid,
        tid: recorded.tid,
        life,
        overhead: thread.overhead.min(life),
        ready: recorded.ready,
        ..thread.known_by(|number| space.entry(number))
    }
}
