//! What the report says of the run as a whole: whose calls these are, what measured what, and what is left out.

use serde::Serialize;

use crate::html::paths::Kept;
use crate::model::{Run, Time, View};

/// A label and what stands beside it.
#[derive(Serialize)]
pub(crate) struct Fact {
    label: &'static str,
    value: Vec<Part>,
}

/// A part of a sentence. The page writes numbers as everywhere else in it.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Part {
    Text(String),
    /// A duration in nanoseconds.
    Duration {
        ns: f64,
    },
    Count {
        count: u64,
    },
    /// A point in time, in milliseconds since 1970.
    When {
        when: u64,
    },
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn duration(ns: u64) -> Part {
    Part::Duration { ns: ns as f64 }
}

/// Returns what is known of the run.
pub(crate) fn facts(run: &Run) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |label, value| facts.push(Fact { label, value });
    let program = run.modules.first();
    fact("Program", vec![text(program.map_or(&run.program, |module| &module.path))]);
    if let Some(module) = program.filter(|module| !module.build_id.is_empty()) {
        let id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        fact("Build-id", vec![Part::Text(id)]);
    }
    if run.start_unix_ns > 0 {
        fact("Began", vec![Part::When { when: run.start_unix_ns / 1_000_000 }]);
    }
    if run.duration_ns > 0 {
        fact("Length", vec![duration(run.duration_ns)]);
    }
    fact("View", vec![text(view(run))]);
    fact("Calls", calls(run));
    fact("Times", times(run));
    let overhead = run.threads.iter().fold(0_u64, |sum, thread| sum.saturating_add(thread.overhead_ns));
    if matches!(run.time, Time::Measured { .. }) {
        fact(
            "Overhead",
            vec![duration(overhead), text(" of gprofinject's own, in all threads, left out of all times")],
        );
    }
    if run.time.is_measured() && run.samples > 0 {
        let period = duration(run.sample_period_ns);
        fact(
            "CPU time",
            vec![Part::Count { count: run.samples }, text(samples(run)), text(", one each "), period],
        );
    }
    if run.has_instructions {
        fact("Instructions", vec![text("executions of basic blocks were counted, each one")]);
    }
    fact("Report", vec![Part::Text(format!("gmon {}", env!("CARGO_PKG_VERSION")))]);
    facts
}

fn view(run: &Run) -> &'static str {
    match run.view {
        View::Program => "the program's own functions",
        View::Process if run.programs.len() > 1 => "all programs of the run, with their libraries",
        View::Process => "the whole process: the program and its libraries",
    }
}

fn calls(run: &Run) -> Vec<Part> {
    match run.calls() {
        0 => vec![text("none were counted")],
        count => {
            vec![Part::Count { count }, text(", counted one by one, of "), functions(run), text(" functions")]
        }
    }
}

fn samples(run: &Run) -> &'static str {
    if run.samples == 1 { " sample" } else { " samples" }
}

/// Returns the number of functions that were called.
fn functions(run: &Run) -> Part {
    Part::Count { count: run.functions.iter().filter(|function| function.calls > 0).count() as u64 }
}

fn times(run: &Run) -> Vec<Part> {
    match run.time {
        Time::None => vec![text("none were measured or sampled")],
        Time::Executed => vec![text("the instructions that each call executed, counted, in place of times")],
        Time::Measured { error_ns } => vec![
            text("wall time, measured in each call"),
            text(if run.has_instructions { ", with that of counting basic blocks" } else { "" }),
            text("; of gprofinject's own time at most "),
            Part::Duration { ns: error_ns },
            text(" a call may remain"),
            text(match run.functions.iter().any(|of| of.counted > 0) {
                true => ". Calls of short functions were only counted: their times are in their callers'",
                false => "",
            }),
        ],
        Time::Sampled => vec![
            Part::Count { count: run.samples },
            text(samples(run)),
            text(" of CPU time, one each "),
            duration(run.sample_period_ns),
            text(". Inclusive times, and those of callers and callees, are by sampled stacks; of "),
            Part::Count { count: run.samples_without_callers() },
            text(" samples, not all callers are known"),
        ],
        Time::Estimated => vec![
            text("self: "),
            Part::Count { count: run.samples },
            text(samples(run)),
            text(" of CPU time, one each "),
            duration(run.sample_period_ns),
            text(
                ". Inclusive times, and those of callers and callees, are estimates (est.): a function's time is divided among \
                 its callers by the number of their calls. gprofinject --times measures them",
            ),
        ],
    }
}

/// Returns what a reader has to know so as not to be misled.
pub(crate) fn notes(run: &Run, kept: &Kept, paths: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if run.functions.is_empty() {
        notes.push("The profile names no function: nothing was called or sampled.".to_owned());
    }
    if kept.left_out > 0 {
        notes.push(format!(
            "The flame graph shows {} of {} paths. Those with the least time stand together as [other calls] below their callers.",
            paths - kept.left_out,
            paths,
        ));
    }
    notes
}
