//! The measured durations of a process: from what its threads have recorded to nanoseconds, by function and arc.

use std::collections::HashMap;

use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::times::{BUCKETS, REST};

use crate::profile::model::Place;
use crate::profile::space::Space;
use crate::store::region::times as recorded;

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
    pub(crate) life: u64,
    /// What gprofinject itself took, which is taken out of all times below.
    pub(crate) overhead: u64,
    pub(crate) arcs: Vec<Arc>,
    pub(crate) functions: Vec<Function>,
    pub(crate) nodes: Vec<Node>,
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
    pub(crate) histogram: [u64; BUCKETS],
}

/// What was measured of a function beside its arcs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) place: Place,
    pub(crate) primitive: u64,
    pub(crate) inclusive: u64,
    /// The same with the overhead.
    pub(crate) inclusive_raw: u64,
    /// The own time with the overhead.
    pub(crate) own_raw: u64,
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

/// Returns what the threads of a process have recorded, with functions as places.
pub(crate) fn of_process(
    pid: u32,
    recorded: Vec<recorded::ThreadTimes>,
    space: &Space,
    overhead: Overhead,
) -> Times {
    let threads = recorded.into_iter().map(|thread| of_thread(pid, &thread, space)).collect();
    Times { overhead, threads }
}

fn of_thread(pid: u32, recorded: &recorded::ThreadTimes, space: &Space) -> Thread {
    let (inside, outside) = (recorded.inside, recorded.outside);
    let both = inside.saturating_add(outside);
    // Per function: own time without the overhead outside of the calls that it makes, and the number of these calls.
    let mut own: HashMap<u32, i64> = HashMap::new();
    let mut made: HashMap<u32, u64> = HashMap::new();
    let mut all_calls = 0_u64;
    for arc in &recorded.arcs {
        all_calls = all_calls.saturating_add(arc.calls);
        let sum = own.entry(arc.callee).or_default();
        *sum = sum.saturating_add(arc.own);
        let count = made.entry(arc.caller).or_default();
        *count = count.saturating_add(arc.calls);
    }
    let arcs = recorded.arcs.iter().filter_map(|arc| {
        let within = arc.within.saturating_mul(both).saturating_add(arc.outermost.saturating_mul(inside));
        Some(Arc {
            caller: space.entry(arc.caller).filter(|_| arc.caller != NO_FUNCTION),
            callee: space.entry(arc.callee)?,
            calls: arc.calls,
            open: arc.open.min(arc.calls),
            own: arc.own.saturating_sub_unsigned(arc.calls.saturating_mul(inside)),
            inclusive: arc.inclusive.saturating_sub(within),
            min: arc.min,
            max: arc.max,
            histogram: arc.histogram,
        })
    });
    let functions = recorded.functions.iter().filter_map(|function| {
        let within =
            function.within.saturating_mul(both).saturating_add(function.primitive.saturating_mul(inside));
        let outside = made.get(&function.number).map_or(0, |calls| calls.saturating_mul(outside));
        let own = own.get(&function.number).copied().unwrap_or(0).saturating_add_unsigned(outside);
        Some(Function {
            place: space.entry(function.number)?,
            primitive: function.primitive,
            inclusive: function.inclusive.saturating_sub(within),
            inclusive_raw: function.inclusive,
            own_raw: own.max(0) as u64,
        })
    });
    let nodes = recorded.nodes.iter().map(|node| Node {
        parent: node.parent,
        place: space.entry(node.function).filter(|_| node.function != REST),
        calls: node.calls,
        own: node.own.saturating_sub_unsigned(node.calls.saturating_mul(inside)).max(0) as u64,
    });
    Thread {
        pid,
        tid: recorded.tid,
        life: recorded.life,
        overhead: all_calls.saturating_mul(both).min(recorded.life),
        arcs: arcs.collect(),
        functions: functions.collect(),
        nodes: nodes.collect(),
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
                for (count, old) in arc.histogram.iter_mut().zip(old.histogram) {
                    *count = count.saturating_sub(old);
                }
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
            }
            for (node, old) in thread.nodes.iter_mut().zip(&old.nodes) {
                node.calls = node.calls.saturating_sub(old.calls);
                node.own = node.own.saturating_sub(old.own);
            }
        }
    }
}
