//! What we say, on standard error. A standard error that is gone is no reason to fail.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::Write;

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Quiet,
    Normal,
    Verbose,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice(pub(crate) Level);

impl Voice {
    /// Errors, and data that is lost: always.
    pub(crate) fn warn(self, message: impl std::fmt::Display) {
        line(format_args!("{message}"));
    }

    /// What a user wants to know and -q hides.
    pub(crate) fn note(self, message: impl std::fmt::Display) {
        if self.0 >= Level::Normal {
            line(format_args!("{message}"));
        }
    }

    /// What -v shows.
    pub(crate) fn detail(self, message: impl std::fmt::Display) {
        if self.0 >= Level::Verbose {
            line(format_args!("{message}"));
        }
    }
}

/// One line in one write: the program may be writing to the same terminal.
pub(crate) fn line(message: Arguments) {
    let text = format!("gprofinject: {}\n", visible(&message.to_string()));
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A text in which control characters, and those that change the direction of writing, are escaped. Names of files,
/// programs and functions, and what another gprofinject answers, are other people's words: they shall not move the
/// cursor, or begin a line that looks like ours.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    Cow::Owned(clean)
}

/// Help with options has several lines, all of them from our own command line.
pub(crate) fn lines(text: &str) {
    let shown: Vec<Cow<str>> = text.lines().map(visible).collect();
    let _ = std::io::stderr().write_all(format!("gprofinject: {}\n", shown.join("\n")).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_peoples_words_do_not_move_the_cursor() {
        assert_eq!(visible("/tmp/a b \u{e9}"), "/tmp/a b \u{e9}");
        let text = "a\x1b[2Jb\r\n\u{9b}31m\u{7f}\u{202e}";
        assert_eq!(visible(text), "a\\u{1b}[2Jb\\r\\n\\u{9b}31m\\u{7f}\\u{202e}");
    }
}
