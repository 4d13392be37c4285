//! `gmon diff`: prints what has changed between two runs.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::Result;
use gmon_export::diff::{ArcKey, Change, Cost, Diff, Key};
use gmon_export::{Run, Time};
use gmon_run::{GENERATED, PYTHON};
use gprofinject_image::names::short;
use serde_json::{Value, json};

use crate::cli::comparison::{Comparison, change_of};
use crate::cli::diff_args::{Compared, DiffArgs};
use crate::cli::json::array;
use crate::cli::run_view::{NOT_KNOWN, json_head};
use crate::cli::table::Table;
use crate::cli::text::{Style, plain};
use crate::cli::units::duration;

/// The number of rows of a table unless the user wants others.
const USUAL: usize = 10;

/// Prints for each quantity what has changed, and at the end whether something has become worse.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn text(comparison: &Comparison, args: &DiffArgs, out: &mut impl Write) -> Result<()> {
    let style = Style::new(args.color);
    for (title, run) in [("old", comparison.old), ("new", comparison.new)] {
        writeln!(out, "{title}: {}: {}", plain(&run.program), sums(run))?;
    }
    let text = Text { comparison, style, full: args.full_names, limit: args.rows(USUAL) };
    for &by in &comparison.gates {
        text.exact_or_certain(by, out)?;
    }
    for &by in &comparison.shown {
        text.exact_or_certain(by, out)?;
    }
    writeln!(out)?;
    let mut is_worse = false;
    for &by in &comparison.gates {
        let worse = comparison.worse(by);
        let [first, ..] = worse.as_slice() else { continue };
        is_worse = true;
        let number = gmon::counted(worse.len(), "function has", "functions have");
        let percent = percent(change_of(by, first), comparison.totals(by).0);
        writeln!(
            out,
            "{}: {number} become worse by more than {} % of all, first of all {}: {percent} %",
            comparison.name(by),
            args.threshold,
            text.function(&first.key),
        )?;
    }
    if !is_worse {
        let what: Vec<_> = comparison.gates.iter().map(|&by| comparison.name(by)).collect();
        writeln!(
            out,
            "{}: no function has become worse by more than {} % of all",
            what.join(", "),
            args.threshold
        )?;
    }
    Ok(())
}

/// Returns what a run has done in all, in words.
fn sums(run: &Run) -> String {
    let time = match run.time {
        Time::None => String::new(),
        Time::Sampled | Time::Estimated => format!(", {} CPU time", duration(run.self_ns()).trim_end()),
        Time::Executed => format!(", {}", gmon::counted(run.self_ns(), "instruction", "instructions")),
        Time::Measured { .. } => format!(", {} wall time", duration(run.self_ns()).trim_end()),
    };
    format!("{}{time}", gmon::counted(run.calls(), "call", "calls"))
}

/// How tables of changes are printed.
struct Text<'c> {
    comparison: &'c Comparison<'c>,
    style: Style,
    /// Whether names have their parameters and template arguments.
    full: bool,
    limit: usize,
}

