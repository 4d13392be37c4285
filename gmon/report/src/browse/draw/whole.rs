//! All of the screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::draw::{assembly, flame, functions, graph, head, help, programs, source};
use crate::browse::model::{Model, View};

/// The height from which on there are lines above the view.
const HIGH: u16 = 6;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame, model: &mut Model, theme: Theme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let top = if area.height >= HIGH { 2 } else { 0 };
    let bottom = area.height.min(1);
    if top > 0 {
        head::views(&mut Pen::new(buffer, area, 0, Style::new()), model.view, theme);
        Pen::new(buffer, area, 1, Style::new()).word(&head::status(model, area.width.into()), theme.faint());
    }
    let body = Rect { y: area.y + top, height: area.height.saturating_sub(top + bottom), ..area };
    match model.view {
        _ if model.shows_help => help::draw(buffer, body, model, theme),
        View::Functions => functions::draw(buffer, body, model, theme),
        View::Graph => graph::draw(buffer, body, model, theme),
        View::Flame => flame::draw(buffer, body, model, theme),
        View::Source => source::draw(buffer, body, model, theme),
        View::Assembly => assembly::draw(buffer, body, model, theme),
        View::Programs => programs::draw(buffer, body, model, theme),
    }
    if bottom > 0 {
        let line = usize::from(area.height - 1);
        head::last(&mut Pen::new(buffer, area, line, Style::new()), model, theme);
    }
}
