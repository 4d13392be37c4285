//! One run: its processes, the loop that waits for them, and what is said at the end.
//!
//! In comes what was planned for a program, out come its profile and its exit status.

pub(crate) mod family;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod supervise;
