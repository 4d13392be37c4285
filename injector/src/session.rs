//! One run: its processes, the loop that waits for them, and the report at the end.
//!
//! A planned program and a target enter; a profile and an exit status leave. This layer does not know whether
//! the target was launched or attached to.

pub(crate) mod browser;
pub(crate) mod conclusion;
pub(crate) mod control;
pub(crate) mod counting;
pub(crate) mod digest;
pub(crate) mod events;
pub(crate) mod expectations;
pub(crate) mod family;
pub(crate) mod headroom;
pub(crate) mod label;
pub(crate) mod listen;
pub(crate) mod live;
pub(crate) mod member;
pub(crate) mod message;
pub(crate) mod outcome;
pub(crate) mod phases;
pub(crate) mod python;
pub(crate) mod remarks;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod spares;
pub(crate) mod stats;
pub(crate) mod summary;
pub(crate) mod unfollowed;
pub(crate) mod unmatched;
pub(crate) mod words;
