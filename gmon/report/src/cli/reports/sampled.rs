//! `gmon lines` and `gmon asm` of a run whose basic blocks were not counted: lines and instructions by their samples of CPU time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::{Result, bail};
use gmon_blocks::{Disassembler, Step};
use gprofinject_image::debug::{Authors, FileIndex};
use serde_json::{Value, json};

use crate::cli::files;
use crate::cli::json::array;
use crate::cli::report_args::{AsmArgs, LinesArgs, Syntax};
use crate::cli::sources::Sources;
use crate::cli::text::{percent, plain};
use crate::cli::units::duration;
use crate::cli::view::View;

/// The time of each line of a file, in nanoseconds.
type FileTimes = BTreeMap<u32, u64>;

/// Prints the source with the time of each line in the margin, the file with the most time first.
///
/// # Errors
/// There is no line information, an option is about counts, or `out` cannot be written to.
pub(crate) fn lines(view: &View, args: &LinesArgs, out: &mut impl Write) -> Result<()> {
    let of_counts =
        [("--apart", args.apart), ("--all-counts", args.all_counts), ("--instructions", args.instructions)];
    if let Some((option, _)) = of_counts.iter().find(|(_, is_given)| *is_given) {
        bail!(
            "{option}: basic blocks were not counted in this run; `gprofinject --count lines PROG` counts them"
        );
    }
    let lines = view.lines()?;
    let mut times: BTreeMap<FileIndex, FileTimes> = BTreeMap::new();
    for index in chosen(view) {
        let symbol = &view.report.functions[index].symbol;
        for (&address, &samples) in view.loaded.samples_of(symbol.start, symbol.end()) {
            let Some(location) = lines.location(address) else { continue };
            if view.chooses_file(&lines.files()[location.file]) {
                let sum = times.entry(location.file).or_default().entry(location.line).or_default();
                *sum = sum.saturating_add(view.loaded.time_of(samples));
            }
        }
    }
    view.need_function(!times.is_empty())?;
    view.need_file(!times.is_empty())?;
    let mut times: Vec<(FileIndex, FileTimes)> = times.into_iter().collect();
    times.sort_by_key(|(file, lines)| (Reverse(sum(lines.values().copied())), *file));
    if view.args.shown.json {
        view.begin(out)?;
        array(out, "files", &times, |(file, times)| {
            let row = |(line, ns): (&u32, &u64)| json!({"line": line, "count": null, "partial": false, "ie": 0, "instances": [], "self_ns": ns});
            json!({"file": lines.files()[*file], "lines": times.iter().map(row).collect::<Vec<_>>()})
        })?;
        write!(out, "}}")?;
        return Ok(());
    }
    let mut sources = Sources::new(&args.sources, &view.loaded.path, Authors::among(files::owners()))?;
    if !times.is_empty() {
        begin(view, out)?;
    }
    for (file, times) in &times {
        let path = &lines.files()[*file];
        source(view, path, times, sources.read(path).as_ref(), out)?;
    }
    out.flush()?;
    sources.complain();
    Ok(())
}

/// Prints one file.
fn source(
    view: &View,
    path: &str,
    times: &FileTimes,
    source: Option<&BTreeMap<u32, String>>,
    out: &mut impl Write,
) -> Result<()> {
    let missing = if source.is_none() { " (source not found)" } else { "" };
    writeln!(out, "{}", view.style.heading(&format!("{}{missing}", plain(path))))?;
    // The line table may name lines after the file's end, if the file has changed since.
    let empty = BTreeMap::new();
    let source = source.unwrap_or(&empty);
    let numbers: BTreeSet<u32> = source.keys().chain(times.keys()).copied().collect();
    for number in numbers {
        let text = source.get(&number).map_or("", String::as_str);
        let text: String = text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        let row = format!("{} {number:>6}  {text}", margin(view, times.get(&number).copied().unwrap_or(0)));
        writeln!(out, "{}", row.trim_end())?;
    }
    let all = sum(times.values().copied());
    let summary =
        format!("{}, {} of the samples of the module", duration(all).trim_end(), percent(all, total(view)));
    writeln!(out, "{}\n", view.style.faint(summary))?;
    Ok(())
}

