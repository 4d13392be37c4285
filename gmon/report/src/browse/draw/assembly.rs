//! The instructions of a function.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::{Pen, text};
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::numbers::{count, share};
use crate::cli::text::plain;

/// The width from which on there are columns of samples and addresses.
const WIDE: usize = 64;
const SHARE: usize = 6;
const SAMPLES: usize = 7;
const COUNT: usize = 8;
/// The title of the column of addresses, and its least width.
const TITLE: &str = "address";
/// What stands for a tabulator.
const TAB: &str = " ";

/// Draws the instructions.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let name = model.function.map_or_else(String::new, |index| model.data.name(index, model.has_full_names));
    let list = &mut model.assembly.list;
    let code = match model.assembly.state.read("reading instructions ...") {
        Ok(code) => code,
        Err(said) => {
            Pen::new(buffer, area, 0, theme.reversed()).word(&name, Style::new());
            text(buffer, body, &plain(said));
            return;
        }
    };
    // In a measured run, other times are wall time.
    let share_title = if model.data.run.time.is_measured() { "cpu %" } else { "self %" };
    let mut pen = Pen::new(buffer, area, 0, theme.reversed());
    let wide = pen.room() >= WIDE;
    if code.samples > 0 {
        pen.number(share_title, SHARE, Style::new());
        if wide {
            pen.number("samples", SAMPLES, Style::new());
        }
    }
    if code.has_counts {
        pen.number("executed", COUNT, Style::new());
    }
    let digits = code
        .rows
        .iter()
        .map(|row| row.address)
        .max()
        .map_or(1, |most| format!("{most:x}").len())
        .max(TITLE.len());
    if wide {
        pen.number(TITLE, digits, Style::new());
    }
    let remark = match (code.samples, code.has_counts) {
        (0, false) => " -- no samples of its instructions, and no counts",
        _ => "",
    };
    pen.word(&format!("{name}{remark}"), Style::new());
    for (line, index) in list.shown(body.height.into()).enumerate() {
        let style = if index == list.selected { theme.reversed() } else { Style::new() };
        let mut pen = Pen::new(buffer, body, line, style);
        let row = &code.rows[index];
        if code.samples > 0 {
            let has = row.samples > 0;
            let share = if has { share(row.samples, code.samples) } else { String::new() };
            pen.number(&share, SHARE, theme.heat(row.samples, code.samples));
            if wide {
                let samples = if has { count(row.samples, SAMPLES) } else { String::new() };
                pen.number(&samples, SAMPLES, Style::new());
            }
        }
        if code.has_counts {
            let executed = row.count.map_or_else(String::new, |number| count(number, COUNT));
            pen.number(&executed, COUNT, Style::new());
        }
        if wide {
            pen.number(&format!("{:x}", row.address), digits, theme.faint());
        }
        let code: String = row.text.replace('\t', TAB).chars().skip(model.assembly.left).collect();
        pen.word(&plain(&code), Style::new());
    }
}
