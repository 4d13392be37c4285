//! A trace as nested text, one line for each beginning and each end of a call. Calls that make no others take one line.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use gmon_trace::{Callee, Choice, Damage, Doing, Ended, How, Overhead, Scheduled, Step, Trace, What};

use crate::cli::text::{MAX_INDENT, Style, indent};
use crate::cli::trace_args::{Field, TraceArgs};
use crate::cli::traces::calls::{Calls, at_begin, at_end};
use crate::cli::traces::names;
use crate::cli::units::duration;

/// By how many spaces each thread's column is further to the right.
const COLUMN: usize = 8;
/// The greatest number of columns. Further threads share the last one.
const COLUMNS: usize = 32;

/// Prints all steps that are wanted. Returns what of the trace was damaged.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn text(
    trace: &Trace,
    choice: &Choice,
    args: &TraceArgs,
    out: &mut impl Write,
) -> io::Result<Vec<Damage>> {
    let style = Style::new(args.shown.color);
    let mut text = Text {
        calls: Calls::new(trace, args.shown.no_demangle),
        fields: &args.fields,
        is_column: args.column,
        is_part: choice.functions.is_some(),
        open: HashMap::new(),
        seen: HashSet::new(),
        threads: HashMap::new(),
        style,
        line: String::new(),
    };
    writeln!(out, "{}", style.heading(&text.headings()))?;
    let mut steps = trace.steps(choice);
    let mut scheduling = trace.scheduling(choice).peekable();
    for step in steps.by_ref() {
        let at = trace.elapsed(step.process, step.time);
        while let Some(scheduled) = scheduling.next_if(|scheduled| scheduled.from_ns <= at) {
            text.scheduled(&scheduled, out)?;
        }
        text.fields(&step);
        text.what(&step);
        text.line.push('\n');
        out.write_all(text.line.as_bytes())?;
    }
    for scheduled in scheduling {
        text.scheduled(&scheduled, out)?;
    }
    Ok(steps.damage().to_vec())
}

struct Text<'a> {
    calls: Calls<'a>,
    fields: &'a [Field],
    is_column: bool,
    /// Whether only some calls are shown, so that what happens outside of them is not.
    is_part: bool,
    /// The number of open calls that are shown, by process and thread.
    open: HashMap<(u32, u32), u64>,
    /// The processes and threads that are known to have run.
    seen: HashSet<(u32, u32)>,
    /// The columns of threads, by process and thread, in the order in which they appear.
    threads: HashMap<(u32, u32), usize>,
    style: Style,
    /// The line that is being made.
    line: String,
}

