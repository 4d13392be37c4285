//! Handles what the process does besides calls: forked children, executed programs, seccomp, and an exit
//! after the injector has ended.
//!
//! The C library's functions for these are defined or patched here; these definitions call the real
//! functions. This layer uses the counting layer below it, and does not know how a process is set up or given
//! orders.

pub(crate) mod children;
pub(crate) mod execute;
pub(crate) mod orphan;
pub(crate) mod run;
pub(crate) mod seccomp;
pub(crate) mod syscall;
