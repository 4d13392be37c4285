//! `gmon lines --coverage` and `--lcov`: prints how much of each file ran, in percent, and writes a file for lcov.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use gmon::counted;
use gmon_blocks::{LineCounts, Tally};
use gprofinject_image::debug::FileIndex;
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::reports::lines::chooses_instance;
use crate::cli::table::Table;
use crate::cli::text::{percent, plain};
use crate::cli::view::View;

/// How much ran, of what was counted.
#[derive(Clone, Copy, Default)]
struct Part {
    run: u64,
    all: u64,
}

/// The coverage of a file, or of all files.
#[derive(Clone, Copy, Default)]
struct Coverage {
    lines: Part,
    blocks: Part,
    functions: Part,
    lines_not_counted: u64,
    functions_not_counted: u64,
}

impl Part {
    fn add(&mut self, ran: bool) {
        self.run += u64::from(ran);
        self.all += 1;
    }

    fn join(self, other: Part) -> Part {
        Part { run: self.run + other.run, all: self.all + other.all }
    }

    /// Returns a text such as `85.71%`, or an empty one if nothing was counted.
    fn percent(self) -> String {
        if self.all == 0 { String::new() } else { percent(self.run, self.all) }
    }

    /// Returns a text such as `24/28`, or an empty one if nothing was counted.
    fn fraction(self) -> String {
        if self.all == 0 { String::new() } else { format!("{}/{}", self.run, self.all) }
    }

    fn json(self) -> Value {
        json!({"executed": self.run, "all": self.all})
    }
}

/// Prints the report.
///
/// # Errors
/// There is no line information, or `out` cannot be written to.
pub(crate) fn coverage(view: &View, out: &mut impl Write) -> Result<()> {
    let files = by_file(view, &tally(view)?)?;
    let total = files.iter().fold(Coverage::default(), |total, (_, file)| Coverage {
        lines: total.lines.join(file.lines),
        blocks: total.blocks.join(file.blocks),
        functions: total.functions.join(file.functions),
        lines_not_counted: total.lines_not_counted + file.lines_not_counted,
        functions_not_counted: total.functions_not_counted + file.functions_not_counted,
    });
    view.begin(out)?;
    if view.args.shown.json {
        array(out, "files", &files, |(path, file)| {
            let mut json = json(file);
            json["file"] = json!(path);
            json
        })?;
        write!(out, ",\n\"total\":{}}}", json(&total))?;
        return Ok(());
    }
    let row = |of: &Coverage, name: String| {
        let parts = [of.lines, of.blocks, of.functions].into_iter();
        parts.flat_map(|part| [part.percent(), part.fraction()]).chain([name]).collect()
    };
    let mut table = Table::new(vec!["lines", "", "blocks", "", "functions", "", "file"], 1);
    for (path, file) in files.iter().filter(|(_, file)| file.lines.all > 0) {
        table.push_counted(Some(file.lines.run.min(1)), row(file, plain(path)));
    }
    table.push(row(&total, "total".to_owned()));
    table.print(true, view.style, out)?;
    if total.functions_not_counted + total.lines_not_counted > 0 {
        let functions = counted(total.functions_not_counted, "function", "functions");
        let lines = counted(total.lines_not_counted, "line", "lines");
        writeln!(out, "not counted: {functions}, {lines}")?;
    }
    Ok(())
}

/// Returns the counts of the lines, functions and files that the user has selected.
fn tally(view: &View) -> Result<Tally> {
    let lines = view.lines()?;
    let mut tally = Tally::of(&view.report);
    let chosen = |file: FileIndex| view.chooses_file(&lines.files()[file]);
    tally.lines.retain(|location, line| {
        line.instances.retain(|instance| chooses_instance(view, lines, instance));
        chosen(location.file) && !line.instances.is_empty()
    });
    tally.files.retain(|&file, _| chosen(file));
    for counts in tally.files.values_mut() {
        counts.functions.retain(|&(function, _)| view.chooses_function(function));
    }
    view.need_function(!tally.lines.is_empty())?;
    view.need_file(!tally.lines.is_empty())?;
    Ok(tally)
}