impl Text<'_> {
    fn headings(&self) -> String {
        let mut line = String::new();
        for &field in self.fields {
            let heading = match field {
                Field::Elapsed => "elapsed",
                Field::Duration => "duration",
                Field::Own => "self",
                Field::Overhead => "overhead",
                Field::Tid => "tid",
                Field::Pid => "pid",
                Field::Module => "module",
            };
            line += &pad(field, heading);
        }
        line + "calls"
    }

    /// Begins a line with the fields of a step.
    fn fields(&mut self, step: &Step) {
        self.line.clear();
        let (ended, function) = match &step.what {
            What::End(ended) => (Some(ended), Some(ended.function)),
            What::Leaf(_, ended) => (Some(ended), Some(ended.function)),
            What::Begin(begun) | What::Mark(begun) => (None, Some(begun.function)),
            What::Orphan { function, .. } => (None, Some(*function)),
            What::Lost(_) | What::Missing(_) | What::Stack | What::TooDeep => (None, None),
        };
        for &field in self.fields {
            let value = self.field(field, step, ended, function);
            self.line += &pad(field, &value);
        }
        self.column(step.process, step.tid);
        let open = self.open.entry((step.process, step.tid)).or_default();
        match step.what {
            What::Begin(_) => *open += 1,
            What::End(_) => *open = open.saturating_sub(1),
            _ => {}
        }
    }

    /// Goes on in the column of a thread.
    fn column(&mut self, process: u32, tid: u32) {
        if self.is_column {
            let next = self.threads.len().min(COLUMNS - 1);
            let column = *self.threads.entry((process, tid)).or_insert(next);
            self.line.extend(std::iter::repeat_n(' ', column * COLUMN));
        }
    }

    /// Prints what the scheduler had a thread do. That a thread runs follows from the end of what it did before.
    fn scheduled(&mut self, scheduled: &Scheduled, out: &mut impl Write) -> io::Result<()> {
        let Scheduled { from_ns, to_ns, process, tid, doing } = *scheduled;
        let is_new = self.seen.insert((process, tid));
        let is_within = self.open.get(&(process, tid)).is_some_and(|&open| open > 0);
        let is_known = !is_new && matches!(doing, Doing::Runs { .. });
        if is_known || self.is_part && !is_within {
            return Ok(());
        }
        self.line.clear();
        let is_instant = matches!(doing, Doing::Moved { .. });
        for &field in self.fields {
            let value = match field {
                Field::Elapsed => seconds(from_ns),
                Field::Duration if !is_instant => duration(to_ns - from_ns),
                Field::Tid => format!("[{tid}]"),
                Field::Pid => {
                    let recorded = self.calls.trace.processes.get(process as usize);
                    recorded.map_or_else(String::new, |recorded| recorded.process.pid.to_string())
                }
                _ => String::new(),
            };
            self.line += &pad(field, &value);
        }
        self.column(process, tid);
        self.remark(&[names::doing(doing)]);
        self.line.push('\n');
        out.write_all(self.line.as_bytes())
    }

    fn field(
        &self,
        field: Field,
        step: &Step,
        ended: Option<&Ended>,
        function: Option<Callee>,
    ) -> Cow<'static, str> {
        let trace = self.calls.trace;
        let recorded = trace.processes.get(step.process as usize);
        let time = |ticks: u64| duration(recorded.map_or(ticks, |recorded| recorded.clock.ns(ticks)));
        // What of a call is before the part that is shown was not measured.
        let whole = ended.filter(|ended| !ended.is_earlier);
        let text = match field {
            Field::Elapsed => Some(seconds(trace.elapsed(step.process, step.time))),
            Field::Duration => ended.map(|ended| match ended.is_earlier {
                true => time(ended.ended.saturating_sub(ended.began)),
                false => time(ended.duration),
            }),
            Field::Own => whole.map(|ended| {
                let overhead = recorded.map(|recorded| Overhead::of(&recorded.process));
                time(ended.own(overhead.unwrap_or_default()))
            }),
            Field::Overhead => whole.map(|ended| time(ended.overhead())),
            Field::Tid => Some(format!("[{}]", step.tid)),
            Field::Pid => recorded.map(|recorded| recorded.process.pid.to_string()),
            Field::Module => function.map(|function| self.calls.names.module(function)),
        };
        text.map_or(Cow::Borrowed(""), Cow::Owned)
    }

    /// Adds what happens.
    fn what(&mut self, step: &Step) {
        let trace = self.calls.trace;
        let since = |time: u64| format!("{} s", seconds(trace.elapsed(step.process, time)));
        match &step.what {
            What::Begin(begun) => {
                self.line += &indent(begun.depth, MAX_INDENT);
                self.calls.call(begun, &mut self.line);
                self.line += " {";
                let remarks = at_begin(begun, since);
                self.remark(&remarks);
            }
            What::Leaf(begun, ended) => {
                self.line += &indent(begun.depth, MAX_INDENT);
                self.calls.call(begun, &mut self.line);
                self.line += &self.calls.equals(ended);
                self.line.push(';');
                let mut remarks = at_begin(begun, since);
                remarks.extend(at_end(ended.how).map(str::to_owned));
                self.remark(&remarks);
            }
            What::End(ended) => {
                self.line += &indent(ended.depth, MAX_INDENT);
                self.line.push('}');
                self.line += &self.calls.equals(ended);
                let name = self.calls.name(ended.function);
                let remark = match at_end(ended.how) {
                    None => name.to_owned(),
                    Some(how) if ended.how == How::Open => format!("{name} {how}"),
                    Some(how) => format!("{name}: {how}"),
                };
                self.remark(&[remark]);
            }
            What::Mark(begun) => {
                self.line += &indent(begun.depth, MAX_INDENT);
                self.calls.call(begun, &mut self.line);
                self.line.push(';');
                self.remark(&["its end is not seen".to_owned()]);
            }
            What::Orphan { function, .. } => {
                self.line.push('}');
                let name = self.calls.name(*function);
                let remark = format!("{name}: its beginning is not in the trace");
                self.remark(&[remark]);
            }
            What::Lost(count) => {
                let events = gmon::counted(*count, "event is", "events are");
                self.remark(&[format!("{events} lost: there was no room")]);
            }
            What::Missing(count) => {
                let events = gmon::counted(*count, "event is", "events are");
                self.remark(&[format!("{events} missing: too old to be kept, or damaged")]);
            }
            What::Stack => self.remark(&["on another stack".to_owned()]),
            What::TooDeep => self.remark(&["deeper calls are left out".to_owned()]),
        }
    }

    fn remark(&mut self, remarks: &[String]) {
        if !remarks.is_empty() {
            let space = if self.line.ends_with(' ') { "" } else { " " };
            self.line += space;
            self.line += &self.style.faint(format!("/* {} */", remarks.join(", ")));
        }
    }
}

/// Returns a value with the width of its column, and what is between this column and the next one.
fn pad(field: Field, value: &str) -> String {
    match field {
        Field::Elapsed => format!("{value:>14}  "),
        Field::Duration | Field::Own | Field::Overhead => format!("{value:>9}  "),
        Field::Tid => format!("{value:>9}  "),
        Field::Pid => format!("{value:>7}  "),
        Field::Module => format!("{value:<16}  "),
    }
}

/// Returns a time in seconds, so that all have their points below each other.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
