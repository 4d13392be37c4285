//! `--pid`: a process that runs already.
//!
//! ```text
//! process      what it is, and whether we may
//! helper       a process that finishes what was begun, whatever becomes of us
//! tracee       its threads, stopped by ptrace, and its memory
//! image        the agent library, placed by hand
//! handover     files, opened in it
//! detours      the library functions that lead to the agent
//! engine       in (room: where to, and who is in the way), and out again (leave)
//! callers      whom a thread returns to
//! stacks, frames   what is on the threads' stacks: code that may not change, return addresses to put back
//! session      a profile, from the first look to the last word
//! ```

mod callers;
mod detours;
pub(crate) mod engine;
mod frames;
mod handover;
pub(crate) mod helper;
mod image;
pub(crate) mod process;
pub(crate) mod session;
mod stacks;
pub(crate) mod tracee;
