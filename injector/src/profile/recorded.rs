//! From what the threads of a process have recorded of their calls' durations to the durations, without the overhead.

use std::collections::HashMap;

use gmon_run::ticks::{Arc, Function, Node, Thread};
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::times::REST;

use crate::profile::place::Place;
use crate::profile::space::Space;
use crate::profile::times::{Overhead, Times};
use crate::store::region::times::ThreadTimes;

/// Returns what the threads of a process have recorded, with functions as places.
pub(crate) fn of_process(pid: u32, recorded: Vec<ThreadTimes>, space: &Space, overhead: Overhead) -> Times {
    let threads = recorded.into_iter().map(|thread| of_thread(pid, &thread, space)).collect();
    Times { overhead, threads }
}

fn of_thread(pid: u32, recorded: &ThreadTimes, space: &Space) -> Thread<Place> {
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
        })
    });
    let functions = recorded.functions.iter().filter_map(|function| {
        let within =
            function.within.saturating_mul(both).saturating_add(function.primitive.saturating_mul(inside));
        let outside = made.get(&function.number).map_or(0, |calls| calls.saturating_mul(outside));
        let own = own.get(&function.number).copied().unwrap_or(0).saturating_add_unsigned(outside);
        Some(Function {
            function: space.entry(function.number)?,
            primitive: function.primitive,
            inclusive: function.inclusive.saturating_sub(within),
            inclusive_raw: function.inclusive,
            own_raw: own.max(0) as u64,
            histogram: function.histogram.clone(),
        })
    });
    let nodes = recorded.nodes.iter().map(|node| Node {
        parent: node.parent,
        function: space.entry(node.function).filter(|_| node.function != REST),
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
        ..Thread::default()
    }
}
