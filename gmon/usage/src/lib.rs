//! What a command says of itself: a man page, completions for shells, and what is wrong with a command line. All come from the
//! definition by which clap parses the command line.

#![forbid(unsafe_code)]

mod asking;
mod line;
mod man;
mod mistake;
mod passing;
mod place;

use std::io::{self, Write};

use clap::{Command, ValueEnum};
use clap_complete::Shell;

pub use crate::asking::ASK;
pub use crate::line::Line;
pub use crate::mistake::Mistake;
pub use crate::place::Place;

/// What can be generated from a command's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A man page, for man1/COMMAND.1
    Man,
    /// Completions for bash, for bash-completion/completions/COMMAND
    CompleteBash,
    /// Completions for zsh, for zsh/site-functions/_COMMAND
    CompleteZsh,
    /// Completions for fish, for fish/vendor_completions.d/COMMAND.fish
    CompleteFish,
}

impl Kind {
    /// Writes what is asked for. `answers`: whether the command answers to [`ASK`], so that completions ask it for values.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write(self, mut command: Command, answers: bool, out: &mut dyn Write) -> io::Result<()> {
        let shell = match self {
            Kind::Man => return man::write(command, out),
            Kind::CompleteBash => Shell::Bash,
            Kind::CompleteZsh => Shell::Zsh,
            Kind::CompleteFish => Shell::Fish,
        };
        let name = command.get_name().to_owned();
        // The generator panics if it cannot write.
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, name, &mut text);
        let text = String::from_utf8_lossy(&text);
        let text = match (shell, answers, passing::passes_on(&command)) {
            (Shell::Bash, true, _) => asking::bash(&command, &text),
            (Shell::Zsh, true, _) => asking::zsh(&command, &text),
            (Shell::Fish, true, _) => asking::fish(&command, &text),
            (Shell::Bash, _, true) => passing::bash(&command, &text),
            (Shell::Zsh, _, true) => passing::zsh(&text),
            (Shell::Fish, _, true) => passing::fish(&command, &text),
            _ => text.into_owned(),
        };
        out.write_all(text.as_bytes())
    }
}
