//! `gmon diff`: prints what has changed between two runs.

use std::cmp::Reverse;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use gmon_export::diff::{ArcKey, Change, Cost, Diff, Key, diff};
use gmon_export::load::Detail;
use gmon_export::{Run, Time};
use serde_json::{Value, json};

use crate::cli::diff_args::{Compared, DiffArgs};
use crate::cli::json::array;
use crate::cli::run_view::{NOT_KNOWN, json_head};
use crate::cli::table::Table;
use crate::cli::text::{Style, plain, standard_output};
use crate::cli::units::duration;
use crate::cli::{files, run};

/// A change of a time by samples counts if it is larger than so many standard deviations of what chance does.
const SIGMAS: f64 = 3.0;

/// Two runs, and how they are compared.
struct Comparison {
    old: Run,
    new: Run,
    by: Compared,
    /// Whether the times of both runs are of one kind.
    has_times: bool,
    /// The old and the new total of what is compared.
    totals: (u64, u64),
    /// The change above which a function has become worse.
    threshold: f64,
}

/// Prints the differences. Returns whether something has become worse by more than the threshold.
///
/// # Errors
/// A file cannot be read, or the runs cannot be compared.
pub(crate) fn run(args: &DiffArgs) -> Result<bool> {
    if !(0.0..=f64::MAX).contains(&args.threshold) {
        bail!("--threshold {}: expected a number from 0 on", args.threshold);
    }
    let [old, new] = both(args)?;
    let comparison = Comparison::new(old, new, args)?;
    let mut found = diff(&comparison.old, &comparison.new);
    found.functions.sort_by_key(|change| Reverse(comparison.change_of(change).unsigned_abs()));
    found.arcs.sort_by_key(|change| Reverse(comparison.change_of(change).unsigned_abs()));
    let worse: Vec<&Change<Key>> =
        found.functions.iter().filter(|change| comparison.is_worse(change)).collect();
    let mut out = standard_output();
    if args.json {
        comparison.json(&found, &worse, &mut out)?;
    } else {
        comparison.text(&found, &worse, args, &mut out)?;
    }
    out.flush()?;
    Ok(!worse.is_empty())
}

/// Reads both runs. A program is that of all results after it, up to the next program.
fn both(args: &DiffArgs) -> Result<[Run; 2]> {
    let mut program: Option<&PathBuf> = None;
    let mut runs = Vec::new();
    for path in &args.files {
        if files::is_elf(&files::read_start(path)?) {
            program = Some(path);
            continue;
        }
        let paths: Vec<PathBuf> = program.into_iter().chain([path]).cloned().collect();
        runs.push(run::load_files(&paths, &args.program, &args.form, Detail::Functions)?);
    }
    match <[Run; 2]>::try_from(runs) {
        Ok(runs) => Ok(runs),
        Err(runs) => bail!(
            "{} named, expected two: the old one and the new one",
            gmon::counted(runs.len(), "result is", "results are")
        ),
    }
}

impl Comparison {
    fn new(old: Run, new: Run, args: &DiffArgs) -> Result<Comparison> {
        let has_times = match (old.time, new.time) {
            (Time::Estimated, Time::Estimated) => true,
            (old, new) => old.is_measured() && new.is_measured(),
        };
        let by = args.sort.unwrap_or(if has_times { Compared::Own } else { Compared::Calls });
        if !has_times && by != Compared::Calls {
            bail!(
                "the times cannot be compared: those of one run are measured, those of the other are samples, or there \
                 are none; --sort calls compares calls"
            );
        }
        let total = |run: &Run| if by == Compared::Calls { run.calls() } else { run.self_ns() };
        let totals = (total(&old), total(&new));
        let threshold = totals.0 as f64 * args.threshold / 100.0;
        Ok(Comparison { old, new, by, has_times, totals, threshold })
    }

    fn value(&self, cost: Cost) -> u64 {
        match self.by {
            Compared::Own => cost.self_ns,
            Compared::Inclusive => cost.inclusive_ns,
            Compared::Calls => cost.calls,
        }
    }

    fn change_of<K>(&self, change: &Change<K>) -> i128 {
        let (old, new) = change.costs();
        i128::from(self.value(new)) - i128::from(self.value(old))
    }

    /// Whether something has become worse by more than the threshold, and by more than chance does.
    fn is_worse<K>(&self, change: &Change<K>) -> bool {
        let (old, new) = change.costs();
        let grown = self.change_of(change) as f64;
        let sampled = self.old.time == Time::Estimated && self.by != Compared::Calls;
        let chance = if sampled {
            // The number of samples in a function is a Poisson variable: its variance is the number itself.
            let variance = |cost: Cost, run: &Run| self.value(cost) as f64 * run.sample_period_ns as f64;
            SIGMAS * (variance(old, &self.old) + variance(new, &self.new)).sqrt()
        } else {
            0.0
        };
        grown > self.threshold && grown > chance
    }

    /// Returns what does not occur in both runs with the same value.
    fn changed<'c, K>(&'c self, changes: &'c [Change<K>]) -> impl Iterator<Item = &'c Change<K>> {
        let value = |cost: Option<Cost>| cost.map(|cost| self.value(cost));
        changes.iter().filter(move |change| value(change.old) != value(change.new))
    }