impl Text<'_> {
    /// Prints what of a quantity has changed: of times only what chance does not explain.
    fn exact_or_certain(&self, by: Compared, out: &mut impl Write) -> Result<()> {
        let comparison = self.comparison;
        let (old, new) = comparison.totals(by);
        let grown = percent(i128::from(new) - i128::from(old), old);
        let is_time = !comparison.executed && matches!(by, Compared::Own | Compared::Inclusive);
        writeln!(out)?;
        if is_time {
            let spread = match comparison.spread {
                Some(spread) => format!(
                    "functions with as many calls as before differ by {:.1} % (median), so larger changes are shown only",
                    100.0 * spread
                ),
                None => {
                    "too few functions have as many calls as before to tell how far times spread".to_owned()
                }
            };
            writeln!(
                out,
                "{}",
                self.style.wrap(&format!("{}: {grown} % in all; {spread}", comparison.name(by)))
            )?;
        }
        let changed = |change: &&Change<Key>| change_of(by, change) != 0 && comparison.is_certain(by, change);
        let mut functions: Vec<_> = comparison.found.functions.iter().filter(changed).collect();
        functions.sort_by_key(|change| Reverse(change_of(by, change).unsigned_abs()));
        let is_changed =
            |change: &&Change<ArcKey>| change_of(by, change) != 0 && comparison.is_certain(by, change);
        let mut arcs: Vec<_> = comparison.found.arcs.iter().filter(is_changed).collect();
        arcs.sort_by_key(|change| Reverse(change_of(by, change).unsigned_abs()));
        if functions.is_empty() && arcs.is_empty() {
            writeln!(out, "{}: none has changed", comparison.name(by))?;
            return Ok(());
        }
        if !is_time {
            writeln!(out, "{}: {grown} % in all", comparison.name(by))?;
        }
        let mut hidden = 0;
        for (title, worse) in [("worse: function", true), ("better: function", false)] {
            let rows = || functions.iter().filter(|change| (change_of(by, change) > 0) == worse);
            hidden += rows().count().saturating_sub(self.limit);
            self.table(
                by,
                title,
                rows().take(self.limit).map(|&change| (change, self.function(&change.key))),
                out,
            )?;
        }
        for (title, worse) in [("worse: caller -> function", true), ("better: caller -> function", false)] {
            let rows = arcs.iter().filter(|change| (change_of(by, change) > 0) == worse).take(self.limit);
            self.table(by, title, rows.map(|&change| (change, self.arc(&change.key))), out)?;
        }
        if hidden > 0 {
            let hidden = gmon::counted(hidden, "function", "functions");
            writeln!(out, "{}", self.style.faint(format!("{hidden} more; -n 0 shows all")))?;
        }
        Ok(())
    }

    /// Prints a table, or nothing without rows.
    fn table<'k, K: 'k>(
        &self,
        by: Compared,
        title: &'static str,
        rows: impl Iterator<Item = (&'k Change<K>, String)>,
        out: &mut impl Write,
    ) -> Result<()> {
        let mut headings = vec!["change %"];
        match by {
            Compared::Own => headings.extend(["self", "was"]),
            Compared::Inclusive => headings.extend(["inclusive", "was"]),
            Compared::Instructions => headings.extend(["instructions", "was"]),
            Compared::Calls => {}
        }
        headings.extend(["calls", "was", title]);
        let mut table = Table::new(headings, 1);
        let total = self.comparison.totals(by).0;
        let mut is_empty = true;
        let time = |ns: u64| if self.comparison.executed { ns.to_string() } else { duration(ns) };
        for (change, name) in rows {
            is_empty = false;
            let (old, new) = change.costs();
            let mut row = vec![percent(change_of(by, change), total)];
            match by {
                Compared::Own => row.extend([new.self_ns, old.self_ns].map(time)),
                Compared::Inclusive => row.extend([new.inclusive_ns, old.inclusive_ns].map(time)),
                Compared::Instructions => {
                    row.extend([new.instructions, old.instructions].map(|n| n.to_string()))
                }
                Compared::Calls => {}
            }
            // What does not occur in a run has no number of calls there.
            row.extend(
                [change.new, change.old]
                    .map(|cost| cost.map_or_else(String::new, |cost| cost.calls.to_string())),
            );
            let mark = match (change.old, change.new) {
                (None, _) => " (new)",
                (_, None) => " (gone)",
                _ => "",
            };
            row.push(name + mark);
            table.push(row);
        }
        if !is_empty {
            table.print(false, self.style, out)?;
        }
        Ok(())
    }

    fn function(&self, key: &Key) -> String {
        let is_whole = self.full || [GENERATED, PYTHON].contains(&&*key.module);
        let name = if is_whole { plain(&key.name) } else { plain(&short(&key.name)) };
        match key.module.as_str() {
            "" => name,
            module => format!("{name} ({})", plain(module)),
        }
    }

    fn arc(&self, key: &ArcKey) -> String {
        let caller = key.caller.as_ref().map_or_else(|| NOT_KNOWN.to_owned(), |caller| self.function(caller));
        format!("{caller} -> {}", self.function(&key.callee))
    }
}

