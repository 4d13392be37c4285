//! From a trace to measured times, as `gprofinject --times` would have measured them in the same run.

use std::collections::HashMap;

use gmon_run::{
    ArcTimes, Clock, ClockSource, Function, FunctionTimes, Intervals, Module, Program, Recording, Thread,
};
use gmon_trace::{BUCKETS, Callee, Choice, ClockKind, Damage, Statistics, ThreadTimes, Trace, bucket_start};

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
}

/// Returns the measured times of the calls that are wanted.
pub(crate) fn measured(trace: &Trace, choice: &Choice) -> Times {
    let mut statistics = Statistics::default();
    let mut steps = trace.steps(choice);
    for step in steps.by_ref() {
        statistics.add(trace, &step);
    }
    let damage = steps.damage().to_vec();
    let mut measured = head(trace);
    let Statistics { lost, is_too_deep, .. } = statistics;
    let mut functions = HashMap::new();
    for (thread, number) in statistics.finish().into_iter().zip(0..) {
        add(&mut measured, trace, &thread, number, &mut functions);
    }
    Times { measured, damage, lost, is_too_deep }
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

/// Adds the times of a thread.
fn add(
    measured: &mut Recording,
    trace: &Trace,
    thread: &ThreadTimes,
    number: u32,
    functions: &mut HashMap<(u32, Callee), u32>,
) {
    let Some(recorded) = trace.processes.get(thread.process as usize) else { return };
    let ns = |ticks: u64| recorded.clock.ns(ticks);
    let signed = |ticks: i64| if ticks > 0 { ns(ticks as u64) } else { 0 };
    let mut index = |measured: &mut Recording, callee: Callee| {
        // Functions that the trace defines are the same in all processes.
        let process = if callee.index.is_some() { 0 } else { thread.process };
        let key = Callee { number: if callee.index.is_some() { 0 } else { callee.number }, ..callee };
        *functions.entry((process, key)).or_insert_with(|| {
            let known = trace.function(callee);
            measured.functions.push(Function {
                name: names::symbol(trace, callee),
                module: known.map_or(trace.modules.len() as u32, |function| function.module),
                address: known.map_or(0, |function| function.address),
                ..Function::default()
            });
            measured.functions.len() as u32 - 1
        })
    };
    let mut sums: HashMap<u32, (FunctionTimes, i64)> = HashMap::new();
    for arc in &thread.arcs {
        let caller = arc.caller.map(|caller| index(measured, caller));
        let callee = index(measured, arc.callee);
        let (min_ns, max_ns) = (ns(arc.min), ns(arc.max));
        measured.arcs.push(ArcTimes {
            caller,
            callee,
            thread: number,
            calls: arc.calls,
            open: arc.open,
            self_ns: signed(arc.own),
            inclusive_ns: ns(arc.inclusive),
            min_ns,
            max_ns,
        });
        let part = FunctionTimes {
            function: callee,
            thread: number,
            calls: arc.calls,
            open: arc.open,
            min_ns,
            max_ns,
            ..FunctionTimes::default()
        };
        match sums.get_mut(&callee) {
            Some((sum, own)) => {
                sum.add(&part);
                *own = own.saturating_add(arc.own);
            }
            None => {
                sums.insert(callee, (part, arc.own));
            }
        }
    }
    let mut self_ticks = 0_u64;
    for function in &thread.functions {
        let index = index(measured, function.function);
        let Some((mut row, own)) = sums.remove(&index) else { continue };
        let own = own.max(0) as u64;
        self_ticks = self_ticks.saturating_add(own);
        row.primitive = function.primitive.min(row.calls);
        row.self_ns = ns(own);
        row.self_raw_ns = ns(function.own_raw);
        row.inclusive_ns = ns(function.inclusive.max(own));
        row.inclusive_raw_ns = ns(function.inclusive_raw);
        let len = function.histogram.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        row.histogram = function.histogram.iter().take(len).copied().collect();
        measured.rows.push(row);
    }
    let rest = thread.life.saturating_sub(self_ticks);
    let overhead = thread.overhead.min(rest);
    measured.threads.push(Thread {
        program: 0,
        pid: recorded.process.pid,
        tid: thread.tid,
        name: names::thread(recorded, thread.tid),
        life_ns: ns(thread.life),
        outside_ns: ns(rest - overhead),
        overhead_ns: ns(overhead),
        samples: 0,
    });
}
