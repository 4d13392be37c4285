//! The agent in a process that already runs: the injector puts it in, writes the patches, removes them, and
//! takes the agent out.
//!
//! A process and a plan enter; an [`attachment::Attachment`] leaves. It holds everything that is needed to
//! undo the changes, also by another gprofinject. This layer does not know what the agent counts.

mod arenas;
pub(crate) mod attachment;
mod callers;
pub(crate) mod choice;
mod copies;
pub(crate) mod detours;
mod enter;
pub(crate) mod foreign_file;
mod frames;
mod go;
mod handover;
pub(crate) mod image;
mod leave;
pub(crate) mod libraries;
pub(crate) mod modules;
mod order;
mod orders;
mod overwritten;
mod patches;
mod record;
mod records;
pub(crate) mod room;
mod stacks;
mod unwinder;
mod way;
