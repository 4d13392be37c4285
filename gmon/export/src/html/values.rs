//! The values of arguments and results in the page: texts, as reports have them, and the functions of callers and paths.

use serde::Serialize;

use crate::model::Run;
use crate::values::{Argument, Caller, NO_PATH, Path, Tables, in_short, intervals, range, rows, sentence};
use gmon_run::{REST_NAME, ValueCounts};

/// The most arguments in a page, and the most rows of each of their tables.
const ARGUMENTS: usize = 500;
const ROWS: usize = 100;
/// The most functions of a path: those nearest to the call.
const PATH: usize = 100;

/// An argument.
#[derive(Serialize)]
pub(crate) struct OfArgument<'r> {
    function: u32,
    name: &'r str,
    calls: u64,
    /// What all values have in common.
    summary: String,
    /// The most frequent ones, and the rest.
    values: Vec<Row>,
    /// Empty if the values are no numbers.
    histogram: Vec<Row>,
    callers: Vec<By>,
    /// Empty if paths were not recorded.
    paths: Vec<By>,
    /// How many callers and paths are left out.
    more: [usize; 2],
}

#[derive(Serialize)]
struct Row {
    calls: u64,
    text: String,
}

/// The values in the calls by a caller or by a path.
#[derive(Serialize)]
struct By {
    /// The functions from the outermost one to the caller.
    functions: Vec<u32>,
    /// What is in the place of the functions before them, or of all if there are none.
    before: Option<&'static str>,
    calls: u64,
    text: String,
}

/// Returns the arguments with the most calls.
pub(crate) fn of(run: &Run) -> Vec<OfArgument<'_>> {
    let tables = Tables::new(run, |_| true);
    let arguments = tables.arguments.iter().take(ARGUMENTS);
    arguments.map(|argument| of_argument(&tables, argument)).collect()
}

fn of_argument<'r>(tables: &Tables, of: &Argument<'r>) -> OfArgument<'r> {
    let all = of.all.summary();
    let callers = of.callers.iter().take(ROWS).map(|(caller, counts)| match *caller {
        Caller::Function(function) => by(vec![function], None, counts),
        other => by(Vec::new(), Some(other.place().1), counts),
    });
    let paths = of.paths.iter().take(ROWS).map(|(path, counts)| on_path(tables, *path, counts));
    let histogram = if of.all.kind.is_number() { intervals(&all) } else { Vec::new() };
    OfArgument {
        function: of.function,
        name: of.name,
        calls: all.calls,
        summary: sentence(of.all.kind, &all),
        values: rows(&of.all, ROWS).into_iter().map(|of| Row { calls: of.calls, text: of.value }).collect(),
        histogram: histogram.into_iter().map(|(at, calls)| Row { calls, text: range(at) }).collect(),
        callers: callers.collect(),
        paths: paths.collect(),
        more: [of.callers.len(), of.paths.len()].map(|all| all.saturating_sub(ROWS)),
    }
}

fn by(functions: Vec<u32>, before: Option<&'static str>, counts: &ValueCounts) -> By {
    By { functions, before, calls: counts.calls(), text: in_short(counts) }
}

fn on_path(tables: &Tables, path: Path, counts: &ValueCounts) -> By {
    let (mut functions, mut before) = match path {
        Path::Known(path) => tables.path(path),
        Path::Unknown => return by(Vec::new(), Some(NO_PATH), counts),
        Path::Rest => return by(Vec::new(), Some(REST_NAME), counts),
    };
    let cut = functions.len().saturating_sub(PATH);
    functions.drain(..cut);
    before |= cut > 0;
    let known: Vec<u32> = functions.iter().rev().map_while(|function| *function).collect();
    before |= known.len() < functions.len();
    let outside = functions.is_empty().then_some(crate::load::OUTSIDE);
    by(known.into_iter().rev().collect(), outside.or(before.then_some("...")), counts)
}
