//! `gmon lines --by function` and `--by file`: prints how many instructions and basic blocks were executed. The numbers are those of
//! Weinberger's and Bishop's tables.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::Result;
use gmon_blocks::{Sums, Tally};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::report_args::{Column, LinesArgs};
use crate::cli::table::Table;
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
pub(crate) fn functions(view: &View, args: &LinesArgs, out: &mut impl Write) -> Result<()> {
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
    view.need_file(!rows.is_empty())?;
    table(view, args, rows, "functions", out)
}

/// Prints the table of files.
///
/// # Errors
/// There is no line information, or `out` cannot be written to.
pub(crate) fn files(view: &View, args: &LinesArgs, out: &mut impl Write) -> Result<()> {
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
    view.need_file(!rows.is_empty())?;
    table(view, args, rows, "files", out)
}

/// Prints the table; that of files has columns for basic blocks as well.
fn table(view: &View, args: &LinesArgs, mut rows: Vec<Row>, what: &str, out: &mut impl Write) -> Result<()> {
    let total = rows.iter().filter_map(|row| row.sums).fold(Sums::default(), |mut total, sums| {
        total.add(&sums);
        total
    });
    sort(&mut rows, args.sort.unwrap_or(Column::Ie));
    let shown = rows.len().min(args.rows.limit.unwrap_or(usize::MAX));
    let not_counted = rows.iter().filter(|row| row.sums.is_none()).count();
    rows.truncate(shown);
    view.begin(out)?;
    if view.args.shown.json {
        array(out, what, &rows, |row| {
            let mut json = row.json.clone();
            json["counted"] = json!(row.sums.is_some());
            json["calls"] = json!(row.calls);
            merge(&mut json, row.sums);
            json
        })?;
        let mut sum = json!({"calls": total.calls});
        merge(&mut sum, Some(total));
        write!(out, ",\n\"total\":{sum},\"not_counted\":{not_counted}}}")?;
        return Ok(());
    }
    let has_blocks = what == "files";
    let mut headings = vec!["instructions run", "calls", "instructions", "never run"];
    if has_blocks {
        headings.extend(["blocks run", "blocks", "never run"]);
    }
    headings.push("name");
    let mut table = Table::new(headings, 1);
    for row in &rows {
        let cells = texts(row.sums, row.calls, has_blocks, row.name.clone());
        table.push_counted(row.sums.map(|sums| sums.ie), cells);
    }
    table.push(texts(Some(total), total.calls, has_blocks, "total".to_owned()));
    table.print(true, view.style, out)?;
    if not_counted > 0 {
        let what = what.strip_suffix('s').unwrap_or(what);
        writeln!(out, "not counted: {}", gmon::counted(not_counted, what, &format!("{what}s")))?;
    }
    Ok(())
}

/// Returns a row of the table. What was not counted is blank; so are its calls if there are none, because nobody may have seen them.
fn texts(sums: Option<Sums>, calls: u64, has_blocks: bool, name: String) -> Vec<String> {
    let text =
        |number: fn(&Sums) -> u64| sums.as_ref().map(|sums| number(sums).to_string()).unwrap_or_default();
    let calls = if sums.is_none() && calls == 0 { String::new() } else { calls.to_string() };
    let mut row = vec![text(|sums| sums.ie), calls, text(|sums| sums.i), text(|sums| sums.ine)];
    if has_blocks {
        row.extend([text(|sums| sums.bbe), text(|sums| sums.bb), text(|sums| sums.bbne)]);
    }
    row.push(name);
    row
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
