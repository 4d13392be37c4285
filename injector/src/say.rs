//! What we say, on standard error. A standard error that is gone is no reason to fail.

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
    let text = format!("gprofinject: {message}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}
