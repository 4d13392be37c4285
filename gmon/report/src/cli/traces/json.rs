//! A trace as one JSON object: what happens is in a list, calls where they end.

use std::collections::HashMap;
use std::io::{self, Write};

use gmon_trace::{
    Callee, Choice, Damage, Doing, Ended, How, OpenKind, Overhead, Scheduled, Step, Trace, What,
};
use serde_json::{Value, json};

use crate::cli::text::demangled;
use crate::cli::traces::calls::Calls;
use crate::cli::traces::names;

/// Prints the object. Returns what of the trace was damaged.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn json(trace: &Trace, choice: &Choice, out: &mut impl Write) -> io::Result<Vec<Damage>> {
    let processes: Vec<Value> = trace
        .processes
        .iter()
        .map(|recorded| {
            let process = &recorded.process;
            let parent = recorded.parent.and_then(|parent| trace.processes.get(parent as usize));
            let end = recorded.end.map(|end| recorded.clock.since(trace.start_unix_ns, end));
            json!({
                "pid": process.pid,
                "parent": parent.map(|parent| parent.process.pid),
                "program": process.program,
                "end_ns": end,
            })
        })
        .collect();
    write!(
        out,
        "{{\"schema\":\"gmon-trace\",\"version\":1,\"command\":{},\"gprofinject\":{},\"start_unix_ns\":{},\n\"processes\":{},\n\"steps\":[",
        json!(trace.command),
        json!(trace.version),
        trace.start_unix_ns,
        json!(processes),
    )?;
    let mut calls = Calls::new(trace, true);
    let mut open = Open::new();
    let mut steps = trace.steps(choice);
    let mut is_first = true;
    let mut print = |value: Value| {
        let separator = if std::mem::replace(&mut is_first, false) { "\n" } else { ",\n" };
        write!(out, "{separator}{value}")
    };
    let mut scheduling = trace.scheduling(choice).peekable();
    for step in steps.by_ref() {
        let at = trace.elapsed(step.process, step.time);
        while let Some(scheduled) = scheduling.next_if(|scheduled| scheduled.from_ns <= at) {
            print(scheduled_value(trace, &scheduled))?;
        }
        if let Some(value) = value(trace, &mut calls, &mut open, &step) {
            print(value)?;
        }
    }
    for scheduled in scheduling {
        print(scheduled_value(trace, &scheduled))?;
    }
    let later = steps.damage().to_vec();
    let all = trace.damage.iter().chain(&later);
    let damage: Vec<Value> = all
        .map(|damage| json!({"offset": damage.offset, "bytes": damage.len, "why": damage.why.to_string()}))
        .collect();
    writeln!(out, "],\n\"damage\":{}}}", json!(damage))?;
    Ok(later)
}

/// Returns what is printed of what the scheduler had a thread do.
fn scheduled_value(trace: &Trace, scheduled: &Scheduled) -> Value {
    let pid = trace.processes.get(scheduled.process as usize).map(|recorded| recorded.process.pid);
    let (event, cpu) = match scheduled.doing {
        Doing::Runs { cpu } => ("runs", Some(cpu)),
        Doing::Preempted => ("preempted", None),
        Doing::Waits => ("waits", None),
        Doing::Moved { cpu } => ("moved", Some(cpu)),
    };
    json!({
        "pid": pid,
        "tid": scheduled.tid,
        "event": event,
        "begin_ns": scheduled.from_ns,
        "end_ns": scheduled.to_ns,
        "cpu": cpu,
    })
}

/// The arguments of open calls, by buffer and stack.
type Open = HashMap<(u32, u32), Vec<Option<String>>>;

/// Returns what is printed of a step, if anything is.
fn value(trace: &Trace, calls: &mut Calls, open: &mut Open, step: &Step) -> Option<Value> {
    let recorded = trace.processes.get(step.process as usize)?;
    let mut value = json!({"pid": recorded.process.pid, "tid": step.tid});
    let mut set = |key: &str, of: Value| value[key] = of;
    let at = |ticks: u64| json!(trace.elapsed(step.process, ticks));
    match &step.what {
        // A call is printed at its end, which every one has.
        What::Begin(begun) => {
            open.entry((step.buffer, step.chain)).or_default().push(calls.arguments(begun));
            return None;
        }
        What::Leaf(begun, ended) => {
            call(trace, calls, step, ended, &mut set);
            set("arguments", json!(calls.arguments(begun)));
        }
        What::End(ended) => {
            call(trace, calls, step, ended, &mut set);
            let key = (step.buffer, step.chain);
            let stack = open.entry(key).or_default();
            set("arguments", json!(stack.pop().flatten()));
            if stack.is_empty() {
                open.remove(&key);
            }
        }
        What::Mark(begun) => {
            set("event", json!("mark"));
            set("time_ns", at(step.time));
            function(trace, begun.function, &mut set);
            set("depth", json!(begun.depth));
            set("arguments", json!(calls.arguments(begun)));
        }
        What::Orphan { function: callee, how } => {
            set("event", json!("end"));
            set("time_ns", at(step.time));
            function(trace, *callee, &mut set);
            set("how", json!(how_name(*how)));
        }
        What::Lost(count) => {
            set("event", json!("lost"));
            set("time_ns", at(step.time));
            set("events", json!(count));
        }
        What::Missing(count) => {
            set("event", json!("missing"));
            set("time_ns", at(step.time));
            set("events", json!(count));
        }
        What::TooDeep => {
            set("event", json!("too_deep"));
            set("time_ns", at(step.time));
        }
        What::Stack => return None,
    }
    Some(value)
}

fn call(trace: &Trace, calls: &Calls, step: &Step, ended: &Ended, set: &mut impl FnMut(&str, Value)) {
    let Some(recorded) = trace.processes.get(step.process as usize) else { return };
    let ns = |ticks: u64| json!(recorded.clock.ns(ticks));
    set("event", json!("call"));
    set("begin_ns", json!(trace.elapsed(step.process, ended.began)));
    set("end_ns", json!(trace.elapsed(step.process, ended.ended)));
    function(trace, ended.function, set);
    set("demangled", json!(demangled(&names::symbol(trace, ended.function))));
    set("depth", json!(ended.depth));
    set("kind", json!(kind_name(ended.kind)));
    set("how", json!(how_name(ended.how)));
    set("result", json!(calls.result(ended)));
    // What was before the part that is shown was not measured.
    let whole = Some(ended).filter(|ended| !ended.is_earlier);
    set("duration_ns", json!(whole.map(|ended| ns(ended.duration))));
    set("duration_raw_ns", json!(whole.map(|ended| ns(ended.lasted))));
    set("self_ns", json!(whole.map(|ended| ns(ended.own(Overhead::of(&recorded.process))))));
    set("overhead_ns", json!(whole.map(|ended| ns(ended.overhead()))));
}

/// Sets which function it is. One without a name has an empty one, as in the other reports, and its module and address.
fn function(trace: &Trace, function: Callee, set: &mut impl FnMut(&str, Value)) {
    let known = trace.function(function);
    set("function", json!(names::symbol(trace, function)));
    set("module", json!(known.map(|known| trace.module(known))));
    set("address", json!(known.map(|known| known.address)));
}

fn kind_name(kind: OpenKind) -> &'static str {
    match kind {
        OpenKind::Call => "call",
        OpenKind::Jump => "jump",
        OpenKind::Inherited => "inherited",
    }
}

fn how_name(how: How) -> &'static str {
    match how {
        How::Returned => "returned",
        How::Left => "left",
        How::Open => "open",
        How::Unknown => "unknown",
    }
}
