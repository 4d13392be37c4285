//! A function between its callers and callees.

use gmon_export::Arc;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::model::graph::Row;
use crate::browse::numbers::{count, share_if_seen, time};

/// The width from which on there is a column of self times, and of shares.
const WIDE: usize = 64;
const WIDER: usize = 80;
/// The widths of the columns.
const TIME: usize = 10;
const CALLS: usize = 19;
const FEW_CALLS: usize = 7;
const SHARE: usize = 6;
/// How far callers and callees are indented.
const INDENT: usize = 3;
/// What a caller is called that was not hooked.
const NOT_HOOKED: &str = "[not hooked]";

/// Draws the view.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let width = usize::from(area.width);
    let has_times = model.data.run.time.is_some();
    let mut pen = Pen::new(buffer, area, 0, theme.reversed());
    if has_times && width >= WIDER {
        pen.number("incl %", SHARE, Style::new());
    }
    if has_times && width >= WIDE {
        pen.number("self", TIME, Style::new());
    }
    if has_times {
        pen.number("inclusive", TIME, Style::new());
    }
    pen.number("calls", if width >= WIDE { CALLS } else { FEW_CALLS }, Style::new());
    pen.word("callers, function, callees", Style::new());
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    if model.graph.function.is_none() {
        Pen::new(buffer, body, 0, Style::new()).word("no function is chosen", Style::new());
        return;
    }
    for (line, row) in model.graph.list.shown(body.height.into()).enumerate() {
        let is_selected = row == model.graph.list.selected;
        let style = if is_selected { theme.reversed() } else { Style::new() };
        let mut pen = Pen::new(buffer, body, line, style);
        match &model.graph.rows[row] {
            Row::Own => own(&mut pen, model, theme),
            Row::Caller(arc) => related(&mut pen, model, arc, arc.caller, theme),
            Row::Callee(arc) => related(&mut pen, model, arc, Some(arc.callee), theme),
        }
    }
}

/// Writes the row of the function itself.
fn own(pen: &mut Pen, model: &Model, theme: Theme) {
    let data = &model.data;
    let Some((index, function)) = model.graph.function.and_then(|index| Some((index, data.function(index)?)))
    else {
        return;
    };
    let is_estimate = data.is_estimated() && function.inclusive_ns != function.self_ns;
    let numbers = Numbers {
        self_ns: Some(function.self_ns),
        inclusive_ns: Some(function.inclusive_ns),
        estimates: (false, is_estimate),
        calls: if function.calls == 0 { String::new() } else { function.calls.to_string() },
        few_calls: if function.calls == 0 { String::new() } else { count(function.calls, FEW_CALLS) },
    };
    numbers.write(pen, model, theme);
    let cycle = function.cycle.map_or_else(String::new, |cycle| format!(" <cycle {}>", cycle + 1));
    let module = match data.module(index).as_str() {
        "" => String::new(),
        module => format!("  [{module}]"),
    };
    let name = data.name(index, model.has_full_names) + &cycle;
    let room = pen.room();
    let has_room = name.chars().count() + module.chars().count() <= room;
    pen.name(&if has_room { name + &module } else { name }, room, theme.bold());
}

/// Writes the row of a caller or a callee.
fn related(pen: &mut Pen, model: &Model, arc: &Arc, other: Option<u32>, theme: Theme) {
    let data = &model.data;
    let callee = data.function(arc.callee);
    let cycle = |index: Option<u32>| data.function(index?).and_then(|function| function.cycle);
    // gprof's rule gives no times to calls within a cycle, nor to recursive ones.
    let is_within = arc.caller == Some(arc.callee)
        || cycle(arc.caller).is_some() && cycle(arc.caller) == cycle(Some(arc.callee));
    let is_known = !data.is_estimated() || !is_within;
    let all = callee.map_or(0, |callee| callee.calls);
    let numbers = Numbers {
        self_ns: is_known.then_some(arc.self_ns),
        inclusive_ns: is_known.then_some(arc.inclusive_ns),
        estimates: (data.is_estimated(), data.is_estimated()),
        // An arc of sampled stacks was not counted.
        calls: if arc.calls == 0 {
            String::new()
        } else {
            format!("{}/{}", arc.calls, count(all, CALLS / 2))
        },
        few_calls: if arc.calls == 0 { String::new() } else { count(arc.calls, FEW_CALLS) },
    };
    numbers.write(pen, model, theme);
    pen.skip(INDENT);
    let cycle = cycle(other).map_or_else(String::new, |cycle| format!(" <cycle {}>", cycle + 1));
    let unknown = if arc.calls == 0 { data.run.name_without_function() } else { NOT_HOOKED };
    let name = other.map_or_else(|| unknown.to_owned(), |other| data.name(other, model.has_full_names));
    let room = pen.room();
    pen.name(&(name + &cycle), room, Style::new());
}

/// The numbers of a row.
struct Numbers {
    /// `None` is not known.
    self_ns: Option<u64>,
    inclusive_ns: Option<u64>,
    /// Whether the times are estimates.
    estimates: (bool, bool),
    calls: String,
    few_calls: String,
}

impl Numbers {
    fn write(&self, pen: &mut Pen, model: &Model, theme: Theme) {
        let width = pen.room();
        let data = &model.data;
        if data.run.time.is_some() {
            let text = |ns: Option<u64>, is_estimate| {
                ns.map_or_else(String::new, |ns| time(data.run.time, ns, is_estimate))
            };
            let inclusive = self.inclusive_ns.unwrap_or(0);
            if width >= WIDER {
                let share = self
                    .inclusive_ns
                    .map_or_else(String::new, |ns| share_if_seen(data.run.time, ns, data.total_ns));
                pen.number(&share, SHARE, theme.heat(inclusive, data.total_ns));
            }
            if width >= WIDE {
                pen.number(&text(self.self_ns, self.estimates.0), TIME, Style::new());
            }
            pen.number(&text(self.inclusive_ns, self.estimates.1), TIME, Style::new());
        }
        match width >= WIDE {
            true => pen.number(&self.calls, CALLS, Style::new()),
            false => pen.number(&self.few_calls, FEW_CALLS, Style::new()),
        }
    }
}
