//! `gmon asm`: prints the disassembly with a count before each instruction.

use std::io::Write;

use anyhow::Result;
use gmon_blocks::{Disassembler, Step};
use serde_json::json;

use crate::cli::json::array;
use crate::cli::report_args::{AsmArgs, Syntax};
use crate::cli::text::margin;
use crate::cli::view::View;

/// Prints the report.
///
/// # Errors
/// There is no function to show, or `out` cannot be written to.
pub(crate) fn asm(view: &View, args: &AsmArgs, out: &mut impl Write) -> Result<()> {
    let syntax = args.syntax.unwrap_or(Syntax::Att);
    let mut disassembler = Disassembler::new(syntax.into(), view.report.code, |name| view.shown(name));
    let mut text = |step: &Step| disassembler.text(&step.instruction);
    let chosen: Vec<_> = (0..view.report.functions.len()).filter(|&index| view.chooses(index)).collect();
    view.need_function(!chosen.is_empty())?;
    if view.args.shown.json {
        view.begin(out)?;
        let text = std::cell::RefCell::new(text);
        array(out, "functions", &chosen, |&index| {
            let mut json = view.json_function(index);
            json["counted"] = json!(view.report.is_counted(index));
            json["calls"] = json!(view.report.functions[index].calls);
            let instructions = view.report.steps(index).into_iter().map(|step| {
                let address = step.instruction.ip();
                let (file, line) = view.json_place(address);
                json!({
                    "address": address,
                    "length": step.instruction.len(),
                    "count": step.count,
                    "file": file,
                    "line": line,
                    "text": (*text.borrow_mut())(&step),
                })
            });
            json["instructions"] = instructions.collect();
            json
        })?;
        write!(out, "}}")?;
        return Ok(());
    }
    if !chosen.is_empty() {
        view.begin(out)?;
    }
    chosen.into_iter().try_for_each(|index| function(view, index, &mut text, out))
}

/// Prints a function: a row with its name, then its instructions, with a row where the line changes.
fn function(
    view: &View,
    index: usize,
    text: &mut impl FnMut(&Step) -> String,
    out: &mut impl Write,
) -> Result<()> {
    let function = &view.report.functions[index];
    let name = view.shown(&function.symbol.name);
    if function.blocks.is_none() {
        // Where nothing was counted, there may have been calls that nobody has seen.
        let calls = match function.calls {
            0 => String::new(),
            calls => format!(", {}", gmon::counted(calls, "call", "calls")),
        };
        let line = format!("{name}: not counted{calls}");
        writeln!(out, "{}\n", view.style.faint(line))?;
        return Ok(());
    }
    let calls = match function.part_of {
        Some(_) => String::new(),
        None => format!(" {}", gmon::counted(function.calls, "call", "calls")),
    };
    writeln!(out, "{}{calls}", view.style.heading(&format!("{name}:")))?;
    let mut place = String::new();
    for step in view.report.steps(index) {
        let now = view.place(step.instruction.ip());
        if now != place && !now.is_empty() {
            writeln!(out, "{:>14}  {}", "", view.style.faint(format!("; {now}")))?;
            place = now;
        }
        // Padding is in no basic block.
        let count = step.count.map(|count| margin(Some(count))).unwrap_or_default();
        let row = format!("{count:>14}  {:>8x}:  {}", step.instruction.ip(), text(&step));
        writeln!(out, "{}", view.style.count(step.count, row))?;
    }
    writeln!(out)?;
    Ok(())
}
