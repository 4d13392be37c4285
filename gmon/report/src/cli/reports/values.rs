//! `gmon values`: prints which values arguments and results had, and how often.

use std::io::Write;

use anyhow::{Result, bail};
use gmon_export::load::OUTSIDE;
use gmon_export::values::{
    Argument, Caller, NO_PATH, Path, Tables, ValueCounts, ValueKind, ValueSummary, bounds, in_short,
    intervals, percent, range, rows, sentence,
};
use gmon_run::REST_NAME;
use gprofinject_image::names::fit;
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::run_view::{Names, RunView};
use crate::cli::table_args::ValuesArgs;
use crate::cli::text::plain;

/// The values, the callers, and the paths that text has of each argument unless `-n` says otherwise.
const ROWS: usize = 10;
/// The columns of a histogram's longest bar.
const BAR: u64 = 40;
/// The columns before the last one of a row.
const COLUMNS: usize = 12 + 2 + 7 + 2;
/// The columns that a caller or a path has at least.
const NAME: usize = 24;
/// What is in the place of a path's outer functions.
const CUT: &str = "... > ";

/// Prints the values as text or as JSON.
///
/// # Errors
/// There are none, or `out` cannot be written to.
pub(crate) fn values(view: &RunView, args: &ValuesArgs, out: &mut impl Write) -> Result<()> {
    if view.run.values.is_empty() {
        bail!(
            "no values of arguments in the run of {}; `gprofinject --values 'FUNCTION@arg1/u64' PROG` keeps them",
            plain(&view.run.program)
        );
    }
    let tables = Tables::new(view.run, |function| view.chooses(function));
    if args.paths && tables.arguments.iter().all(|of| of.paths.is_empty()) {
        bail!(
            "--paths: the values in the run of {} are not known by path; `gprofinject --paths --values 'FUNCTION@arg1/u64' PROG` keeps them so",
            plain(&view.run.program)
        );
    }
    if args.common.shown.json { json_of(view, args, &tables, out) } else { text(view, args, &tables, out) }
}

fn json_number(kind: ValueKind, value: u64) -> Value {
    match kind {
        ValueKind::Unsigned | ValueKind::Hex => json!(value),
        ValueKind::Signed | ValueKind::Char => json!(value as i64),
        ValueKind::Double | ValueKind::Single => json!(kind.number(value)),
        ValueKind::Text => Value::Null,
    }
}

/// Prints the values as text.
///
/// # Errors
/// `out` cannot be written to.
fn text(view: &RunView, args: &ValuesArgs, tables: &Tables, out: &mut impl Write) -> Result<()> {
    view.head(out)?;
    let shown = Shown { view, args, tables, names: view.names(tables.functions()) };
    for argument in &tables.arguments {
        shown.argument(argument, out)?;
    }
    Ok(())
}

/// What text is made of.
struct Shown<'a> {
    view: &'a RunView<'a>,
    args: &'a ValuesArgs,
    tables: &'a Tables<'a>,
    names: Names,
}

impl Shown<'_> {
    /// Returns the number of values, callers and paths of each argument.
    fn most(&self) -> usize {
        let rows = &self.args.common.rows;
        if rows.limit.is_none() { ROWS } else { rows.most() }
    }

    /// Returns the row of a table, of which the last column is as wide as there is room.
    fn row(&self, [count, share]: [&str; 2], value: impl FnOnce(usize) -> String) -> String {
        let width = self.view.style.width().unwrap_or(usize::MAX);
        format!("{count:>12}  {share:>7}  {}", value(width.saturating_sub(COLUMNS)))
    }

    fn heading(&self, last: &str) -> String {
        self.view.style.faint(self.row(["calls", "share"], |_| last.to_owned())).to_string()
    }

    fn argument(&self, argument: &Argument, out: &mut impl Write) -> Result<()> {
        let counts = &argument.all;
        let (kind, all) = (counts.kind, counts.summary());
        let title = format!("{} {}", self.names.of(argument.function), plain(argument.name));
        writeln!(out, "\n{}: {}", self.view.style.heading(&title), sentence(kind, &all))?;
        writeln!(out, "{}", self.heading("value"))?;
        for row in rows(counts, self.most()) {
            let share = percent(row.calls, all.calls);
            let line = self.row([&row.calls.to_string(), &share], |room| fit(&row.value, room).into_owned());
            writeln!(out, "{line}")?;
        }
        if self.args.histogram && kind.is_number() {
            histogram(&all, out)?;
        }
        if self.args.paths {
            let path = |path: &Path, room: usize| self.path(*path, room);
            self.parts("path: values", ["path", "paths"], &argument.paths, all.calls, path, out)
        } else if argument.callers.iter().any(|(caller, _)| *caller != Caller::Outside) {
            let name = |caller: &Caller, _: usize| match caller.place() {
                (Some(function), _) => self.names.of(function).to_owned(),
                (None, name) => name.to_owned(),
            };
            self.parts("caller: values", ["caller", "callers"], &argument.callers, all.calls, name, out)
        } else {
            Ok(())
        }
    }

    /// Prints the values of each of several callers or paths. `name` returns the name of one for which there are so many columns.
    fn parts<K>(
        &self,
        heading: &str,
        [one, many]: [&str; 2],
        parts: &[(K, ValueCounts)],
        calls: u64,
        name: impl Fn(&K, usize) -> String,
        out: &mut impl Write,
    ) -> Result<()> {
        writeln!(out, "{}", self.heading(heading))?;
        for (key, counts) in parts.iter().take(self.most()) {
            let own = counts.calls();
            let values = in_short(counts);
            let line = self.row([&own.to_string(), &percent(own, calls)], |room| {
                // The values are what nobody else says.
                let name = name(key, room.saturating_sub(values.len() + 2).max(NAME));
                fit(&format!("{name}: {values}"), room).into_owned()
            });
            writeln!(out, "{line}")?;
        }
        let more = parts.len().saturating_sub(self.most());
        if more > 0 {
            let hidden = format!("{} more; -n shows them", gmon::counted(more, one, many));
            writeln!(out, "{}", self.view.style.faint(hidden))?;
        }
        Ok(())
    }

    /// Returns a path as text. If there is no room for all of it, its outer functions are left out.
    fn path(&self, path: Path, room: usize) -> String {
        let (functions, is_cut) = match path {
            Path::Known(path) => self.tables.path(path),
            Path::Unknown => return NO_PATH.to_owned(),
            Path::Rest => return REST_NAME.to_owned(),
        };
        if functions.is_empty() {
            return OUTSIDE.to_owned();
        }
        let (mut text, mut is_cut) = (String::new(), is_cut);
        for function in functions.into_iter().rev() {
            let name = function.map_or(REST_NAME, |function| self.names.of(function));
            let longer = if text.is_empty() { name.to_owned() } else { format!("{name} > {text}") };
            if !text.is_empty() && longer.chars().count() + CUT.len() > room {
                is_cut = true;
                break;
            }
            text = longer;
        }
        if is_cut { format!("{CUT}{text}") } else { text }
    }
}