/// Prints the disassembly with the time of each instruction: of the functions that the user has selected, or else of those with samples,
/// the one with the most time first.
///
/// # Errors
/// There is no function to show, or `out` cannot be written to.
pub(crate) fn asm(view: &View, args: &AsmArgs, out: &mut impl Write) -> Result<()> {
    let syntax = args.syntax.unwrap_or(Syntax::Att);
    let mut disassembler = Disassembler::new(syntax.into(), view.report.code, |name| view.shown(name));
    let chosen = chosen(view);
    view.need_function(!chosen.is_empty())?;
    if view.args.shown.json {
        view.begin(out)?;
        let disassembler = std::cell::RefCell::new(disassembler);
        array(out, "functions", &chosen, |&index| {
            let mut json = view.json_function(index);
            json["counted"] = json!(false);
            json["calls"] = json!(view.report.functions[index].calls);
            json["self_ns"] = json!(own(view, index));
            let instruction = |step: &Step| {
                let address = step.instruction.ip();
                let (file, line) = view.json_place(address);
                let text = disassembler.borrow_mut().text(&step.instruction);
                json!({
                    "address": address,
                    "length": step.instruction.len(),
                    "count": null,
                    "self_ns": of_step(view, step),
                    "file": file,
                    "line": line,
                    "text": text,
                })
            };
            json["instructions"] =
                view.report.steps(index).iter().map(instruction).collect::<Vec<Value>>().into();
            json
        })?;
        write!(out, "}}")?;
        return Ok(());
    }
    if !chosen.is_empty() {
        begin(view, out)?;
    }
    for index in chosen {
        let function = &view.report.functions[index];
        let calls = match function.calls {
            0 => String::new(),
            calls => format!(" {}", gmon::counted(calls, "call", "calls")),
        };
        let name = view.shown(&function.symbol.name);
        writeln!(out, "{}{calls}", view.style.heading(&format!("{name}:")))?;
        let mut place = String::new();
        for step in view.report.steps(index) {
            let now = view.place(step.instruction.ip());
            if now != place && !now.is_empty() {
                writeln!(out, "{:>16}  {}", "", view.style.faint(format!("; {now}")))?;
                place = now;
            }
            let (address, text) = (step.instruction.ip(), disassembler.text(&step.instruction));
            writeln!(out, "{} {address:>8x}:  {text}", margin(view, of_step(view, &step)))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prints what comes before a module: its name, if there are several, and what the columns are.
fn begin(view: &View, out: &mut impl Write) -> Result<()> {
    view.begin(out)?;
    let period = duration(view.loaded.period_ns);
    let said = format!(
        "CPU time, a sample for each {}; basic blocks were not counted (`gprofinject --count lines PROG` counts them)",
        period.trim_end()
    );
    writeln!(out, "{}\n{}", view.style.wrap(&said), view.style.heading("self %      self"))?;
    Ok(())
}

/// Returns the functions that the user has selected, or without a selection those with samples; those with the most time first.
fn chosen(view: &View) -> Vec<usize> {
    let is_asked = !view.args.function.is_empty();
    let mut chosen: Vec<(Reverse<u64>, usize)> = (0..view.report.functions.len())
        .map(|index| (Reverse(own(view, index)), index))
        .filter(|&(Reverse(ns), index)| (ns > 0 || is_asked) && view.chooses(index))
        .collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(_, index)| index).collect()
}

/// Returns the time of a function itself, in nanoseconds.
fn own(view: &View, function: usize) -> u64 {
    let symbol = &view.report.functions[function].symbol;
    let samples = view.loaded.samples_of(symbol.start, symbol.end());
    view.loaded.time_of(sum(samples.map(|(_, &samples)| samples)))
}

/// Returns the time of an instruction, in nanoseconds.
fn of_step(view: &View, step: &Step) -> u64 {
    let samples = view.loaded.samples_of(step.instruction.ip(), step.instruction.next_ip());
    view.loaded.time_of(sum(samples.map(|(_, &samples)| samples)))
}

/// Returns the time of all samples of the module, in nanoseconds.
fn total(view: &View) -> u64 {
    view.loaded.time_of(sum(view.loaded.samples.values().copied()))
}

/// Returns a time and its share of that of the module, as wide as the headings. Nothing is blank.
fn margin(view: &View, ns: u64) -> String {
    match ns {
        0 => format!("{:>6}  {:>8} ", "", ""),
        ns => format!("{:>6}  {:>8} ", percent(ns, total(view)).trim_end_matches('%'), duration(ns)),
    }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}