/// Returns the coverage of each file, sorted by path.
fn by_file<'v>(view: &View<'v>, tally: &Tally) -> Result<Vec<(&'v String, Coverage)>> {
    let lines = view.lines()?;
    let mut files: BTreeMap<FileIndex, Coverage> = BTreeMap::new();
    for (location, line) in &tally.lines {
        let file = files.entry(location.file).or_default();
        match line.count() {
            Some(count) => file.lines.add(count > 0),
            None => file.lines_not_counted += 1,
        }
    }
    let chosen = |file: &FileIndex| view.chooses_file(&lines.files()[*file]);
    for (index, function) in view.report.functions.iter().enumerate() {
        for block in function.blocks.iter().flatten().filter(|_| view.chooses_function(index)) {
            if let Some(file) = lines.location(block.start).map(|l| l.file).filter(chosen) {
                files.entry(file).or_default().blocks.add(block.count > 0);
            }
        }
    }
    for (&index, counts) in &tally.files {
        let file = files.entry(index).or_default();
        for &(function, _) in &counts.functions {
            match first_count(view, function) {
                Some(count) => file.functions.add(count > 0),
                None => file.functions_not_counted += 1,
            }
        }
    }
    let mut files: Vec<_> = files.into_iter().map(|(file, of)| (&lines.files()[file], of)).collect();
    files.sort_by_key(|(path, _)| *path);
    Ok(files)
}

/// Returns how often the function was entered, as far as its basic blocks show, or `None` if it was not
/// counted.
fn first_count(view: &View, function: usize) -> Option<u64> {
    let function = &view.report.functions[function];
    let first = function.blocks.as_ref()?.first()?;
    Some(if first.start == function.symbol.start { first.count } else { function.calls })
}

fn json(of: &Coverage) -> Value {
    json!({
        "lines": of.lines.json(),
        "blocks": of.blocks.json(),
        "functions": of.functions.json(),
        "lines_not_counted": of.lines_not_counted,
        "functions_not_counted": of.functions_not_counted,
    })
}

/// Writes lcov's tracefile (geninfo(1)): lines and functions. Branches would need the counts of the edges
/// between basic blocks, which a profile does not have.
///
/// # Errors
/// There is no line information, or `out` cannot be written to.
pub(crate) fn lcov(view: &View, out: &mut impl Write) -> Result<()> {
    let (lines, tally) = (view.lines()?, tally(view)?);
    let mut by_file: BTreeMap<FileIndex, Vec<(u32, &LineCounts)>> = BTreeMap::new();
    for (location, line) in &tally.lines {
        by_file.entry(location.file).or_default().push((location.line, line));
    }
    let mut files: Vec<_> =
        by_file.into_iter().map(|(file, rows)| (&lines.files()[file], file, rows)).collect();
    files.sort_by_key(|(path, ..)| *path);
    for (path, file, rows) in files {
        let counted: Vec<_> =
            rows.iter().filter_map(|(line, counts)| counts.count().map(|count| (line, count))).collect();
        if counted.is_empty() || path.contains('\n') {
            continue;
        }
        writeln!(out, "TN:\nSF:{path}")?;
        let functions = tally.files.get(&file).map(|counts| counts.functions.as_slice()).unwrap_or_default();
        // lcov cannot distinguish two functions of one name in one file (a macro's, a lambda's).
        let mut entered: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
        for &(function, line) in functions {
            let Some(count) = first_count(view, function) else { continue };
            let name = view.report.functions[function].symbol.name.as_str();
            let entry = entered.entry(name).or_insert((line, 0));
            entry.1 = entry.1.saturating_add(count);
        }
        for (name, (line, _)) in &entered {
            writeln!(out, "FN:{line},{}", plain(name))?;
        }
        for (name, (_, count)) in &entered {
            writeln!(out, "FNDA:{count},{}", plain(name))?;
        }
        let hit = entered.values().filter(|(_, count)| *count > 0).count();
        writeln!(out, "FNF:{}\nFNH:{hit}", entered.len())?;
        for (line, count) in &counted {
            writeln!(out, "DA:{line},{count}")?;
        }
        let hit = counted.iter().filter(|(_, count)| *count > 0).count();
        writeln!(out, "LF:{}\nLH:{hit}\nend_of_record", counted.len())?;
    }
    Ok(())
}
