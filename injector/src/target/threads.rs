//! The threads of another process: stopped by ptrace(2), moved, borrowed, and released.
//!
//! A process number enters; threads that stand still and access to the process's memory leave. The layers
//! above know what is changed meanwhile. A forked helper does whatever must not be left half done, and a
//! guard watches the helper.

pub(crate) mod borrowed;
mod calls;
pub(crate) mod code;
pub(crate) mod deadline;
pub(crate) mod executing;
pub(crate) mod filters;
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