/// Returns a change in percent of the old run's total.
fn percent(change: i128, total: u64) -> String {
    match total {
        0 => "new".to_owned(),
        total => format!("{:+.2}", 100.0 * change as f64 / total as f64),
    }
}

/// Prints the functions and arcs of both runs as JSON: at most so many of each, those that have changed most.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn json(comparison: &Comparison, limit: usize, out: &mut impl Write) -> Result<()> {
    let names: Vec<_> = comparison.gates.iter().map(|&by| comparison.name(by)).collect();
    write!(out, "{{\"schema\":\"gmon-diff\",\"version\":1,\"compared\":{}", json!(names))?;
    write!(
        out,
        ",\"threshold_percent\":{},\"spread\":{}",
        json!(comparison.threshold),
        json!(comparison.spread)
    )?;
    write!(out, ",\n\"old\":{{{}}}", json_head(comparison.old))?;
    write!(out, ",\n\"new\":{{{}}}", json_head(comparison.new))?;
    let change = |change: &Change<Key>| {
        let mut json = json_key(&change.key);
        add_costs(&mut json, comparison, change.old, change.new);
        json
    };
    let worse: Vec<(&str, &Change<Key>)> = comparison
        .gates
        .iter()
        .flat_map(|&by| comparison.worse(by).into_iter().map(move |w| (comparison.name(by), w)))
        .collect();
    let Diff { functions, arcs } = &comparison.found;
    let not_shown = [worse.len(), functions.len(), arcs.len()].map(|all| all.saturating_sub(limit));
    let [of_worse, of_functions, of_arcs] = not_shown;
    let not_shown = json!({"worse": of_worse, "functions": of_functions, "arcs": of_arcs});
    write!(out, ",\n\"not_shown\":{not_shown}")?;
    let functions = most_changed(functions, comparison, limit);
    let arcs = most_changed(arcs, comparison, limit);
    array(out, "worse", &worse[..worse.len().min(limit)], |(by, worse)| {
        let mut json = change(worse);
        json["by"] = json!(by);
        json
    })?;
    array(out, "functions", &functions, |function| change(function))?;
    array(out, "arcs", &arcs, |arc| {
        let mut json = json!({
            "caller": arc.key.caller.as_ref().map(json_key),
            "function": json_key(&arc.key.callee),
        });
        add_costs(&mut json, comparison, arc.old, arc.new);
        json
    })?;
    writeln!(out, "}}")?;
    Ok(())
}

/// Returns at most so many changes: all in their order, or those by which the first of the quantities that decide has changed most.
fn most_changed<'c, K>(
    changes: &'c [Change<K>],
    comparison: &Comparison,
    limit: usize,
) -> Vec<&'c Change<K>> {
    let mut all: Vec<_> = changes.iter().collect();
    if all.len() > limit {
        let by = comparison.gates.first().copied().unwrap_or(Compared::Calls);
        all.sort_by_key(|change| Reverse(change_of(by, change).unsigned_abs()));
        all.truncate(limit);
    }
    all
}

fn json_key(key: &Key) -> Value {
    json!({"demangled": key.name, "module": if key.module.is_empty() { Value::Null } else { json!(key.module) }})
}

fn add_costs(json: &mut Value, comparison: &Comparison, old: Option<Cost>, new: Option<Cost>) {
    let cost = |cost: Option<Cost>| {
        let Some(cost) = cost else { return Value::Null };
        let mut json = json!({"calls": cost.calls});
        if comparison.has_times {
            json["self_ns"] = json!(cost.self_ns);
            json["inclusive_ns"] = json!(cost.inclusive_ns);
        }
        if comparison.gates.contains(&Compared::Instructions) {
            json["instructions"] = json!(cost.instructions);
        }
        json
    };
    json["old"] = cost(old);
    json["new"] = cost(new);
}
