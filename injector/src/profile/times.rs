//! The measured durations of the calls of a process.

use std::collections::HashMap;

use crate::os::clock;
use crate::profile::place::Place;
use crate::store::region::times::ThreadTimes;

/// What was measured of the calls of one program, in one process or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) overhead: Overhead,
    pub(crate) threads: Vec<Thread>,
}

/// The overhead of a call, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overhead {
    /// Whether the time stamp counter measures; otherwise a tick is a nanosecond.
    pub(crate) is_tsc: bool,
    pub(crate) inside: f64,
    pub(crate) outside: f64,
    /// How much more the calibration has needed in half of its rounds.
    pub(crate) spread: f64,
}

impl Overhead {
    /// Returns the ticks of the clock per nanosecond.
    pub(crate) fn ticks_per_ns(&self) -> f64 {
        if self.is_tsc { clock::ticks_per_nanosecond() } else { 1.0 }
    }
}

/// What was measured on one thread, in ticks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) life: u64,
    /// What the agent has recorded of the thread, until the overhead is fitted.
    pub(crate) recorded: Option<Box<ThreadTimes>>,
    /// How many times the overhead that was calibrated a call has cost, as far as that is known.
    pub(crate) factor: f64,
    /// What gprofinject itself took, which is taken out of all times below.
    pub(crate) overhead: u64,
    /// The time for which other threads had the processor, which is in no other time; `None` if it is not known, nor when the thread
    /// waited.
    pub(crate) ready: Option<u64>,
    pub(crate) tail: Option<Tail>,
    pub(crate) arcs: Vec<Arc>,
    pub(crate) functions: Vec<Function>,
    pub(crate) nodes: Vec<Node>,
    /// The number of samples of CPU time, without those in gprofinject's own code; 0 if samples do not know their thread.
    pub(crate) samples: u64,
    /// The number of samples in each function itself.
    pub(crate) samples_by_function: HashMap<Place, u64>,
}

/// The measured calls of a function by another one.
#[derive(Clone, Debug)]
pub(crate) struct Arc {
    /// `None` if no hooked function was running.
    pub(crate) caller: Option<Place>,
    pub(crate) callee: Place,
    pub(crate) calls: u64,
    pub(crate) open: u64,
    /// Without the overhead; may be negative.
    pub(crate) own: i64,
    /// The part of `own` in which the thread waited.
    pub(crate) waited: u64,
    pub(crate) inclusive: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// The time from a thread's last event to its end, in its innermost open call. Whether the thread waited then is known by samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// As in [`Arc`].
    pub(crate) caller: Option<Place>,
    pub(crate) callee: Place,
    pub(crate) lasted: u64,
}

/// What was measured of a function beside its arcs.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) place: Place,
    pub(crate) primitive: u64,
    pub(crate) inclusive: u64,
    /// The same with the overhead.
    pub(crate) inclusive_raw: u64,
    /// The own time with the overhead.
    pub(crate) own_raw: u64,
    /// The numbers of calls that have ended, by [`gprofinject_abi::times::bucket`].
    pub(crate) histogram: Vec<u64>,
}

/// A node of the calling-context tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) parent: Option<u32>,
    /// `None` in the node for everything for which there was no other one.
    pub(crate) place: Option<Place>,
    pub(crate) calls: u64,
    pub(crate) own: u64,
}

impl Thread {
    /// Adds the part of the [tail](Tail) in which the thread did not run to the time that it waited. It has used so many ticks of CPU time in
    /// all.
    pub(crate) fn settle_tail(&mut self, cpu: u64) {
        let Some(tail) = self.tail.take() else { return };
        let sum = |part: fn(&Arc) -> u64| self.arcs.iter().map(part).fold(0, u64::saturating_add);
        let own = sum(|arc| arc.own.max(0) as u64);
        let before = own.saturating_sub(sum(|arc| arc.waited)).saturating_sub(tail.lasted);
        let ran = cpu.saturating_sub(before).min(tail.lasted);
        let is_it = |arc: &&mut Arc| (arc.caller, arc.callee) == (tail.caller, tail.callee);
        if let Some(arc) = self.arcs.iter_mut().find(is_it) {
            arc.waited = arc.waited.saturating_add(tail.lasted - ran);
        }
    }

