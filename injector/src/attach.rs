//! `--pid`: a process that runs already.
//!
//! ```text
//! process      what it is, and whether we may
//! helper       a process that finishes what was begun, whatever becomes of us
//! deadline     how long it may take
//! guard        a process that ends it then, and takes back what it leaves if it is killed
//! tracee       its threads, stopped by ptrace, and its memory
//! image        the agent library, placed by hand
//! handover     files, opened in it
//! detours      the library functions that lead to the agent
//! engine       in (room: where to, and who is in the way), and out again (leave; record: what that takes, on disk)
//! foreign_file   the files that it has mapped
//! callers      whom a thread returns to
//! stacks, frames   what is on the threads' stacks: code that may not change, return addresses to put back
//! named        the run folders that a process's mappings name, as far as they can be believed
//! session      a profile, from the first look to the last word
//! ```

mod callers;
mod deadline;
mod detours;
pub(crate) mod engine;
mod foreign_file;
mod frames;
mod guard;
mod handover;
pub(crate) mod helper;
mod image;
mod named;
pub(crate) mod process;
pub(crate) mod session;
mod stacks;
pub(crate) mod tracee;
