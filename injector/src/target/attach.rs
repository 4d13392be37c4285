//! A process that already runs, for `--pid`.
//!
//! A process number enters; a process that contains the agent leaves.

pub(crate) mod earlier;
pub(crate) mod running;
