//! A trace in the JSON format of chrome://tracing, which other viewers read too
//! ("Trace Event Format", <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>).
//!
//! Calls are pairs of `B` and `E`, which nest on each thread. The stack of a coroutine is a thread of its own there, with a number that no
//! thread has, and so is what the scheduler had a thread do, which does not nest with its calls.

use std::collections::HashMap;
use std::io::{self, Write};

use gmon_trace::{Begun, Choice, Damage, Doing, Ended, How, Recorded, Scheduled, Step, Trace, What};
use serde_json::{Map, Value, json};

use crate::cli::traces::calls::{Calls, at_begin, at_end};
use crate::cli::traces::names;
use crate::cli::traces::tracks::{Track, Tracks};

/// The first number of a stack that is shown as a thread. Those of threads are below.
const FIRST_STACK: u64 = 1 << 30;

/// Writes all steps that are wanted. Returns what of the trace was damaged.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn chrome(
    trace: &Trace,
    choice: &Choice,
    raw: bool,
    out: &mut impl Write,
) -> io::Result<Vec<Damage>> {
    let mut writer = Writer {
        calls: Calls::new(trace, raw),
        trace,
        out,
        tracks: Tracks::default(),
        stacks: HashMap::new(),
        is_first: true,
    };
    write!(writer.out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut steps = trace.steps(choice);
    for step in steps.by_ref() {
        writer.step(&step)?;
    }
    for scheduled in trace.scheduling(choice) {
        writer.scheduled(&scheduled)?;
    }
    writeln!(writer.out, "\n]}}")?;
    Ok(steps.damage().to_vec())
}

struct Writer<'t, W> {
    calls: Calls<'t>,
    trace: &'t Trace,
    out: &'t mut W,
    tracks: Tracks,
    /// The numbers of stacks that are shown as threads.
    stacks: HashMap<Track, u64>,
    is_first: bool,
}

impl<W: Write> Writer<'_, W> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.is_first, false) { "\n" } else { ",\n" };
        write!(self.out, "{separator}{event}")
    }

    /// Returns the numbers of the process and of the thread of a step. They are named if they are new.
    fn place(&mut self, step: &Step) -> io::Result<(u32, u64)> {
        let Some(recorded) = self.trace.processes.get(step.process as usize) else { return Ok((0, 0)) };
        let pid = recorded.process.pid;
        let name = names::thread(recorded, step.tid);
        match self.tracks.stack(step) {
            None => self.row(recorded, u64::from(step.tid), Track::Thread(pid, step.tid), &name),
            Some(ordinal) => {
                let track = Track::Stack(step.buffer, step.tid, step.chain);
                let tid = self.other(track);
                self.row(recorded, tid, track, &format!("{name} {} stack {ordinal}", step.tid))
            }
        }
    }

    /// Returns the number of what is shown as a thread and is none.
    fn other(&mut self, track: Track) -> u64 {
        let next = FIRST_STACK + self.stacks.len() as u64;
        *self.stacks.entry(track).or_insert(next)
    }

    /// Names a process and something that is shown as a thread of it, if they are new. Returns their numbers.
    fn row(&mut self, recorded: &Recorded, tid: u64, track: Track, name: &str) -> io::Result<(u32, u64)> {
        let pid = recorded.process.pid;
        if self.tracks.number(Track::Process(pid)).1 {
            let name = names::program(&recorded.process);
            self.event(&json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}))?;
        }
        if self.tracks.number(track).1 {
            self.event(
                &json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}),
            )?;
        }
        Ok((pid, tid))
    }

    fn scheduled(&mut self, scheduled: &Scheduled) -> io::Result<()> {
        let Scheduled { from_ns, to_ns, process, tid, doing } = *scheduled;
        let Some(recorded) = self.trace.processes.get(process as usize) else { return Ok(()) };
        let track = Track::Scheduling(recorded.process.pid, tid);
        let number = self.other(track);
        let name = format!("{} {tid} scheduling", names::thread(recorded, tid));
        let (pid, tid) = self.row(recorded, number, track, &name)?;
        let mut event =
            json!({"pid": pid, "tid": tid, "ts": microseconds(from_ns), "name": names::doing(doing)});
        if let Doing::Moved { .. } = doing {
            (event["ph"], event["s"]) = (json!("i"), json!("t"));
        } else {
            (event["ph"], event["dur"]) = (json!("X"), microseconds(to_ns - from_ns));
        }
        self.event(&event)
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        let place = self.place(step)?;
        match &step.what {
            What::Begin(begun) => self.begin(step, place, begun),
            What::End(ended) => self.end(step, place, ended),
            What::Leaf(begun, ended) => {
                self.begin(step, place, begun)?;
                self.end(step, place, ended)
            }
            What::Mark(begun) => {
                let name = self.calls.name(begun.function).to_owned();
                self.instant(step, place, &name)
            }
            What::Orphan { function, .. } => {
                let text = format!("end of {}", self.calls.name(*function));
                self.instant(step, place, &text)
            }
            What::Lost(count) => {
                self.instant(step, place, &format!("{} lost", gmon::counted(*count, "event", "events")))
            }
            What::Missing(count) => {
                self.instant(step, place, &format!("{} missing", gmon::counted(*count, "event", "events")))
            }
            What::TooDeep => self.instant(step, place, "deeper calls are left out"),
            What::Stack => Ok(()),
        }
    }

    fn begin(&mut self, step: &Step, (pid, tid): (u32, u64), begun: &Begun) -> io::Result<()> {
        let trace = self.trace;
        let mut event = json!({
            "ph": "B",
            "pid": pid,
            "tid": tid,
            "ts": microseconds(trace.elapsed(step.process, step.time)),
            "name": self.calls.name(begun.function),
        });
        let mut args = Map::new();
        for ((name, value), number) in begun.arguments_in(trace).into_iter().flatten().zip(1..) {
            let name = name.map_or_else(|| format!("argument {number}"), str::to_owned);
            args.insert(name, json!(value.to_string()));
        }
        let remarks = at_begin(begun, |time| format!("{} ns", trace.elapsed(step.process, time)));
        if !remarks.is_empty() {
            args.insert("begins".to_owned(), json!(remarks.join(", ")));
        }
        if !args.is_empty() {
            event["args"] = Value::Object(args);
        }
        self.event(&event)
    }

    fn end(&mut self, step: &Step, (pid, tid): (u32, u64), ended: &Ended) -> io::Result<()> {
        let mut event = json!({
            "ph": "E",
            "pid": pid,
            "tid": tid,
            "ts": microseconds(self.trace.elapsed(step.process, ended.ended)),
        });
        let mut args = Map::new();
        if let Some(result) = self.calls.result(ended) {
            args.insert("result".to_owned(), json!(result));
        }
        if ended.how != How::Returned
            && let Some(how) = at_end(ended.how)
        {
            args.insert("ends".to_owned(), json!(how));
        }
        if !args.is_empty() {
            event["args"] = Value::Object(args);
        }
        self.event(&event)
    }

    fn instant(&mut self, step: &Step, (pid, tid): (u32, u64), name: &str) -> io::Result<()> {
        let at = microseconds(self.trace.elapsed(step.process, step.time));
        self.event(&json!({"ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": at, "name": name}))
    }
}

/// Returns a time in microseconds, of which the format has fractions.
fn microseconds(ns: u64) -> Value {
    json!(ns as f64 / 1000.0)
}