/// Prints a bar for each interval up to the last one with a value, numbers below 0 first.
fn histogram(all: &ValueSummary, out: &mut impl Write) -> Result<()> {
    let most = all.histogram.iter().copied().max().unwrap_or(0).max(1);
    for (interval, count) in intervals(all) {
        let bar = (u128::from(count) * u128::from(BAR) / u128::from(most)) as usize;
        writeln!(out, "{count:>12}  {:<24} {}", range(interval), "#".repeat(bar))?;
    }
    Ok(())
}

fn json_of(view: &RunView, args: &ValuesArgs, tables: &Tables, out: &mut impl Write) -> Result<()> {
    write!(out, "{{{}", view.json_head("gmon-values"))?;
    array(out, "values", &tables.arguments, |argument| {
        let mut json = view.json_node(Some(argument.function), "");
        json["argument"] = json!(argument.name);
        add_counts(&mut json, &argument.all);
        let callers = argument.callers.iter().map(|(caller, counts)| {
            let (function, other) = caller.place();
            let mut json = view.json_node(function, other);
            add_counts(&mut json, counts);
            json
        });
        json["callers"] = json!(callers.collect::<Vec<_>>());
        if args.paths {
            let paths = argument.paths.iter().map(|(path, counts)| {
                let mut json = json_path(view, tables, *path);
                add_counts(&mut json, counts);
                json
            });
            json["paths"] = json!(paths.collect::<Vec<_>>());
        }
        json
    })?;
    writeln!(out, "}}")?;
    Ok(())
}

/// Returns an object for a path, without its values.
fn json_path(view: &RunView, tables: &Tables, path: Path) -> Value {
    let (functions, is_cut) = match path {
        Path::Known(path) => tables.path(path),
        Path::Unknown | Path::Rest => (Vec::new(), false),
    };
    let functions: Vec<Value> =
        functions.into_iter().map(|function| view.json_node(function, REST_NAME)).collect();
    let known = match path {
        Path::Known(_) if is_cut => "cut",
        Path::Known(_) => "yes",
        Path::Unknown => "no",
        Path::Rest => "rest",
    };
    json!({"path": functions, "known": known})
}

/// Adds what is known of values to an object.
fn add_counts(json: &mut Value, counts: &ValueCounts) {
    let kind = counts.kind;
    let all = counts.summary();
    let known = |value: u64| if kind.is_number() { json_number(kind, value) } else { Value::Null };
    json["kind"] = json!(match kind {
        ValueKind::Unsigned => "unsigned",
        ValueKind::Signed => "signed",
        ValueKind::Hex => "hex",
        ValueKind::Char => "char",
        ValueKind::Double => "double",
        ValueKind::Single => "single",
        ValueKind::Text => "text",
    });
    json["calls"] = json!(all.calls);
    let is_number = kind.is_number() && all.calls > 0;
    let exact = all.integer_sum.and_then(|sum| match (u64::try_from(sum), i64::try_from(sum)) {
        (Ok(sum), _) => Some(json!(sum)),
        (_, Ok(sum)) => Some(json!(sum)),
        _ => None,
    });
    json["sum"] = if is_number { exact.unwrap_or_else(|| json!(all.sum)) } else { Value::Null };
    json["mean"] = json!(is_number.then_some(all.mean));
    json["min"] = if is_number { known(all.least) } else { Value::Null };
    json["max"] = if is_number { known(all.greatest) } else { Value::Null };
    json["other_calls"] = json!(counts.others.count);
    json["missing"] = json!(counts.missing);
    let intervals = all.histogram.iter().enumerate().filter(|&(_, &count)| count > 0 && is_number);
    let intervals = intervals.map(|(interval, count)| {
        let (low, high) = bounds(interval);
        let float = |bound: Option<u128>| {
            bound.map(|bound| u64::try_from(bound).map_or_else(|_| json!(bound as f64), |bound| json!(bound)))
        };
        json!({"from": float(low), "below": float(high), "calls": count})
    });
    json["histogram"] = json!(intervals.collect::<Vec<_>>());
    let kept = counts.kept.iter().map(|kept| {
        json!({
            "value": json_number(kind, kept.value),
            "text": kept.text,
            "calls": kept.count,
            "error": kept.error,
        })
    });
    json["values"] = json!(kept.collect::<Vec<_>>());
}
