//! From a trace to measured times, as `gprofinject --times` would have measured them in the same run.

use std::collections::HashMap;

use gmon_run::{Clock, ClockSource, Function, Intervals, Module, Program, Recording, Values};
use gmon_trace::{
    BUCKETS, Callee, Choice, ClockKind, CountedValues, Counting, Damage, Statistics, ThreadTimes,
    ThreadValues, Trace, bucket_start,
};

use crate::cli::traces::names;

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// Recording times, and what they lack.
pub(crate) struct Times {
    pub(crate) measured: Recording,
    /// What of the trace was damaged.
    pub(crate) damage: Vec<Damage>,
    /// The number of events that are not in the trace.
    pub(crate) lost: u64,
    /// Whether calls are left out because too many others were open.
    pub(crate) is_too_deep: bool,
    /// The number of values that were not counted.
    pub(crate) uncounted: u64,
}

/// Returns the measured times of the calls that are wanted. `values`: whether the values of arguments and results are counted too, and the
/// paths of calls.
pub(crate) fn measured(trace: &Trace, choice: &Choice, values: bool) -> Times {
    let mut counting = values.then(Counting::default);
    let mut statistics = Statistics::default();
    let mut steps = trace.steps(choice);
    for step in steps.by_ref() {
        statistics.add(trace, &step);
        if let Some(counting) = &mut counting {
            counting.add(trace, &step);
        }
    }
    let damage = steps.damage().to_vec();
    let mut measured = head(trace);
    let Statistics { lost, is_too_deep, .. } = statistics;
    let mut functions = HashMap::new();
    let uncounted = counting.as_ref().map_or(0, |counting| counting.lost);
    let mut counted = counting.map(Counting::finish).unwrap_or_default();
    for times in statistics.finish() {
        let counted = counted.remove(&times.buffer).unwrap_or_default();
        add(&mut measured, trace, times, counted, &mut functions);
    }
    Times { measured, damage, lost, is_too_deep, uncounted }
}

/// Returns what a trace says of the run.
fn head(trace: &Trace) -> Recording {
    let first = trace.processes.first();
    let ticks_per_ns = first.map_or(1.0, |recorded| recorded.clock.ticks_per_ns());
    let part = |of: fn(&gmon_trace::Process) -> u64| {
        first.map_or(0.0, |recorded| of(&recorded.process) as f64 / 256.0 / ticks_per_ns)
    };
    let starts = (0..BUCKETS).map(|bucket| bucket_start(bucket) as f64 / ticks_per_ns);
    let is_tsc = first.is_some_and(|recorded| recorded.process.clock == ClockKind::Tsc);
    Recording {
        programs: vec![Program {
            name: first.map_or_else(String::new, |recorded| names::program(&recorded.process)),
            processes: trace.processes.len() as u32,
            ..Program::default()
        }],
        start_unix_ns: trace.start_unix_ns.min(i64::MAX as u64),
        duration_ns: trace.duration_ns(),
        clock: Clock {
            source: if is_tsc { ClockSource::Tsc } else { ClockSource::ClockGettime },
            ticks_per_second: ticks_per_ns * SECOND,
            inside_ns: part(|process| process.inside_256),
            outside_ns: part(|process| process.outside_256),
            // The clock itself may be read a tick too early at one end and too late at the other.
            error_ns: part(|process| process.spread_256.saturating_add(2 * 256)),
            counted_below_ns: 0.0,
        },
        intervals: Intervals::new(starts.collect()).unwrap_or_default(),
        modules: trace
            .modules
            .iter()
            .map(|path| Module { path: path.clone(), ..Module::default() })
            // For functions that the trace does not define.
            .chain([Module::default()])
            .collect(),
        ..Recording::default()
    }
}

/// Adds the times of threads that have used one buffer, and what was counted of their values.
fn add(
    measured: &mut Recording,
    trace: &Trace,
    mut times: ThreadTimes,
    counted: ThreadValues,
    functions: &mut HashMap<(u32, Callee), u32>,
) {
    let Some(recorded) = trace.processes.get(times.process as usize) else { return };
    // Functions that the trace defines are the same in all processes.
    let key = |callee: Callee| match callee.index {
        Some(_) => (0, Callee { number: 0, ..callee }),
        None => (times.process, callee),
    };
    times.thread.nodes = counted.nodes;
    for callee in times.thread.known() {
        functions.entry(key(callee)).or_insert_with(|| {
            let known = trace.function(callee);
            measured.functions.push(Function {
                name: names::symbol(trace, callee),
                module: known.map_or(trace.modules.len() as u32, |function| function.module),
                address: known.map_or(0, |function| function.address),
                ..Function::default()
            });
            measured.functions.len() as u32 - 1
        });
    }
    let (pid, name) = (recorded.process.pid, names::thread(recorded, times.thread.tid));
    let index = |callee: Callee| functions[&key(callee)];
    let first = measured.nodes.len() as u32;
    measured.add_thread(0, &times.thread, index, |ticks| recorded.clock.ns(ticks));
    if let Some(thread) = measured.threads.last_mut() {
        (thread.pid, thread.name) = (pid, name);
    }
    // The function and its callers have nodes.
    let known = |callee: Callee| functions.get(&key(callee)).copied();
    measured.values.extend(counted.values.into_iter().filter_map(|of| {
        let CountedValues { function, caller, node, name, counts } = of;
        let (function, caller, node) = (known(function)?, caller.and_then(known), Some(first + node));
        Some(Values { program: 0, function, caller, node, name, counts })
    }));
}
