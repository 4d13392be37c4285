//! From what the threads of a process have recorded of their calls' durations to the durations, without the overhead.

use std::borrow::Cow;
use std::collections::HashMap;

use gmon_run::ticks::{Arc, Function, Node, Thread};
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::times::REST;

use crate::profile::overhead::{Cost, Sum, Sums};
use crate::profile::place::Place;
use crate::profile::space::Space;
use crate::profile::times::{Overhead, Times};
use crate::store::region::times::{self, Tail, ThreadTimes};

/// The standard deviation of the overhead of calls in real programs, as a share of what the calibration measures: it depends on what else
/// the processor does, and on how many arcs there are (docs/benchmarks.md, "Measured times").
const CALIBRATION: f64 = 0.15;
/// The part of the samples in the gates that stands for the program's instructions before them: where the processor waits for the clock, it
/// is interrupted late.
const SKID: f64 = 0.03;
/// A thread that has run for less than one part of so many of the time after its last event has waited for the rest of it.
const READY: u64 = 20;
/// The overhead is between these parts of what was calibrated.
const FACTORS: (f64, f64) = (0.5, 4.0);

/// Returns what the threads of a process have recorded, with functions as places.
pub(crate) fn of_process(pid: u32, recorded: Vec<ThreadTimes>, space: &Space, overhead: Overhead) -> Times {
    let threads = recorded.iter().map(|recorded| of_thread(pid, recorded, space, 1.0)).collect();
    Times { overhead, threads, recorded, misfit: 0.0 }
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
    let sums = Sums::of(&recorded);
    let factor = factor(thread, &recorded, &sums, cpu);
    if factor != 1.0 || matches!(recorded, Cow::Owned(_)) {
        let fitted = of_thread(thread.pid, &recorded, space, factor);
        *thread = Thread {
            name: std::mem::take(&mut thread.name),
            samples: thread.samples,
            samples_by_function: std::mem::take(&mut thread.samples_by_function),
            ..fitted
        };
    }
    if let Some(&Tail { caller, callee, lasted, .. }) = recorded.tail.as_ref() {
        let before = sums.own(&Cost::of(&recorded, factor)) - waited(&recorded) - lasted as f64;
        let idle = cpu.idle(before, lasted);
        let place = (caller_of(caller, space), space.entry(callee));
        let is_it = |arc: &&mut Arc<Place>| (arc.caller, Some(arc.callee)) == place;
        if let Some(arc) = thread.arcs.iter_mut().find(is_it) {
            arc.waited = arc.waited.saturating_add(idle);
        }
    }
    (factor - 1.0).abs()
}

/// Returns for how long a thread has waited in its calls, as far as the agent has seen it.
fn waited(recorded: &ThreadTimes) -> f64 {
    recorded.arcs.iter().fold(0, |sum: u64, arc| sum.saturating_add(arc.waited)) as f64
}

/// Returns what a thread has recorded without the time after its last event for which others had the processor. A thread that waits does
/// not run at all, and from one that is ready the processor is not taken away for long.
fn without_ready_end(recorded: &ThreadTimes, cpu: Cpu) -> Cow<'_, ThreadTimes> {
    let Some(tail) = recorded.tail.as_ref().filter(|_| recorded.ready.is_some()) else {
        return Cow::Borrowed(recorded);
    };
    let own = Sums::of(recorded).own(&Cost::of(recorded, 1.0));
    let before = own - waited(recorded) - tail.lasted as f64;
    let idle = cpu.idle(before, tail.lasted);
    let is_ready = idle > 0 && tail.lasted - idle > tail.lasted / READY;
    let earlier = is_ready.then(|| recorded.ended_earlier(idle)).flatten();
    earlier.map_or(Cow::Borrowed(recorded), Cow::Owned)
}

/// Returns how many times the overhead that was calibrated a call of a thread has cost.
fn factor(thread: &Thread<Place>, recorded: &ThreadTimes, sums: &Sums, cpu: Cpu) -> f64 {
    let own = |factor: f64| sums.own(&Cost::of(recorded, factor));
    // What the thread did after its last event may have been to wait.
    let tail = recorded.tail.as_ref().map_or(0, |tail| tail.lasted) as f64;
    let calibrated = own(1.0);
    let ran = calibrated - waited(recorded) - tail;
    // Time outside of all hooked functions is in the CPU time as far as the thread has run there.
    let outside = (recorded.life as f64 - calibrated - thread.overhead as f64).max(0.0);
    let least = cpu.used - tail - outside;
    let excess = ran - ran.clamp(least, least.max(cpu.used + SKID * thread.overhead as f64));
    let uncertain = CALIBRATION * sums.calls() * (recorded.inside + recorded.outside) as f64;
    let (calibration, samples) = (uncertain * uncertain, cpu.deviation * cpu.deviation);
    if excess == 0.0 || calibration == 0.0 {
        return 1.0;
    }
    let wanted = calibrated - excess * calibration / (calibration + samples);
    // The sum falls as the factor grows.
    let (mut low, mut high) = FACTORS;
    for _ in 0..32 {
        let middle = (low + high) / 2.0;
        if own(middle) > wanted { low = middle } else { high = middle }
    }
    low
}

