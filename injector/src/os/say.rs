//! Messages on standard error. If standard error has been closed, they are dropped.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use gmon::visible;

/// What each message begins with.
pub(crate) const NAME: &str = "gprofinject: ";

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
        let _ = std::io::stderr().write_all(format!("{NAME}{text}\n").as_bytes());
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
    let _ = std::io::stderr().write_all(format!("{NAME}{text}\n").as_bytes());
}
