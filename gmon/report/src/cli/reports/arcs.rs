//! `gmon callers` and `gmon callees`: prints the measured times of the arcs into or out of functions.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use gmon_run::{ArcTimes, FunctionTimes};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::measured::{Measurement, NOT_HOOKED};
use crate::cli::measured_args::ArcsArgs;
use crate::cli::table::Table;
use crate::cli::text::percent;
use crate::cli::units::duration;

/// Which end of its arcs a function is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Caller,
    Callee,
}

/// A function that the user has named.
struct Named {
    function: u32,
    times: FunctionTimes,
    /// The arcs, with the function at the other end.
    arcs: Vec<(Option<u32>, ArcTimes)>,
}

/// Prints who called the functions.
///
/// # Errors
/// There is no such function, or `out` cannot be written to.
pub(crate) fn callers(measurement: &Measurement, args: &ArcsArgs, out: &mut impl Write) -> Result<()> {
    arcs(measurement, args, End::Callee, out)
}

/// Prints whom the functions called.
///
/// # Errors
/// There is no such function, or `out` cannot be written to.
pub(crate) fn callees(measurement: &Measurement, args: &ArcsArgs, out: &mut impl Write) -> Result<()> {
    arcs(measurement, args, End::Caller, out)
}

fn arcs(measurement: &Measurement, args: &ArcsArgs, end: End, out: &mut impl Write) -> Result<()> {
    let chosen = measurement.chosen(std::slice::from_ref(&args.name))?;
    let mut named = named(measurement, &chosen, end);
    for named in &mut named {
        named.arcs.truncate(args.rows.limit.unwrap_or(usize::MAX));
    }
    let (other, key) = if end == End::Callee { ("caller", "callers") } else { ("callee", "callees") };
    if measurement.args.shown.json {
        write!(out, "{{{}", measurement.json_head())?;
        array(out, "functions", &named, |named| json_named(measurement, named, key))?;
        writeln!(out, "}}")?;
        return Ok(());
    }
    measurement.head(out)?;
    for named in &named {
        let (name, module) = (measurement.name(named.function), measurement.module(named.function));
        let times = &named.times;
        let heading = format!(
            "{name} in {module}: {}, self {}, inclusive {}",
            gmon::counted(usize::try_from(times.calls).unwrap_or(usize::MAX), "call", "calls"),
            duration(times.self_ns).trim_end(),
            duration(times.inclusive_ns).trim_end(),
        );
        writeln!(out, "\n{}", measurement.style.heading(&heading))?;
        if named.arcs.is_empty() {
            let nobody = if end == End::Callee { "no calls" } else { "calls no hooked function" };
            writeln!(out, "{nobody}")?;
            continue;
        }
        let open = named.arcs.iter().any(|(_, arc)| arc.open > 0);
        let mut headings = vec!["calls", "self", "inclusive", "share", "min", "max"];
        headings.extend(open.then_some("open"));
        headings.extend([other, "module"]);
        let mut table = Table::new(headings, 2);
        for (function, arc) in &named.arcs {
            let ends = |ns| if arc.calls > arc.open { duration(ns) } else { "-".to_owned() };
            let mut texts = vec![
                arc.calls.to_string(),
                duration(arc.self_ns),
                duration(arc.inclusive_ns),
                percent(arc.inclusive_ns, times.inclusive_ns),
                ends(arc.min_ns),
                ends(arc.max_ns),
            ];
            texts.extend(open.then(|| arc.open.to_string()));
            texts.push(function.map_or_else(|| NOT_HOOKED.to_owned(), |function| measurement.name(function)));
            texts.push(function.map_or_else(String::new, |function| measurement.module(function)));
            table.push(texts);
        }
        table.print(false, measurement.style, out)?;
    }
    Ok(())
}

/// Returns the chosen functions with their arcs, the longest inclusive time first.
fn named(measurement: &Measurement, chosen: &[bool], end: End) -> Vec<Named> {
    let measured = &measurement.measured;
    let mut sums: BTreeMap<u32, (FunctionTimes, BTreeMap<Option<u32>, ArcTimes>)> = BTreeMap::new();
    for (function, _) in chosen.iter().enumerate().filter(|(_, chosen)| **chosen) {
        sums.insert(function as u32, Default::default());
    }
    for row in &measured.rows {
        if let Some((times, _)) = sums.get_mut(&row.function) {
            times.add(row);
        }
    }
    for arc in &measured.arcs {
        let (here, there) = match end {
            End::Callee => (Some(arc.callee), arc.caller),
            End::Caller => (arc.caller, Some(arc.callee)),
        };
        if let Some((_, arcs)) = here.and_then(|here| sums.get_mut(&here)) {
            arcs.entry(there).or_default().add(arc);
        }
    }
    let named = sums.into_iter().map(|(function, (times, arcs))| {
        let mut arcs: Vec<_> = arcs.into_iter().collect();
        arcs.sort_by_key(|(_, arc)| (Reverse(arc.inclusive_ns), Reverse(arc.calls)));
        Named { function, times, arcs }
    });
    let mut named: Vec<Named> = named.collect();
    named.sort_by_key(|named| Reverse(named.times.inclusive_ns));
    named
}

fn json_named(measurement: &Measurement, named: &Named, key: &str) -> Value {
    let arc = |(function, arc): &(Option<u32>, ArcTimes)| {
        let mut json = match function {
            Some(function) => measurement.json_function(*function),
            None => json!({"name": null, "demangled": null, "module": null}),
        };
        json["calls"] = json!(arc.calls);
        json["open"] = json!(arc.open);
        json["self_ns"] = json!(arc.self_ns);
        json["inclusive_ns"] = json!(arc.inclusive_ns);
        let closed = arc.calls > arc.open;
        json["min_ns"] = json!(closed.then_some(arc.min_ns));
        json["max_ns"] = json!(closed.then_some(arc.max_ns));
        json
    };
    let mut json = measurement.json_function(named.function);
    json["calls"] = json!(named.times.calls);
    json["self_ns"] = json!(named.times.self_ns);
    json["inclusive_ns"] = json!(named.times.inclusive_ns);
    json[key] = named.arcs.iter().map(arc).collect();
    json
}
