//! The command line: what was typed, and what is done about it.
//!
//! The words of the command line enter; an exit status leaves. The layers below know neither options nor
//! their names.

pub(crate) mod args;
pub(crate) mod ask;
pub(crate) mod command;
pub(crate) mod contradictions;
pub(crate) mod list;
pub(crate) mod meaning;
pub(crate) mod min_time;
pub(crate) mod mistake;
pub(crate) mod recover;
pub(crate) mod top;
