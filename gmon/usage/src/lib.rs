//! What a command says of itself to others than its user: a man page, and completions for shells. Both come from the
//! definition by which clap parses the command line.

#![forbid(unsafe_code)]

mod man;
mod passing;

use std::io::{self, Write};

use clap::{Command, ValueEnum};
use clap_complete::Shell;

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
    /// Writes what is asked for.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write(self, mut command: Command, out: &mut dyn Write) -> io::Result<()> {
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
        if passing::passes_on(&command) {
            let own = String::from_utf8_lossy(&text);
            text = match self {
                Kind::CompleteBash => passing::bash(&command, &own),
                Kind::CompleteZsh => passing::zsh(&own),
                Kind::CompleteFish => passing::fish(&command, &own),
                Kind::Man => own.into_owned(),
            }
            .into_bytes();
        }
        out.write_all(&text)
    }
}
