//! `gmon flat --spread`: prints for each function how unevenly the processes of a job have worked.

use std::borrow::Cow;
use std::io::Write;

use anyhow::{Result, bail};
use gprofinject_image::names::unambiguous;
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::spread::{Ranks, Row, Spread};
use crate::cli::table::Table;
use crate::cli::table_args::{Column, FlatArgs, Quantity};
use crate::cli::text::{Style, chosen_in_module, chosen_path, file_name, plain};
use crate::cli::units::amount;

/// The number of lines on a terminal that are no rows: the head, the headings, the sum, what is not shown, and the prompt.
const OTHER_LINES: usize = 7;

/// Prints the table.
///
/// # Errors
/// No function has such a name, there is no such column, or `out` cannot be written to.
pub(crate) fn spread(ranks: &Ranks, args: &FlatArgs, out: &mut impl Write) -> Result<()> {
    let has_times = ranks.total.self_ns.max > 0;
    let by = args.of.unwrap_or(if has_times { Quantity::Own } else { Quantity::Calls });
    let all = ranks.files.len();
    let spread = |row: &Row| if by == Quantity::Calls { row.calls } else { row.self_ns };
    let table = &args.common;
    let is_chosen = |row: &&Row| {
        chosen_path(&table.module, &row.module) && chosen_in_module(&table.function, &row.module, &row.name)
    };
    let mut rows: Vec<&Row> = ranks.functions.iter().filter(is_chosen).collect();
    if rows.is_empty() && !ranks.functions.is_empty() {
        bail!("no function is called {}", [&table.function[..], &table.module[..]].concat().join(" or "));
    }
    // Rows that are equal in a column stay sorted by name.
    match args.sort.unwrap_or(Column::Max) {
        Column::Min => rows.sort_by_key(|row| std::cmp::Reverse(spread(row).min(all))),
        Column::Mean => rows.sort_by(|a, b| spread(b).mean(all).total_cmp(&spread(a).mean(all))),
        Column::Max => rows.sort_by_key(|row| std::cmp::Reverse(spread(row).max)),
        Column::Imbalance => {
            rows.sort_by(|a, b| spread(b).imbalance(all).total_cmp(&spread(a).imbalance(all)))
        }
        Column::Name => {}
        column => {
            bail!("--sort {}: with --spread, it is one of min, mean, max, imbalance, name", column.name())
        }
    }
    let json = table.shown.json;
    let most = if json { table.rows.most() } else { table.rows.most_on_screen(OTHER_LINES) };
    let hidden = rows.len().saturating_sub(most);
    rows.truncate(most);
    if json {
        return write_json(ranks, &rows, hidden, out);
    }
    let what = if by == Quantity::Calls { "calls" } else { "self time" };
    let style = Style::new(table.shown.color);
    writeln!(out, "{what} of {}\n", gmon::counted(all, "process", "processes"))?;
    let names: Vec<&str> = rows.iter().map(|row| row.demangled.as_str()).collect();
    let names = if table.shown.full_names {
        names.into_iter().map(Cow::Borrowed).collect()
    } else {
        unambiguous(&names)
    };
    let headings = vec!["min", "mean", "max", "in rank", "imbalance", "function", "module"];
    let mut written = Table::new(headings, 2).optional(&["min", "in rank"]);
    for (row, name) in rows.into_iter().zip(names) {
        let name = if table.shown.no_demangle && !row.name.is_empty() { row.name.as_str() } else { &name };
        written.push(line(ranks, &spread(row), by, plain(name), file_name(&row.module)));
    }
    written.push(line(ranks, &spread(&ranks.total), by, "total".to_owned(), String::new()));
    written.print(true, style, out)?;
    if hidden > 0 {
        let hidden = gmon::counted(hidden, "function", "functions");
        writeln!(out, "{}", style.faint(format!("{hidden} more; -n 0 shows all")))?;
    }
    Ok(())
}

fn line(ranks: &Ranks, spread: &Spread, by: Quantity, name: String, module: String) -> Vec<String> {
    let all = ranks.files.len();
    let value =
        |value: u64| if by == Quantity::Calls { value.to_string() } else { amount(ranks.time, value) };
    let mean = match by {
        Quantity::Calls => format!("{:.1}", spread.mean(all)),
        Quantity::Own => amount(ranks.time, spread.mean(all).round() as u64),
    };
    let rank = if spread.max > 0 { rank(ranks, spread.max_at) } else { "-".to_owned() };
    let imbalance = format!("{:.2}", spread.imbalance(all));
    vec![value(spread.min(all)), mean, value(spread.max), rank, imbalance, name, module]
}

/// Returns the name of a process: its rank, or that of its file.
fn rank(ranks: &Ranks, index: usize) -> String {
    match ranks.files.get(index) {
        Some((_, Some(rank))) => rank.to_string(),
        Some((path, None)) => plain(&path.file_name().unwrap_or_default().to_string_lossy()),
        None => String::new(),
    }
}

fn write_json(ranks: &Ranks, rows: &[&Row], hidden: usize, out: &mut impl Write) -> Result<()> {
    let all = ranks.files.len();
    let spread = |spread: &Spread| {
        json!({
            "min": spread.min(all),
            "mean": spread.mean(all),
            "max": spread.max,
            "max_rank": if spread.max > 0 { Value::String(rank(ranks, spread.max_at)) } else { Value::Null },
            "imbalance": spread.imbalance(all),
        })
    };
    write!(out, "{{\"schema\":\"gmon-spread\",\"version\":1,\"processes\":{all},\"not_shown\":{hidden}")?;
    array(out, "files", &ranks.files, |(path, rank)| json!({"file": path.to_string_lossy(), "rank": rank}))?;
    array(out, "functions", rows, |row| {
        json!({
            "name": row.name,
            "demangled": row.demangled,
            "module": if row.module.is_empty() { Value::Null } else { json!(row.module) },
            "calls": spread(&row.calls),
            "self_ns": spread(&row.self_ns),
        })
    })?;
    let total = json!({"calls": spread(&ranks.total.calls), "self_ns": spread(&ranks.total.self_ns)});
    writeln!(out, ",\n\"total\":{total}}}")?;
    Ok(())
}
