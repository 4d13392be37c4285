//! The columns that text takes on a terminal, and text that is cut to fit into them.

use std::borrow::Cow;

use ratatui::text::Span;
use rustix::termios;

/// What a terminal is taken to have that does not know its size.
const UNKNOWN: usize = 80;

/// Returns the number of columns that a line on standard error may take, if that is a terminal.
pub(crate) fn of_standard_error() -> Option<usize> {
    let stderr = std::io::stderr();
    termios::isatty(&stderr).then(|| match termios::tcgetwinsize(&stderr) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => UNKNOWN,
    })
}

/// Returns the number of columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns a text in at most so many columns. Where it was cut there is `…`.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        let own = width(c.encode_utf8(&mut [0; 4]));
        if used + own >= columns {
            break;
        }
        used += own;
        shown.push(c);
    }
    let mut shown = shown.trim_end().to_owned();
    if columns > 0 {
        shown.push('…');
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_columns_and_not_to_characters() {
        for (text, columns, expected) in [
            ("short", 5, "short"),
            ("longer", 5, "long…"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("a b c", 4, "a b…"),
            ("x", 0, ""),
        ] {
            assert_eq!(cut(text, columns), expected, "{text} {columns}");
            assert!(width(&cut(text, columns)) <= columns);
        }
    }
}
