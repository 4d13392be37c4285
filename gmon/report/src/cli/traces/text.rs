//! A trace as nested text, one line for each beginning and each end of a call. Calls that make no others take one line.

use std::collections::HashMap;
use std::io::{self, Write};

use gmon_trace::{Begun, Choice, Damage, Ended, How, Step, Trace, What};

use crate::cli::text::{Style, indent};
use crate::cli::trace_args::{Field, TraceArgs};
use crate::cli::traces::calls::{Calls, at_begin, at_end};
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
        threads: HashMap::new(),
        style,
    };
    writeln!(out, "{}", style.heading(&text.headings()))?;
    let mut steps = trace.steps(choice);
    while let Some(step) = steps.next() {
        let line = text.line(&step);
        writeln!(out, "{line}")?;
    }
    Ok(steps.damage().to_vec())
}

struct Text<'a> {
    calls: Calls<'a>,
    fields: &'a [Field],
    is_column: bool,
    /// The columns of threads, in the order in which they appear.
    threads: HashMap<(u32, u32), usize>,
    style: Style,
}

/// What a line says beside its fields.
struct Line<'s> {
    depth: u32,
    text: String,
    remarks: Vec<String>,
    /// The call that ends.
    ended: Option<&'s Ended>,
    function: Option<gmon_trace::Callee>,
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

    fn line(&mut self, step: &Step) -> String {
        let Line { depth, text, remarks, ended, function } = self.what(step);
        let mut line = String::new();
        for &field in self.fields {
            let value = self.field(field, step, ended, function);
            line += &pad(field, &value);
        }
        if self.is_column {
            let next = self.threads.len().min(COLUMNS - 1);
            let column = *self.threads.entry((step.buffer, step.tid)).or_insert(next);
            line.extend(std::iter::repeat_n(' ', column * COLUMN));
        }
        line += &indent(depth);
        line += &text;
        if !remarks.is_empty() {
            let space = if text.is_empty() { "" } else { " " };
            line += &self.style.faint(format!("{space}/* {} */", remarks.join(", ")));
        }
        line
    }

    fn field(
        &self,
        field: Field,
        step: &Step,
        ended: Option<&Ended>,
        function: Option<gmon_trace::Callee>,
    ) -> String {
        let trace = self.calls.trace;
        let recorded = trace.processes.get(step.process as usize);
        let time = |ticks: u64| duration(recorded.map_or(ticks, |recorded| recorded.clock.ns(ticks)));
        // What of a call is before the part that is shown was not measured.
        let whole = ended.filter(|ended| !ended.is_earlier);
        match field {
            Field::Elapsed => seconds(trace.elapsed(step.process, step.time)),
            Field::Duration => ended.map_or_else(String::new, |ended| match ended.is_earlier {
                true => time(ended.ended.saturating_sub(ended.began)),
                false => time(ended.duration),
            }),
            Field::Own => whole.map_or_else(String::new, |ended| {
                let overhead = recorded.map(|recorded| gmon_trace::Overhead::of(&recorded.process));
                time(ended.own(overhead.unwrap_or_default()))
            }),
            Field::Overhead => whole.map_or_else(String::new, |ended| time(ended.overhead())),
            Field::Tid => format!("[{}]", step.tid),
            Field::Pid => recorded.map_or_else(String::new, |recorded| recorded.process.pid.to_string()),
            Field::Module => function.map_or_else(String::new, |function| self.calls.names.module(function)),
        }
    }

    fn what<'s>(&mut self, step: &'s Step) -> Line<'s> {
        let remark = |text: String| Line {
            depth: 0,
            text: String::new(),
            remarks: vec![text],
            ended: None,
            function: None,
        };
        let trace = self.calls.trace;
        let since = |time: u64| format!("{} s", seconds(trace.elapsed(step.process, time)).trim_start());
        let begin = |begun: &Begun| at_begin(begun, since);
        match &step.what {
            What::Begin(begun) => Line {
                depth: begun.depth,
                text: self.calls.call(begun) + " {",
                remarks: begin(begun),
                ended: None,
                function: Some(begun.function),
            },
            What::Leaf(begun, ended) => {
                let mut remarks = begin(begun);
                remarks.extend(at_end(ended.how).map(str::to_owned));
                Line {
                    depth: begun.depth,
                    text: self.calls.call(begun) + &self.calls.equals(ended) + ";",
                    remarks,
                    ended: Some(ended),
                    function: Some(begun.function),
                }
            }
            What::End(ended) => {
                let mut name = self.calls.name(ended.function).to_owned();
                if ended.how == How::Open {
                    name += " ... open";
                } else if let Some(how) = at_end(ended.how) {
                    name = format!("{name}: {how}");
                }
                Line {
                    depth: ended.depth,
                    text: format!("}}{}", self.calls.equals(ended)),
                    remarks: vec![name],
                    ended: Some(ended),
                    function: Some(ended.function),
                }
            }
            What::Mark(begun) => Line {
                depth: begun.depth,
                text: self.calls.call(begun) + ";",
                remarks: vec!["its end is not seen".to_owned()],
                ended: None,
                function: Some(begun.function),
            },
            What::Orphan { function, .. } => Line {
                depth: 0,
                text: "}".to_owned(),
                remarks: vec![format!("{}: its beginning is not in the trace", self.calls.name(*function))],
                ended: None,
                function: Some(*function),
            },
            What::Lost(count) => {
                remark(format!("{} lost: there was no room", gmon::counted(*count, "event is", "events are")))
            }
            What::Missing(count) => remark(format!(
                "{} missing: too old to be kept, or damaged",
                gmon::counted(*count, "event is", "events are")
            )),
            What::Stack => remark("on another stack".to_owned()),
            What::TooDeep => remark("deeper calls are left out".to_owned()),
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
