//! Events in the life of the process: forked children, executed programs, seccomp, the end without an injector.
//!
//! The C library's functions for these are defined or patched here, and then call the originals. This layer uses the
//! counting layer below it, and does not know how a process is set up or given orders.

pub(crate) mod birth;
pub(crate) mod calls;
pub(crate) mod children;
mod clone;
pub(crate) mod dispatch;
pub(crate) mod execute;
pub(crate) mod fork_stack;
#[cfg(not(feature = "standalone"))]
pub(crate) mod limits;
pub(crate) mod originals;
pub(crate) mod orphan;
pub(crate) mod run;
pub(crate) mod seccomp;
pub(crate) mod sharing;
pub(crate) mod syscall;
