//! The source of a function.

use gmon_export::Time;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::{self, Pen};
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::numbers::{count, share, time};
use crate::browse::source::{SourceLine, SourceText};
use crate::cli::text::plain;

/// The width from which on there is a column of times.
const WIDE: usize = 64;
/// The same of two such columns.
const WIDER: usize = 80;
const SHARE: usize = 6;
const TIME: usize = 9;
const EXECUTIONS: usize = 8;
/// How far apart tabulators are.
const TAB: usize = 8;

/// Draws the source.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let name = model.function.map_or_else(String::new, |index| model.data.name(index, model.has_full_names));
    let list = &mut model.source.list;
    let text = match model.source.state.read("reading debug information ...") {
        Ok(text) => text,
        Err(said) => {
            Pen::new(buffer, area, 0, theme.reversed()).word(&name, Style::new());
            pen::text(buffer, body, &plain(said));
            return;
        }
    };
    // In a measured run, other times are wall time.
    let is_measured = model.data.run.time.is_measured();
    let (share_title, own_title) = if is_measured { ("cpu %", "cpu") } else { ("self %", "self") };
    let mut pen = Pen::new(buffer, area, 0, theme.reversed());
    let wide = pen.room() >= if text.has_inclusive { WIDER } else { WIDE };
    if text.has_times {
        pen.number(share_title, SHARE, Style::new());
        if wide {
            pen.number(own_title, TIME, Style::new());
        }
    }
    if text.has_inclusive {
        pen.number("incl %", SHARE, Style::new());
        if wide {
            pen.number("inclusive", TIME, Style::new());
        }
    }
    if text.has_executions {
        pen.number("executed", EXECUTIONS, Style::new());
    }
    let remark = match (&text.remark, text.has_times || text.has_executions) {
        (Some(remark), _) => format!(" -- {remark}"),
        (None, false) => " -- no samples and no counts of its lines".to_owned(),
        (None, true) => String::new(),
    };
    let file = text.path.rsplit('/').next().unwrap_or(&text.path);
    let path = if pen.room() > name.len() + text.path.len() + 8 { &text.path } else { file };
    pen.word(&format!("{name} in {}{remark}", plain(path)), Style::new());
    let digits = text.lines.last().map_or(1, |line| line.number.to_string().len());
    for (line, row) in list.shown(body.height.into()).enumerate() {
        let style = if row == list.selected { theme.reversed() } else { Style::new() };
        let mut pen = Pen::new(buffer, body, line, style);
        let shown = &text.lines[row];
        margin(&mut pen, text, shown, wide, theme);
        pen.number(&shown.number.to_string(), digits, theme.faint());
        let code: String = expanded(&shown.text).chars().skip(model.source.left).collect();
        pen.word(&plain(&code), Style::new());
    }
}

/// Writes what a line has cost. What was not counted is blank.
fn margin(pen: &mut Pen, text: &SourceText, line: &SourceLine, wide: bool, theme: Theme) {
    let cost = line.cost;
    let mut times = |has: bool, ns: u64| {
        let share = if has { share(ns, text.total_ns) } else { String::new() };
        pen.number(&share, SHARE, theme.heat(ns, text.total_ns));
        if wide {
            let shown = if has { time(Time::Sampled, ns, false) } else { String::new() };
            pen.number(&shown, TIME, Style::new());
        }
    };
    if text.has_times {
        times(cost.samples > 0, cost.self_ns);
    }
    if text.has_inclusive {
        times(cost.inclusive_ns > 0, cost.inclusive_ns);
    }
    if text.has_executions {
        let executions = cost.executions.map_or_else(String::new, |number| count(number, EXECUTIONS));
        pen.number(&executions, EXECUTIONS, Style::new());
    }
}

/// Returns a line with spaces in place of tabulators.
fn expanded(text: &str) -> String {
    /// The most characters of a line that are looked at.
    const MOST: usize = 20_000;
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for c in text.chars().take(MOST) {
        if c == '\t' {
            let spaces = TAB - column % TAB;
            out.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        } else {
            out.push(c);
            column += 1;
        }
    }
    out
}
