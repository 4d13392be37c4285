//! Another process's threads: stopped by ptrace(2), moved, borrowed, let go again.
//!
//! In comes a process number, out come threads that stand still, and the process's memory. What is changed there meanwhile is
//! known above. Whatever must not be left half done is done by a forked helper, which a guard watches.

mod borrowed;
mod calls;
pub(crate) mod code;
pub(crate) mod deadline;
mod guard;
pub(crate) mod helper;
pub(crate) mod memory;
mod requests;
pub(crate) mod stopped;
pub(crate) mod thread;
pub(crate) mod tracer;
pub(crate) mod turns;
mod urgency;
mod watch;
