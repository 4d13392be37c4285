//! A process that runs already, for `--pid`.
//!
//! In comes a process number, out comes a process that the agent has been put into.

pub(crate) mod earlier;
pub(crate) mod running;
