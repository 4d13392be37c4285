//! `gmon coverage`: prints how much of each file ran, in percent, and writes a file for lcov.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use gmon::counted;
use gmon_blocks::{LineCounts, Tally};
use gprofinject_image::debug::{Authors, FileIndex};
use serde_json::{Value, json};

use crate::cli::files;
use crate::cli::json::array;
use crate::cli::report_args::CoverageArgs;
use crate::cli::reports::lines::chooses_instance;
use crate::cli::text::{percent, plain, standard_output};
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

    /// Returns a text such as `85.71% 24/28`, or an empty one if nothing was counted.
    fn text(self) -> String {
        if self.all == 0 {
            "-".to_owned()
        } else {
            format!("{} {}/{}", percent(self.run, self.all), self.run, self.all)
        }
    }

    fn json(self) -> Value {
        json!({"executed": self.run, "all": self.all})
    }
}

/// Prints the report, and writes the file for lcov.
///
/// # Errors
/// There is no line information, or a file cannot be written.
pub(crate) fn coverage(view: &View, args: &CoverageArgs, out: &mut impl Write) -> Result<()> {
    let lines = view.lines()?;
    let mut tally = Tally::of(&view.report);
    let chosen = |file: FileIndex| view.chooses_file(&lines.files()[file]);
    tally.lines.retain(|location, line| {
        line.instances.retain(|instance| chooses_instance(view, lines, instance));
        chosen(location.file) && !line.instances.is_empty()
    });
    for counts in tally.files.values_mut() {
        counts.functions.retain(|&(function, _)| view.chooses_function(function));
    }
    let mut files: BTreeMap<FileIndex, Coverage> = BTreeMap::new();
    for (location, line) in &tally.lines {
        let file = files.entry(location.file).or_default();
        match line.count() {
            Some(count) => file.lines.add(count > 0),
            None => file.lines_not_counted += 1,
        }
    }
    for (index, function) in view.report.functions.iter().enumerate() {
        for block in function.blocks.iter().flatten().filter(|_| view.chooses_function(index)) {
            if let Some(file) = lines.location(block.start).map(|l| l.file).filter(|&file| chosen(file)) {
                files.entry(file).or_default().blocks.add(block.count > 0);
            }
        }
    }
    for (&index, counts) in tally.files.iter().filter(|&(&file, _)| chosen(file)) {
        let file = files.entry(index).or_default();
        for &(function, _) in &counts.functions {
            match first_count(view, function) {
                Some(count) => file.functions.add(count > 0),
                None => file.functions_not_counted += 1,
            }
        }
    }
    view.need_function(!tally.lines.is_empty())?;
    let mut files: Vec<_> = files.into_iter().map(|(file, of)| (&lines.files()[file], of)).collect();
    files.sort_by_key(|(path, _)| *path);
    if let Some(path) = &args.lcov {
        write_lcov(path, view, &tally)?;
        if path == Path::new("-") {
            return Ok(());
        }
    }
    let total = files.iter().fold(Coverage::default(), |total, (_, file)| Coverage {
        lines: total.lines.join(file.lines),
        blocks: total.blocks.join(file.blocks),
        functions: total.functions.join(file.functions),
        lines_not_counted: total.lines_not_counted + file.lines_not_counted,
        functions_not_counted: total.functions_not_counted + file.functions_not_counted,
    });
    if view.args.shown.json {
        write!(out, "{{{}", view.json_head())?;
        array(out, "files", &files, |(path, file)| {
            let mut json = json(file);
            json["file"] = json!(path);
            json
        })?;
        writeln!(out, ",\n\"total\":{}}}", json(&total))?;
        return Ok(());
    }
    let row = |of: &Coverage| {
        let (lines, blocks, functions) = (of.lines.text(), of.blocks.text(), of.functions.text());
        format!("{lines:>20} {blocks:>20} {functions:>20}")
    };
    let heading = format!("{:>20} {:>20} {:>20}  file", "lines", "blocks", "functions");
    writeln!(out, "{}", view.style.heading(&heading))?;
    for (path, file) in files.iter().filter(|(_, file)| file.lines.all > 0) {
        let ran = if file.lines.run == 0 { 0 } else { 1 };
        writeln!(out, "{}", view.style.count(Some(ran), format!("{}  {}", row(file), plain(path))))?;
    }
    writeln!(out, "{}", view.style.heading(&format!("{}  total", row(&total))))?;
    if total.functions_not_counted + total.lines_not_counted > 0 {
        let functions = counted(total.functions_not_counted, "function", "functions");
        let lines = counted(total.lines_not_counted, "line", "lines");
        writeln!(out, "not counted: {functions}, {lines}")?;
    }
    Ok(())
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

fn write_lcov(path: &Path, view: &View, tally: &Tally) -> Result<()> {
    if path == Path::new("-") {
        return lcov(view, tally, &mut standard_output());
    }
    let mut bytes = Vec::new();
    lcov(view, tally, &mut bytes).with_context(|| path.display().to_string())?;
    files::replace(path, &bytes, &Authors::among(files::owners()))
}

/// Writes lcov's tracefile (geninfo(1)): lines and functions. Branches would need the counts of the edges
/// between basic blocks, which a profile does not have.
fn lcov(view: &View, tally: &Tally, out: &mut impl Write) -> Result<()> {
    let lines = view.lines()?;
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
        if counted.is_empty() || !view.chooses_file(path) || path.contains('\n') {
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
    Ok(out.flush()?)
}
