//! The keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::model::Model;
use crate::browse::model::help::HELP;

/// Draws the keys.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    Pen::new(buffer, area, 0, theme.reversed()).word("keys", Style::new());
    for (line, index) in model.help.shown(body.height.into()).enumerate() {
        let style = if index == model.help.selected { theme.bold() } else { Style::new() };
        Pen::new(buffer, body, line, Style::new()).word(HELP[index], style);
    }
}
