//! The agent in a process that runs: put in, armed, paused, and taken out again.
//!
//! In come a process and a plan, out comes an [`attachment::Attachment`], which can be undone, by another gprofinject if need
//! be. What the agent counts is not known here.

pub(crate) mod attachment;
mod callers;
mod detours;
mod enter;
mod foreign_file;
mod frames;
mod handover;
mod image;
mod leave;
mod order;
mod orders;
mod overwritten;
mod patches;
mod record;
mod room;
mod stacks;
mod way;
