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
    let corrected = recorded
        .nodes
        .iter()
        .map(|node| (node.function, node.own.saturating_sub_unsigned(node.calls.saturating_mul(inside))));
    let owns = not_negative(&corrected.collect::<Vec<_>>());
    let nodes = recorded.nodes.iter().zip(owns).map(|(node, own)| Node {
        parent: node.parent,
        function: space.entry(node.function).filter(|_| node.function != REST),
        calls: node.calls,
        own,
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

/// Returns the own times of call paths, of which each has the number of its function, so that none is negative and those of a function
/// are together what it has in all, or nothing if that is negative.
///
/// The overhead of a call is a mean, and on some paths a call costs less. To take such a time for 0 and to leave the others as they are
/// would give the function more time on its paths than it has.
fn not_negative(paths: &[(u32, i64)]) -> Vec<u64> {
    // Per function: the sum, and that of what is not negative.
    let mut sums: HashMap<u32, (i128, u128)> = HashMap::new();
    for &(function, own) in paths {
        let (all, positive) = sums.entry(function).or_default();
        *all += i128::from(own);
        *positive += u128::from(own.max(0) as u64);
    }
    let own = |&(function, own): &(u32, i64)| {
        let (all, positive) = sums.get(&function).copied().unwrap_or_default();
        let all = all.max(0) as u128;
        let share = u128::from(own.max(0) as u64).saturating_mul(all).checked_div(positive);
        share.map_or(0, |share| u64::try_from(share).unwrap_or(u64::MAX))
    };
    paths.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::not_negative;

    #[test]
    fn paths_have_the_time_of_their_function() {
        // What is negative on a path is taken from the function's other ones; functions do not pay for each other.
        assert_eq!(not_negative(&[(1, 600), (2, 50), (1, -200), (1, 200)]), [450, 50, 0, 150]);
        assert_eq!(
            not_negative(&[(1, 7), (1, 0), (2, i64::MAX), (2, i64::MAX)]),
            [7, 0, i64::MAX as u64, i64::MAX as u64]
        );
        // The time of a function is not negative either.
        assert_eq!(not_negative(&[(1, 5), (1, -10), (2, -1)]), [0, 0, 0]);
        assert_eq!(not_negative(&[(1, i64::MIN), (1, i64::MAX)]), [0, 0]);
        assert!(not_negative(&[]).is_empty());
    }
}
