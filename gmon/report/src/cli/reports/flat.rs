//! `gmon flat`: prints a table of functions with their times and calls.

use std::io::Write;

use anyhow::Result;
use gmon_export::Function;
use serde_json::json;

use crate::cli::json::array;
use crate::cli::run_args::{FlatArgs, Order};
use crate::cli::run_view::{RunView, per_call};
use crate::cli::table::Table;
use crate::cli::units::duration;

/// Prints the table.
///
/// # Errors
/// The run has no such column, or `out` cannot be written to.
pub(crate) fn flat(view: &RunView, args: &FlatArgs, out: &mut impl Write) -> Result<()> {
    let run = view.run;
    let mut rows = view.sorted(args.sort, Order::Own)?;
    // A function that only calls others says nothing here.
    rows.retain(|&index| {
        let function = &run.functions[index as usize];
        (function.calls, function.self_ns, function.samples, function.instructions) != (0, 0, 0, 0)
    });
    rows.truncate(args.common.rows.limit.unwrap_or(usize::MAX));
    let rows: Vec<&Function> = rows.iter().map(|&index| &run.functions[index as usize]).collect();
    if args.common.shown.json {
        write!(out, "{{{}", view.json_head())?;
        array(out, "functions", &rows, |function| {
            let mut json = view.json_function(function);
            json["address"] = json!(function.address);
            json["calls"] = json!(function.calls);
            json["calls_not_recursive"] = json!(function.primitive);
            json["samples"] = json!(function.samples);
            json["self_ns"] = json!(function.self_ns);
            json["inclusive_ns"] = json!(function.inclusive_ns);
            if run.has_instructions {
                json["instructions"] = json!(function.instructions);
            }
            json["cycle"] = json!(function.cycle.map(|cycle| cycle + 1));
            json
        })?;
        writeln!(out, "}}")?;
        return Ok(());
    }
    view.head(out)?;
    writeln!(out)?;
    let (times, instructions) = (run.time.is_some(), run.has_instructions);
    let is_recursive = rows.iter().any(|function| function.primitive != function.calls);
    let mut headings = Vec::new();
    if times {
        headings.extend(["self %", "self", "cumulative", "inclusive"]);
    }
    headings.push("calls");
    if is_recursive {
        headings.push("not recursive");
    }
    if times {
        headings.extend(["self/call", "inclusive/call"]);
    }
    if instructions {
        headings.push("instructions");
    }
    headings.push("function");
    if view.has_modules() {
        headings.push("module");
    }
    let names = 1 + usize::from(view.has_modules());
    let mut table = Table::new(headings, names);
    let mut cumulative = 0_u64;
    for function in rows {
        cumulative = cumulative.saturating_add(function.self_ns);
        let each = |ns| per_call(ns, function).map_or_else(String::new, duration);
        let mut texts = Vec::new();
        if times {
            texts.push(view.share(function.self_ns));
            texts.extend([function.self_ns, cumulative, function.inclusive_ns].map(duration));
        }
        // A function that has samples and no calls is not hooked.
        let counted = |calls: u64| if function.calls == 0 { String::new() } else { calls.to_string() };
        texts.push(counted(function.calls));
        if is_recursive {
            texts.push(counted(function.primitive));
        }
        if times {
            texts.extend([function.self_ns, function.inclusive_ns].map(each));
        }
        if instructions {
            // All functions that ran have executed some, if theirs were counted.
            let counted = function.instructions > 0;
            texts.push(if counted { function.instructions.to_string() } else { String::new() });
        }
        let cycle = function.cycle.map_or_else(String::new, |cycle| format!(" <cycle {}>", cycle + 1));
        texts.push(view.name(function) + &cycle);
        if view.has_modules() {
            texts.push(view.module(function));
        }
        table.push(texts);
    }
    Ok(table.print(false, view.style, out)?)
}
