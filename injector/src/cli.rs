//! The command line: what was typed, and what is done about it.
//!
//! In come the words of the command line, out goes an exit status. Nothing below this layer knows of options or of their names.

pub(crate) mod args;
pub(crate) mod ask;
pub(crate) mod command;
pub(crate) mod list;
pub(crate) mod meaning;
pub(crate) mod recover;
