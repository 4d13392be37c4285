//! The agent in a process that runs: put in, armed, paused, and taken out again.
//!
//! In come a process and a plan, out comes an attachment that can be undone, by another gprofinject if need be.

pub(crate) mod callers;
pub(crate) mod detours;
pub(crate) mod engine;
pub(crate) mod foreign_file;
pub(crate) mod frames;
pub(crate) mod handover;
pub(crate) mod image;
pub(crate) mod stacks;