    /// Returns for how long the thread waited in each function itself, as the sum over its arcs.
    pub(crate) fn waited(&self) -> HashMap<Place, u64> {
        let mut sums: HashMap<Place, u64> = HashMap::new();
        for arc in self.arcs.iter().filter(|arc| arc.waited > 0) {
            let sum = sums.entry(arc.callee).or_default();
            *sum = sum.saturating_add(arc.waited);
        }
        sums
    }

    /// Returns the own time of each function, which is the sum over its arcs.
    pub(crate) fn own(&self) -> HashMap<Place, u64> {
        let mut sums: HashMap<Place, i64> = HashMap::new();
        for arc in &self.arcs {
            let sum = sums.entry(arc.callee).or_default();
            *sum = sum.saturating_add(arc.own);
        }
        sums.into_iter().map(|(place, own)| (place, own.max(0) as u64)).collect()
    }
}

impl Times {
    /// Adds what other processes have measured. `place` returns the place of one of the other's.
    pub(crate) fn add(&mut self, other: Times, place: impl Fn(Place) -> Place) {
        self.threads.extend(other.threads.into_iter().map(|thread| {
            Thread {
                arcs: thread
                    .arcs
                    .into_iter()
                    .map(|arc| Arc { caller: arc.caller.map(&place), callee: place(arc.callee), ..arc })
                    .collect(),
                functions: thread
                    .functions
                    .into_iter()
                    .map(|function| Function { place: place(function.place), ..function })
                    .collect(),
                tail: thread.tail.map(|tail| Tail {
                    caller: tail.caller.map(&place),
                    callee: place(tail.callee),
                    ..tail
                }),
                nodes: thread
                    .nodes
                    .into_iter()
                    .map(|node| Node { place: node.place.map(&place), ..node })
                    .collect(),
                samples_by_function: thread
                    .samples_by_function
                    .into_iter()
                    .map(|(function, samples)| (place(function), samples))
                    .collect(),
                ..thread
            }
        }));
    }

    /// Subtracts what the same process had measured at an earlier time. Extremes stay.
    pub(crate) fn subtract(&mut self, before: &Times) {
        for thread in &mut self.threads {
            let Some(old) = before.threads.iter().find(|old| (old.pid, old.tid) == (thread.pid, thread.tid))
            else {
                continue;
            };
            // The calibration was the same.
            thread.recorded = None;
            thread.life = thread.life.saturating_sub(old.life);
            thread.overhead = thread.overhead.saturating_sub(old.overhead);
            thread.ready = thread.ready.map(|ready| ready.saturating_sub(old.ready.unwrap_or(0)));
            let arcs: HashMap<_, _> = old.arcs.iter().map(|arc| ((arc.caller, arc.callee), arc)).collect();
            for arc in &mut thread.arcs {
                let Some(old) = arcs.get(&(arc.caller, arc.callee)) else { continue };
                // Calls that were open then are counted when they end.
                arc.calls = arc.calls.saturating_sub(old.calls - old.open);
                arc.own = arc.own.saturating_sub(old.own);
                arc.waited = arc.waited.saturating_sub(old.waited);
                arc.inclusive = arc.inclusive.saturating_sub(old.inclusive);
            }
            thread.arcs.retain(|arc| arc.calls > 0);
            let functions: HashMap<_, _> =
                old.functions.iter().map(|function| (function.place, function)).collect();
            for function in &mut thread.functions {
                let Some(old) = functions.get(&function.place) else { continue };
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
            }
        }
    }
}
