//! Another process's threads: stopped by ptrace(2), moved, borrowed, let go again.
//!
//! In comes a process number. What is changed in the process meanwhile is known above.

pub(crate) mod deadline;
pub(crate) mod guard;
pub(crate) mod helper;
pub(crate) mod tracee;
