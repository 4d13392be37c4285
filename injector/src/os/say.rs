//! Messages on standard error. If standard error has been closed, they are dropped.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Quiet,
    Normal,
    Verbose,
    Exhaustive,
}

/// Prints messages up to a level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice(pub(crate) Level);

impl Voice {
    /// Prints an error or a loss of data, at every level.
    pub(crate) fn warn(self, message: impl std::fmt::Display) {
        line(format_args!("{message}"));
    }

    /// Prints what a user wants to know and `-q` hides.
    pub(crate) fn note(self, message: impl std::fmt::Display) {
        if self.0 >= Level::Normal {
            line(format_args!("{message}"));
        }
    }

    /// Prints what only `-v` shows.
    pub(crate) fn detail(self, message: impl std::fmt::Display) {
        if self.0 >= Level::Verbose {
            line(format_args!("{message}"));
        }
    }

    /// Prints what only `-v -v` shows.
    pub(crate) fn every(self, message: impl std::fmt::Display) {
        if self.0 >= Level::Exhaustive {
            line(format_args!("{message}"));
        }
    }
}

/// Messages that are kept back; `None` if messages are printed at once.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps messages back from now on, because a view fills the terminal.
pub(crate) fn hold() {
    held().get_or_insert_default();
}

/// Returns whether messages are kept back.
pub(crate) fn holds() -> bool {
    held().is_some()
}

/// Returns the last message that was kept back, and the number of such messages.
pub(crate) fn last_held() -> Option<(usize, String)> {
    held().as_ref().and_then(|held| Some((held.len(), held.last()?.clone())))
}

/// Prints the messages that were kept back, and all further ones at once.
pub(crate) fn release() {
    for text in held().take().unwrap_or_default() {
        let _ = std::io::stderr().write_all(format!("gprofinject: {text}\n").as_bytes());
    }
}

/// Prints one line in one write, because the program may be writing to the same terminal.
pub(crate) fn line(message: Arguments) {
    /// Messages that are kept back take memory.
    const MOST: usize = 1000;
    let text = visible(&message.to_string()).into_owned();
    if let Some(held) = &mut *held() {
        if held.len() < MOST {
            held.push(text);
        }
        return;
    }
    let _ = std::io::stderr().write_all(format!("gprofinject: {text}\n").as_bytes());
}

/// Returns a text in which control characters, and characters that change the direction of writing, are
/// escaped. Other users choose the names of files, programs and functions, and another gprofinject's answers;
/// such text must not move the cursor or begin a line that looks like one of gprofinject's.
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

/// Prints several lines, all of which come from gprofinject's own command line definition, such as the help.
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
