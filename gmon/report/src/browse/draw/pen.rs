//! Writes columns into a line of the screen.

use gprofinject_image::names::fit;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;
use ratatui::widgets::{Paragraph, Widget, Wrap};

/// What stands for the rest of a text that is cut off.
const CUT: &str = "…";

/// A place in a line, from which on columns are written.
pub(crate) struct Pen<'b> {
    buffer: &'b mut Buffer,
    line: Rect,
    /// The next column.
    x: u16,
    style: Style,
}

impl<'b> Pen<'b> {
    /// Returns a pen at the beginning of a line of an area, counted from 0 on. All of the line gets the style.
    pub(crate) fn new(buffer: &'b mut Buffer, area: Rect, line: usize, style: Style) -> Pen<'b> {
        let y = area.y.saturating_add(u16::try_from(line).unwrap_or(u16::MAX));
        let line = Rect { y, height: 1, ..area }.intersection(area).intersection(buffer.area);
        buffer.set_style(line, style);
        Pen { buffer, line, x: line.x, style }
    }

    /// Returns the number of columns that are left.
    pub(crate) fn room(&self) -> usize {
        usize::from(self.line.right().saturating_sub(self.x))
    }

    /// Leaves columns empty.
    pub(crate) fn skip(&mut self, width: usize) {
        self.x = self.x.saturating_add(width.min(self.room()) as u16);
    }

    /// Writes a number at the right end of a column, and an empty column after it.
    pub(crate) fn number(&mut self, text: &str, width: usize, style: Style) {
        let width = width.min(self.room());
        let start = width.saturating_sub(text.len());
        self.write(text, start, width, style);
        self.skip(width + 1);
    }

    /// Writes a text at the left end of a column, and an empty column after it.
    pub(crate) fn text(&mut self, text: &str, width: usize, style: Style) {
        let width = width.min(self.room());
        self.write(text, 0, width, style);
        self.skip(width + 1);
    }

    /// Writes a text that takes as many columns as it needs.
    pub(crate) fn word(&mut self, text: &str, style: Style) {
        let room = self.room();
        self.write(text, 0, room, style);
        self.skip(Span::raw(text).width());
    }

    /// Writes a function's name. If there is not enough room, its end is shown.
    pub(crate) fn name(&mut self, name: &str, width: usize, style: Style) {
        let width = width.min(self.room());
        let fitted = fit(name, width);
        self.write(&fitted, 0, width, style);
        self.skip(width + 1);
    }

    fn write(&mut self, text: &str, start: usize, width: usize, style: Style) {
        let (Ok(start), true) = (u16::try_from(start), self.line.height > 0 && width > start) else { return };
        let x = self.x.saturating_add(start);
        let room = width - usize::from(start);
        // Most of a very long text is not looked at.
        let is_long = text.chars().nth(room).is_some() || Span::raw(text).width() > room;
        let style = self.style.patch(style);
        match is_long {
            false => drop(self.buffer.set_stringn(x, self.line.y, text, room, style)),
            true => {
                let (end, y) = self.buffer.set_stringn(x, self.line.y, text, room.saturating_sub(1), style);
                self.buffer.set_stringn(end, y, CUT, 1, style);
            }
        }
    }
}

/// Writes a text into an area, on as many lines as it needs.
pub(crate) fn text(buffer: &mut Buffer, area: Rect, text: &str) {
    Paragraph::new(text).wrap(Wrap { trim: true }).render(area.intersection(buffer.area), buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(write: impl FnOnce(&mut Pen)) -> String {
        let area = Rect::new(0, 0, 12, 1);
        let mut buffer = Buffer::empty(area);
        write(&mut Pen::new(&mut buffer, area, 0, Style::new()));
        buffer.content.iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn columns() {
        let style = Style::new();
        assert_eq!(line(|pen| pen.number("12", 4, style)), "  12        ");
        assert_eq!(line(|pen| pen.text("a long text of many words", 6, style)), "a lon…      ");
        let two = |pen: &mut Pen| {
            pen.number("7", 3, style);
            pen.name("std::vector::push_back", 20, style);
        };
        assert_eq!(line(two), "  7 …sh_back");
        // Characters of two columns are not cut in two.
        assert_eq!(line(|pen| pen.text("\u{6f22}\u{5b57}\u{6f22}", 4, style)), "\u{6f22} …         ");
        let beyond = |pen: &mut Pen| {
            pen.skip(50);
            pen.word("x", style);
            pen.number("123", 9, style);
        };
        assert_eq!(line(beyond), " ".repeat(12));
        let area = Rect::new(0, 0, 12, 1);
        let mut buffer = Buffer::empty(area);
        Pen::new(&mut buffer, area, 5, style).word("below", style);
        assert_eq!(buffer, Buffer::empty(area));
    }
}