/// Returns the entry of a calling function, if there is one.
fn caller_of(number: u32, space: &Space) -> Option<Place> {
    space.entry(number).filter(|_| number != NO_FUNCTION)
}

/// Returns what a thread has measured, if the overhead of a call is so many times what was calibrated.
fn of_thread(pid: u32, recorded: &ThreadTimes, space: &Space, factor: f64) -> Thread<Place> {
    let cost = Cost::of(recorded, factor);
    let sums = Sums::of(recorded);
    let surplus = sums.surplus(&recorded.arcs, &cost);
    let surplus_of = |function: u32| surplus.get(&function).copied().unwrap_or(0.0);
    // No negative number is left of a cast.
    let ticks = |ticks: f64| ticks.round() as u64;
    let arcs = recorded.arcs.iter().filter_map(|arc| {
        let share = sums.share(arc);
        let inclusive = arc.inclusive as f64 - cost.within(arc.within, arc.outermost);
        let inclusive = ticks(inclusive + share * surplus_of(arc.callee));
        // Which of a function's arcs has made its calls is not known.
        let made = share * sums.get(arc.callee).made;
        Some(Arc {
            caller: caller_of(arc.caller, space),
            callee: space.entry(arc.callee)?,
            calls: arc.calls,
            open: arc.open.min(arc.calls),
            own: cost.own(arc.own as f64, arc.calls as f64, made).round() as i64,
            waited: arc.waited,
            inclusive,
            min: arc.min.min(inclusive),
            max: arc.max.min(inclusive),
        })
    });
    let arcs: Vec<Arc<Place>> = arcs.collect();
    // A function takes at least as long as what it calls.
    let mut called: HashMap<Place, u64> = HashMap::new();
    for arc in arcs.iter().filter(|arc| arc.caller != Some(arc.callee)) {
        if let Some(caller) = arc.caller {
            let longest = called.entry(caller).or_default();
            *longest = arc.inclusive.max(*longest);
        }
    }
    let functions = recorded.functions.iter().filter_map(|function| {
        let place = space.entry(function.number)?;
        let inclusive = function.inclusive as f64 - cost.within(function.within, function.primitive);
        let Sum { own, made, .. } = sums.get(function.number);
        Some(Function {
            function: place,
            primitive: function.primitive,
            inclusive: ticks(inclusive + surplus_of(function.number))
                .max(called.get(&place).copied().unwrap_or(0)),
            inclusive_raw: function.inclusive,
            own_raw: ticks(own + made * recorded.outside as f64),
            histogram: function.histogram.clone(),
        })
    });
    Thread {
        pid,
        tid: recorded.tid,
        life: recorded.life,
        overhead: ticks(sums.calls() * (cost.inside + cost.outside)).min(recorded.life),
        ready: recorded.ready,
        functions: functions.collect(),
        nodes: nodes(recorded, space, &cost),
        arcs,
        ..Thread::default()
    }
}

/// Returns the calling-context tree of a thread without the overhead.
fn nodes(recorded: &ThreadTimes, space: &Space, cost: &Cost) -> Vec<Node<Place>> {
    let mut made = vec![0_u64; recorded.nodes.len()];
    for node in &recorded.nodes {
        if let Some(made) = node.parent.and_then(|parent| made.get_mut(parent as usize)) {
            *made = made.saturating_add(node.calls);
        }
    }
    let corrected = recorded.nodes.iter().zip(made).map(|(node, made)| {
        (node.function, cost.own(node.own as f64, node.calls as f64, made as f64).round() as i64)
    });
    let owns = not_negative(&corrected.collect::<Vec<_>>());
    let node = |(node, own): (&times::Node, u64)| Node {
        parent: node.parent,
        function: space.entry(node.function).filter(|_| node.function != REST),
        calls: node.calls,
        own,
    };
    recorded.nodes.iter().zip(owns).map(node).collect()
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
