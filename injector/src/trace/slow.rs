//! The slowest calls (`--slow`): what the threads write to their rings becomes the trees of a few calls while they run.
//!
//! Events enter, and the slowest calls leave, with what is typical of all of them ([`gmon_run::Slow`]). Nothing grows with the duration of
//! the run: events outside of the wanted calls are dropped at once, calls of one path within a call are one node, and only the slowest
//! calls are kept.

pub(crate) mod call;
pub(crate) mod keeper;
pub(crate) mod off;
pub(crate) mod process;
pub(crate) mod results;
pub(crate) mod thread;
pub(crate) mod tree;
pub(crate) mod typical;
pub(crate) mod watcher;
