//! Traces (`--trace`): what the threads write to their rings becomes a file while they run, or the slowest calls (`--slow`).
//!
//! Region files enter, and a file of chunks ([`gmon_trace`]) or the trees of some calls leave. This layer has a thread of its own, which learns of
//! processes through a channel; it does not know how processes are found or followed.

pub(crate) mod clocks;
pub(crate) mod keep;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod pace;
pub(crate) mod recorded;
pub(crate) mod recorder;
pub(crate) mod scheduler;
pub(crate) mod slow;
pub(crate) mod stream;
pub(crate) mod tracer;
