//! The measured durations of the calls of a process.

use std::collections::HashMap;

use crate::profile::place::Place;

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

/// What was measured on one thread, in ticks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) life: u64,
    /// What gprofinject itself took, which is taken out of all times below.
    pub(crate) overhead: u64,
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
    pub(crate) inclusive: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
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
            thread.life = thread.life.saturating_sub(old.life);
            thread.overhead = thread.overhead.saturating_sub(old.overhead);
            let arcs: HashMap<_, _> = old.arcs.iter().map(|arc| ((arc.caller, arc.callee), arc)).collect();
            for arc in &mut thread.arcs {
                let Some(old) = arcs.get(&(arc.caller, arc.callee)) else { continue };
                // Calls that were open then are counted when they end.
                arc.calls = arc.calls.saturating_sub(old.calls - old.open);
                arc.own = arc.own.saturating_sub(old.own);
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