    fn text(
        &self,
        found: &Diff,
        worse: &[&Change<Key>],
        args: &DiffArgs,
        out: &mut impl Write,
    ) -> Result<()> {
        let style = Style::new(args.color);
        for (title, run) in [("old", &self.old), ("new", &self.new)] {
            let time = match run.time {
                Time::None => String::new(),
                Time::Estimated => format!(", {} CPU time", duration(run.self_ns()).trim_end()),
                Time::Measured { .. } => format!(", {} wall time", duration(run.self_ns()).trim_end()),
            };
            let calls = gmon::counted(run.calls(), "call", "calls");
            writeln!(out, "{title}: {}: {calls}{time}", plain(&run.program))?;
        }
        let limit = if args.limit == 0 { usize::MAX } else { args.limit };
        let mut hidden = 0;
        for (title, worse) in [("worse: function", true), ("better: function", false)] {
            let is_of_kind = |change: &&Change<Key>| (self.change_of(change) > 0) == worse;
            let rows = || self.changed(&found.functions).filter(is_of_kind);
            let first = rows().take(limit).map(|change| (change, function(&change.key)));
            self.table(title, first, style, out)?;
            hidden += rows().count().saturating_sub(limit);
        }
        for (title, worse) in [("worse: caller -> function", true), ("better: caller -> function", false)] {
            let is_of_kind = |change: &&Change<ArcKey>| (self.change_of(change) > 0) == worse;
            let rows = self.changed(&found.arcs).filter(is_of_kind).take(limit);
            self.table(title, rows.map(|change| (change, arc(&change.key))), style, out)?;
        }
        if hidden > 0 {
            writeln!(
                out,
                "\nnot shown: {}; --limit selects",
                gmon::counted(hidden, "function", "functions")
            )?;
        }
        let (what, part) = (self.by.name(), args.threshold);
        match worse {
            [] => writeln!(out, "\nno function has become worse by more than {part} % of all {what}")?,
            [first, ..] => {
                let number = gmon::counted(worse.len(), "function has", "functions have");
                let name = function(&first.key);
                writeln!(
                    out,
                    "\n{number} become worse by more than {part} % of all {what}, first of all {name}: {}",
                    self.percent(self.change_of(first))
                )?;
            }
        }
        Ok(())
    }

    fn table<'c, K: 'c>(
        &self,
        title: &'static str,
        rows: impl Iterator<Item = (&'c Change<K>, String)>,
        style: Style,
        out: &mut impl Write,
    ) -> Result<()> {
        let mut headings = vec!["change %"];
        if self.has_times {
            headings.extend(["self", "was", "inclusive", "was"]);
        }
        headings.extend(["calls", "was", title]);
        let mut table = Table::new(headings, 1);
        let mut any = false;
        for (change, name) in rows {
            any = true;
            let (old, new) = change.costs();
            let mut row = vec![self.percent(self.change_of(change))];
            if self.has_times {
                row.extend([new.self_ns, old.self_ns, new.inclusive_ns, old.inclusive_ns].map(duration));
            }
            row.extend([new.calls, old.calls].map(|calls| calls.to_string()));
            let mark = match (change.old, change.new) {
                (None, _) => " (new)",
                (_, None) => " (gone)",
                _ => "",
            };
            row.push(name + mark);
            table.push(row);
        }
        writeln!(out)?;
        if !any {
            writeln!(out, "{title}: none")?;
            return Ok(());
        }
        Ok(table.print(false, style, out)?)
    }

    /// Returns a change in percent of the old run's total.
    fn percent(&self, change: i128) -> String {
        match self.totals.0 {
            0 => "new".to_owned(),
            total => format!("{:+.2}", 100.0 * change as f64 / total as f64),
        }
    }

    fn json(&self, found: &Diff, worse: &[&Change<Key>], out: &mut impl Write) -> Result<()> {
        write!(out, "{{\"schema\":\"gmon-diff\",\"version\":1,\"compared\":{}", json!(self.by.name()))?;
        write!(out, ",\"total_old\":{},\"total_new\":{}", self.totals.0, self.totals.1)?;
        write!(out, ",\n\"old\":{{{}}}", json_head(&self.old))?;
        write!(out, ",\n\"new\":{{{}}}", json_head(&self.new))?;
        let functions: Vec<&Change<Key>> = found.functions.iter().collect();
        let change = |change: &Change<Key>| {
            let mut json = json_key(&change.key);
            add_costs(&mut json, change.old, change.new);
            json
        };
        array(out, "worse", worse, |worse| change(worse))?;
        array(out, "functions", &functions, |function| change(function))?;
        array(out, "arcs", &found.arcs, |arc| {
            let mut json = json!({
                "caller": arc.key.caller.as_ref().map(json_key),
                "function": json_key(&arc.key.callee),
            });
            add_costs(&mut json, arc.old, arc.new);
            json
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}

impl Compared {
    fn name(self) -> &'static str {
        match self {
            Compared::Own | Compared::Inclusive => "time",
            Compared::Calls => "calls",
        }
    }
}

fn function(key: &Key) -> String {
    match key.module.as_str() {
        "" => plain(&key.name),
        module => format!("{} ({})", plain(&key.name), plain(module)),
    }
}

fn arc(key: &ArcKey) -> String {
    let caller = key.caller.as_ref().map_or_else(|| NOT_KNOWN.to_owned(), function);
    format!("{caller} -> {}", function(&key.callee))
}

fn json_key(key: &Key) -> Value {
    json!({"demangled": key.name, "module": if key.module.is_empty() { Value::Null } else { json!(key.module) }})
}

fn add_costs(json: &mut Value, old: Option<Cost>, new: Option<Cost>) {
    let cost = |cost: Option<Cost>| {
        let value = |Cost { calls, self_ns, inclusive_ns }| json!({"calls": calls, "self_ns": self_ns, "inclusive_ns": inclusive_ns});
        cost.map_or(Value::Null, value)
    };
    json["old"] = cost(old);
    json["new"] = cost(new);
}
