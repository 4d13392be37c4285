//! The programs, processes and threads of a run, each of which can be shown alone, a process with the others of its program.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::numbers::count;

/// The width from which on there are all columns.
const WIDE: usize = 64;
const CALLS: usize = 12;
const FEW_CALLS: usize = 7;
const SAMPLES: usize = 9;
const LIFE: usize = 9;
const WHICH: usize = 22;

/// Draws the list.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let mut pen = Pen::new(buffer, area, 0, theme.reversed());
    let wide = pen.room() >= WIDE;
    pen.skip(2);
    pen.number("calls", if wide { CALLS } else { FEW_CALLS }, Style::new());
    if wide {
        pen.number("samples", SAMPLES, Style::new());
        pen.number("life", LIFE, Style::new());
        pen.text("what", WHICH, Style::new());
    }
    pen.word("program or thread", Style::new());
    for (line, index) in model.programs.shown(body.height.into()).enumerate() {
        let choice = &model.choices[index];
        let style = if index == model.programs.selected { theme.reversed() } else { Style::new() };
        let mut pen = Pen::new(buffer, body, line, style);
        pen.text(if choice.chosen == model.chosen && !choice.is_part { "*" } else { "" }, 1, theme.bold());
        let width = if wide { CALLS } else { FEW_CALLS };
        let number = |number: Option<u64>, width| number.map_or_else(String::new, |n| count(n, width));
        pen.number(&number(choice.calls.filter(|&calls| calls > 0), width), width, Style::new());
        if wide {
            pen.number(&number(choice.samples, SAMPLES), SAMPLES, Style::new());
            pen.number(&choice.life, LIFE, Style::new());
            pen.text(&choice.which, WHICH, Style::new());
        }
        pen.word(&choice.name, Style::new());
    }
}
