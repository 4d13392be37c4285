//! `gmon ranks`: prints for each function how unevenly the processes of a job have worked.

use std::io::Write;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::ranks::{Ranks, Row, Spread};
use crate::cli::ranks_args::{By, Column, RanksArgs};
use crate::cli::table::Table;
use crate::cli::text::{Style, chosen_function, plain};
use crate::cli::units::duration;

/// Prints the table.
///
/// # Errors
/// No function has such a name, or `out` cannot be written to.
pub(crate) fn ranks(ranks: &Ranks, args: &RanksArgs, out: &mut impl Write) -> Result<()> {
    let has_times = ranks.total.self_ns.max > 0;
    let by = args.by.unwrap_or(if has_times { By::Own } else { By::Calls });
    let all = ranks.files.len();
    let spread = |row: &Row| if by == By::Calls { row.calls } else { row.self_ns };
    let mut rows: Vec<&Row> =
        ranks.functions.iter().filter(|row| chosen_function(&args.function, &row.name)).collect();
    if rows.is_empty() && !args.function.is_empty() {
        bail!("no function is called {}", args.function.join(" or "));
    }
    // Rows that are equal in a column stay sorted by name.
    match args.sort {
        Column::Min => rows.sort_by_key(|row| std::cmp::Reverse(spread(row).min(all))),
        Column::Mean => rows.sort_by(|a, b| spread(b).mean(all).total_cmp(&spread(a).mean(all))),
        Column::Max => rows.sort_by_key(|row| std::cmp::Reverse(spread(row).max)),
        Column::Imbalance => {
            rows.sort_by(|a, b| spread(b).imbalance(all).total_cmp(&spread(a).imbalance(all)))
        }
        Column::Name => {}
    }
    rows.truncate(args.rows.limit.unwrap_or(usize::MAX));
    if args.shown.json {
        return write_json(ranks, &rows, out);
    }
    let what = if by == By::Calls { "calls" } else { "self time" };
    let style = Style::new(args.shown.color);
    writeln!(out, "{what} of {}\n", gmon::counted(all, "process", "processes"))?;
    let mut table = Table::new(vec!["min", "mean", "max", "in rank", "imbalance", "name", "module"], 2);
    for row in rows {
        let name = if args.shown.no_demangle { &row.name } else { &row.demangled };
        let module = row.module.rsplit('/').next().unwrap_or_default();
        table.push(line(ranks, &spread(row), by, plain(name), plain(module)));
    }
    table.push(line(ranks, &spread(&ranks.total), by, "total".to_owned(), String::new()));
    table.print(true, style, out)?;
    Ok(())
}

fn line(ranks: &Ranks, spread: &Spread, by: By, name: String, module: String) -> Vec<String> {
    let all = ranks.files.len();
    let value = |value: u64| if by == By::Calls { value.to_string() } else { duration(value) };
    let mean = match by {
        By::Calls => format!("{:.1}", spread.mean(all)),
        By::Own => duration(spread.mean(all).round() as u64),
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

fn write_json(ranks: &Ranks, rows: &[&Row], out: &mut impl Write) -> Result<()> {
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
    write!(out, "{{\"processes\":{all}")?;
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
