//! One run: its processes, the loop that waits for them, and what is said at the end.
//!
//! In come a planned program and a target, out come its profile and its exit status. Whether the target was launched or
//! attached to is not known here.

pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod expectations;
pub(crate) mod family;
pub(crate) mod listen;
pub(crate) mod member;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod settings;
