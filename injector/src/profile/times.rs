//! The measured durations of the calls of a process.

use std::collections::HashMap;

use gmon_run::ticks::Thread;

use crate::options::Clock;
use crate::os::clock;
use crate::profile::place::Place;
use crate::store::region::times::ThreadTimes;

/// What was measured of the calls of one program, in one process or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) overhead: Overhead,
    pub(crate) threads: Vec<Thread<Place>>,
    /// What the agent has recorded of each thread of a process, until the overhead [is fitted](crate::profile::recorded::fit).
    pub(crate) recorded: Vec<ThreadTimes>,
    /// By how much the overhead of a call differed most from what was calibrated, as a share of that.
    pub(crate) misfit: f64,
    /// How often threads have calibrated the overhead of their calls.
    pub(crate) calibrations: u64,
}

/// The overhead of a call, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overhead {
    pub(crate) clock: Clock,
    pub(crate) inside: f64,
    pub(crate) outside: f64,
    /// By how much the overhead of a call differs from that: between kinds of functions, and while the program ran.
    pub(crate) spread: f64,
    /// Calls shorter than so many nanoseconds were only counted; 0 if all were measured.
    pub(crate) min_ns: u64,
}

impl Overhead {
    /// Returns the error of reading the clock twice, in ticks: it may be read one too early at one end and one too late at the other.
    pub(crate) fn reading(&self) -> f64 {
        if self.clock == Clock::Instructions { 0.0 } else { 2.0 }
    }

    /// Returns the ticks of the clock per nanosecond, or 1 if a tick is an instruction.
    pub(crate) fn ticks_per_ns(&self) -> f64 {
        match self.clock {
            Clock::Tsc => clock::ticks_per_nanosecond(),
            Clock::Gettime | Clock::Instructions => 1.0,
        }
    }
}

impl Times {
    /// Adds what other processes have measured. `place` returns the place of one of the other's.
    pub(crate) fn add(&mut self, other: Times, place: impl Fn(Place) -> Place) {
        self.misfit = self.misfit.max(other.misfit);
        self.calibrations = self.calibrations.saturating_add(other.calibrations);
        self.threads
            .extend(other.threads.into_iter().map(|thread| thread.known_by(|known| Some(place(known)))));
    }

    /// Subtracts what the same process had measured at an earlier time. Extremes stay.
    pub(crate) fn subtract(&mut self, before: &Times) {
        // It is of the whole time.
        self.recorded.clear();
        for thread in &mut self.threads {
            let Some(old) = before.threads.iter().find(|old| (old.pid, old.tid) == (thread.pid, thread.tid))
            else {
                continue;
            };
            thread.life = thread.life.saturating_sub(old.life);
            thread.overhead = thread.overhead.saturating_sub(old.overhead);
            thread.ready = thread.ready.map(|ready| ready.saturating_sub(old.ready.unwrap_or(0)));
            let arcs: HashMap<_, _> = old.arcs.iter().map(|arc| ((arc.caller, arc.callee), arc)).collect();
            for arc in &mut thread.arcs {
                let Some(old) = arcs.get(&(arc.caller, arc.callee)) else { continue };
                // Calls that were open then are counted when they end.
                arc.calls = arc.calls.saturating_sub(old.calls - old.open);
                arc.counted = arc.counted.saturating_sub(old.counted);
                arc.own = arc.own.saturating_sub(old.own);
                arc.waited = arc.waited.saturating_sub(old.waited);
                arc.inclusive = arc.inclusive.saturating_sub(old.inclusive);
            }
            thread.arcs.retain(|arc| arc.calls > 0 || arc.counted > 0);
            let functions: HashMap<_, _> =
                old.functions.iter().map(|function| (function.function, function)).collect();
            for function in &mut thread.functions {
                let Some(old) = functions.get(&function.function) else { continue };
                function.primitive = function.primitive.saturating_sub(old.primitive);
                function.inclusive = function.inclusive.saturating_sub(old.inclusive);
                function.inclusive_raw = function.inclusive_raw.saturating_sub(old.inclusive_raw);
                function.own_raw = function.own_raw.saturating_sub(old.own_raw);
                for (count, old) in function.histogram.iter_mut().zip(&old.histogram) {
                    *count = count.saturating_sub(*old);
                }
            }
            for (node, old) in thread.nodes.iter_mut().zip(&old.nodes) {
                node.calls = node.calls.saturating_sub(old.calls);
                node.own = node.own.saturating_sub(old.own);
                node.waited = node.waited.saturating_sub(old.waited);
            }
        }
    }
}
