//! `gmon functions` and `gmon files`: prints how many instructions and basic blocks were executed. The numbers are those of
//! Weinberger's and Bishop's tables.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::{Result, bail};
use gmon_blocks::{Sums, Tally};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::report_args::{Column, SumsArgs};
use crate::cli::text::plain;
use crate::cli::view::View;

/// A row of the table.
struct Row {
    name: String,
    address: u64,
    /// The sums; `None` if only calls were counted.
    sums: Option<Sums>,
    calls: u64,
    json: Value,
}

/// Prints the table of functions.
///
/// # Errors
/// There is no function to show, or `out` cannot be written to.
pub(crate) fn functions(view: &View, args: &SumsArgs, out: &mut impl Write) -> Result<()> {
    let report = &view.report;
    let mut rows = Vec::new();
    for (index, function) in report.functions.iter().enumerate() {
        if function.part_of.is_some() || !view.chooses(index) {
            continue;
        }
        let mut sums = report.sums(index);
        let mut counted = report.is_counted(index);
        for &part in report.parts(index) {
            sums.add(&Sums { calls: 0, ..report.sums(part) });
            counted |= report.is_counted(part);
        }
        let symbol = &function.symbol;
        let (file, line) = view.json_place(symbol.start);
        let mut json = view.json_function(index);
        json["address"] = json!(symbol.start);
        json["size"] = json!(symbol.size);
        (json["file"], json["line"]) = (file, line);
        rows.push(Row {
            name: view.name(index),
            address: symbol.start,
            sums: counted.then_some(sums),
            calls: function.calls,
            json,
        });
    }
    view.need_function(!rows.is_empty())?;
    table(view, args, rows, "functions", out)
}

/// Prints the table of files.
///
/// # Errors
/// There is no line information, or `out` cannot be written to.
pub(crate) fn files(view: &View, args: &SumsArgs, out: &mut impl Write) -> Result<()> {
    if args.sort == Column::Address {
        bail!("--sort address: files have none");
    }
    let lines = view.lines()?;
    let tally = Tally::of(&view.report);
    let mut rows = Vec::new();
    for (&file, counts) in &tally.files {
        let path = &lines.files()[file];
        let chosen = |&&(function, _): &&(usize, u32)| view.chooses(function);
        let any = view.args.function.is_empty() || counts.functions.iter().any(|f| chosen(&f));
        if !view.chooses_file(path) || !any {
            continue;
        }
        let not_counted = counts.functions.iter().filter(|(f, _)| !view.report.is_counted(*f)).count();
        let json = json!({
            "file": path,
            "functions": counts.functions.len(),
            "functions_not_counted": not_counted,
        });
        let sums = Some(counts.sums).filter(|sums| sums.bb > 0 || sums.i > 0);
        rows.push(Row { name: plain(path), address: 0, sums, calls: counts.sums.calls, json });
    }
    view.need_function(!rows.is_empty())?;
    table(view, args, rows, "files", out)
}

/// Prints the table; that of files has columns for basic blocks as well.
fn table(view: &View, args: &SumsArgs, mut rows: Vec<Row>, what: &str, out: &mut impl Write) -> Result<()> {
    let total = rows.iter().filter_map(|row| row.sums).fold(Sums::default(), |mut total, sums| {
        total.add(&sums);
        total
    });
    sort(&mut rows, args.sort);
    let shown = rows.len().min(args.rows.limit.unwrap_or(usize::MAX));
    let not_counted = rows.iter().filter(|row| row.sums.is_none()).count();
    rows.truncate(shown);
    if view.args.shown.json {
        write!(out, "{{{}", view.json_head())?;
        array(out, what, &rows, |row| {
            let mut json = row.json.clone();
            json["counted"] = json!(row.sums.is_some());
            json["calls"] = json!(row.calls);
            merge(&mut json, row.sums);
            json
        })?;
        let mut sum = json!({"calls": total.calls});
        merge(&mut sum, Some(total));
        writeln!(out, ",\n\"total\":{sum},\"not_counted\":{not_counted}}}")?;
        return Ok(());
    }
    let blocks = what == "files";
    let style = view.style;
    let mut heading =
        format!("{:>16} {:>12} {:>12} {:>9}", "instructions run", "calls", "instructions", "never run");
    if blocks {
        heading += &format!(" {:>14} {:>8} {:>9}", "blocks run", "blocks", "never run");
    }
    writeln!(out, "{}", style.heading(&format!("{heading}  name")))?;
    let line = |sums: &Sums| {
        let mut line = format!("{:>16} {:>12} {:>12} {:>9}", sums.ie, sums.calls, sums.i, sums.ine);
        if blocks {
            line += &format!(" {:>14} {:>8} {:>9}", sums.bbe, sums.bb, sums.bbne);
        }
        line
    };
    for row in &rows {
        match &row.sums {
            Some(sums) => {
                let text = format!("{}  {}", line(&Sums { calls: row.calls, ..*sums }), row.name);
                writeln!(out, "{}", style.count(Some(sums.ie), text))?;
            }
            None => {
                let mut text = format!("{:>16} {:>12} {:>12} {:>9}", "?", row.calls, "?", "?");
                if blocks {
                    text += &format!(" {:>14} {:>8} {:>9}", "?", "?", "?");
                }
                writeln!(out, "{}", style.count(None, format!("{text}  {}", row.name)))?;
            }
        }
    }
    writeln!(out, "{}", style.heading(&format!("{}  total", line(&total))))?;
    if not_counted > 0 {
        writeln!(out, "?: not counted ({not_counted} {what})")?;
    }
    Ok(())
}

fn merge(json: &mut Value, sums: Option<Sums>) {
    let columns =
        |s: Sums| [("ie", s.ie), ("i", s.i), ("ine", s.ine), ("bbe", s.bbe), ("bb", s.bb), ("bbne", s.bbne)];
    for (name, value) in sums.map(columns).into_iter().flatten() {
        json[name] = json!(value);
    }
}

/// Sorts the rows. Those that were not counted come last, and equal ones are sorted by name.
fn sort(rows: &mut [Row], column: Column) {
    let key = |row: &Row| {
        let sums = row.sums.unwrap_or_default();
        match column {
            Column::Ie => sums.ie,
            Column::Calls => row.calls,
            Column::I => sums.i,
            Column::Ine => sums.ine,
            Column::Bbe => sums.bbe,
            Column::Bb => sums.bb,
            Column::Bbne => sums.bbne,
            Column::Name | Column::Address => 0,
        }
    };
    match column {
        Column::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        Column::Address => rows.sort_by_key(|row| row.address),
        _ => rows.sort_by_cached_key(|row| {
            let last = row.sums.is_none() && column != Column::Calls;
            (last, Reverse(key(row)), row.name.clone())
        }),
    }
}
