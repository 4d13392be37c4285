//! The operating system: system calls that std does not have, signals, and standard error.
//!
//! Numbers, paths and descriptors enter; checked results leave. This layer knows nothing of profiles,
//! programs or runs.

pub(crate) mod beside;
pub(crate) mod cgroup;
pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod columns;
pub(crate) mod early;
pub(crate) mod exit_status;
pub(crate) mod failure;
pub(crate) mod filter;
pub(crate) mod gaps;
pub(crate) mod heap;
pub(crate) mod heir;
mod keeper;
pub(crate) mod limits;
pub(crate) mod loader;
pub(crate) mod mapped;
pub(crate) mod memory_files;
pub(crate) mod namespaces;
pub(crate) mod proc;
pub(crate) mod progress;
pub(crate) mod reporter;
pub(crate) mod say;
pub(crate) mod scheduling;
pub(crate) mod shadow_stack;
pub(crate) mod shared;
pub(crate) mod signal_frame;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod sys;
pub(crate) mod terminal;
mod waker;
