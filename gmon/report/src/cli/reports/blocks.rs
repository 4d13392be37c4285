//! `gmon asm --blocks`: prints each basic block.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::Result;
use gmon_blocks::BlockCounts;
use serde_json::json;

use crate::cli::json::array;
use crate::cli::report_args::{AsmArgs, BlockOrder};
use crate::cli::table::Table;
use crate::cli::text::margin;
use crate::cli::view::View;

/// Prints the report.
///
/// # Errors
/// There is no function to show, or `out` cannot be written to.
pub(crate) fn blocks(view: &View, args: &AsmArgs, out: &mut impl Write) -> Result<()> {
    let functions = view.report.functions.iter().enumerate().filter(|&(index, _)| view.chooses(index));
    let (counted, not): (Vec<_>, Vec<_>) = functions.partition(|(_, function)| function.blocks.is_some());
    let mut blocks: Vec<(usize, BlockCounts)> = counted
        .iter()
        .flat_map(|&(index, function)| function.blocks.iter().flatten().map(move |&block| (index, block)))
        .collect();
    if args.sort == Some(BlockOrder::Count) {
        blocks.sort_by_key(|&(_, block)| Reverse(block.count));
    }
    blocks.truncate(args.rows.limit.unwrap_or(usize::MAX));
    view.need_function(counted.len() + not.len() > 0)?;
    view.begin(out)?;
    if view.args.shown.json {
        array(out, "blocks", &blocks, |(function, block)| {
            let mut json = view.json_function(*function);
            (json["file"], json["line"]) = view.json_place(block.start);
            json["start"] = json!(block.start);
            json["end"] = json!(block.end);
            json["count"] = json!(block.count);
            json["instructions"] = json!(block.instructions);
            json
        })?;
        array(out, "not_counted", &not, |(function, _)| view.json_function(*function))?;
        write!(out, "}}")?;
        return Ok(());
    }
    let mut table = Table::new(vec!["count", "start", "end", "function", "line"], 2);
    for (function, block) in &blocks {
        let address = |address: u64| format!("{address:#x}");
        let row = vec![
            margin(Some(block.count)),
            address(block.start),
            address(block.end),
            view.name(*function),
            view.place(block.start),
        ];
        table.push_counted(Some(block.count), row);
    }
    table.print(false, view.style, out)?;
    if !not.is_empty() {
        writeln!(out, "not counted: {}", gmon::counted(not.len(), "function", "functions"))?;
    }
    Ok(())
}
