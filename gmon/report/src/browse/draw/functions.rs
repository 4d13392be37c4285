//! The table of functions.

use gmon_export::Function;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::data::{Data, Sort};
use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::numbers::{count, share_if_seen, time};

/// A column before the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Share,
    Own,
    Inclusive,
    Calls,
    Instructions,
    PerCall,
}

/// The columns in the order in which they are shown, with their titles and widths.
const COLUMNS: [(Column, &str, usize); 6] = [
    (Column::Share, "self %", 6),
    (Column::Own, "self", 9),
    (Column::Inclusive, "inclusive", 10),
    (Column::Calls, "calls", 11),
    (Column::Instructions, "executed", 11),
    (Column::PerCall, "per call", 10),
];

/// The width of the column of modules, after the name.
const MODULE: usize = 16;
/// The columns that a name has at least, beside the first numbers and beside all of them.
const NAME: usize = 20;
const LONG_NAME: usize = 36;

/// Draws the table.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let (columns, has_module) = columns(&model.data, model.functions.sort, area.width.into());
    let module = if has_module { MODULE + 1 } else { 0 };
    let mut pen = Pen::new(buffer, area, 0, theme.reversed());
    for (_, title, width) in COLUMNS.iter().filter(|(column, ..)| columns.contains(column)) {
        pen.number(title, *width, Style::new());
    }
    let room = pen.room().saturating_sub(module);
    pen.text("function", room, Style::new());
    if has_module {
        pen.text("module", MODULE, Style::new());
    }
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let shown = model.functions.list.shown(body.height.into());
    if model.functions.rows.is_empty() {
        let why = match model.functions.filter.as_str() {
            "" => "nothing was called or sampled",
            _ => "no function is called so; Esc shows all",
        };
        Pen::new(buffer, body, 0, Style::new()).word(why, Style::new());
    }
    for (line, row) in shown.enumerate() {
        let index = model.functions.rows[row];
        let Some(function) = model.data.function(index) else { continue };
        let is_selected = row == model.functions.list.selected;
        let style = if is_selected { theme.reversed() } else { Style::new() };
        let mut pen = Pen::new(buffer, body, line, style);
        for &(column, _, width) in COLUMNS.iter().filter(|(column, ..)| columns.contains(column)) {
            let style = match column {
                Column::Share | Column::Own if !is_selected => {
                    theme.heat(function.self_ns, model.data.total_ns)
                }
                _ => Style::new(),
            };
            pen.number(&number(&model.data, function, column, width), width, style);
        }
        let room = pen.room().saturating_sub(module);
        pen.name(&model.data.name(index, model.has_full_names), room, Style::new());
        if has_module {
            pen.text(&model.data.module(index), MODULE, theme.faint());
        }
    }
}

/// Returns the columns for which there is room beside a name, and whether there is room for modules.
fn columns(data: &Data, sort: Sort, width: usize) -> (Vec<Column>, bool) {
    let run = &data.run;
    let has = |column: &Column| match column {
        Column::Share | Column::Own | Column::Inclusive | Column::PerCall => run.time.is_some(),
        Column::Instructions => run.has_instructions,
        Column::Calls => true,
    };
    let sorted = match sort {
        Sort::Own | Sort::Name => Column::Own,
        Sort::Inclusive => Column::Inclusive,
        Sort::Calls => Column::Calls,
        Sort::Instructions => Column::Instructions,
    };
    let wanted = [sorted, Column::Own, Column::Inclusive, Column::Calls, Column::Share];
    let mut columns = Vec::new();
    let mut room = width;
    let mut add = |column: Column, least: usize, room: &mut usize| {
        let width = COLUMNS.iter().find(|(known, ..)| *known == column).map_or(0, |(.., width)| width + 1);
        if has(&column) && !columns.contains(&column) && *room >= least + width {
            *room -= width;
            columns.push(column);
        }
    };
    wanted.into_iter().for_each(|column| add(column, NAME, &mut room));
    let has_module = run.modules.len() > 1 && room > LONG_NAME + MODULE;
    room -= if has_module { MODULE + 1 } else { 0 };
    [Column::Instructions, Column::PerCall].into_iter().for_each(|column| add(column, LONG_NAME, &mut room));
    (columns, has_module)
}

/// Returns a number of a function. What was not counted is blank.
fn number(data: &Data, function: &Function, column: Column, width: usize) -> String {
    let is_estimated = data.is_estimated();
    let counted = |number: u64| if number == 0 { String::new() } else { count(number, width) };
    match column {
        Column::Share => share_if_seen(data.run.time, function.self_ns, data.total_ns),
        Column::Own => time(data.run.time, function.self_ns, false),
        // Without callees, inclusive times are self times.
        Column::Inclusive => time(
            data.run.time,
            function.inclusive_ns,
            is_estimated && function.inclusive_ns != function.self_ns,
        ),
        Column::Calls => counted(function.calls),
        Column::Instructions => counted(function.instructions),
        Column::PerCall => match function.inclusive_ns.checked_div(function.primitive) {
            Some(ns) => time(data.run.time, ns, is_estimated && function.inclusive_ns != function.self_ns),
            None => String::new(),
        },
    }
}
