//! The live view: what a process counts, while it runs.
//!
//! A [`snapshot::Snapshot`] enters, again and again; a table on a terminal or lines of text leave, and what the user asks for.
//! [`model`] is pure: it makes rates and rows of two snapshots, and actions of keys. The layer does not know where snapshots
//! come from, nor what is done for an action: a [`view::Source`] does both.
//!
//! ```text
//! view              one turn: keys, a new snapshot, drawing
//! draw, plain       a table on the terminal; the same as text
//! model, prompt     what is shown, and what keys do
//! rows              snapshots -> rows: rates, order, filter
//! collect           a profile -> a snapshot
//! snapshot          the types
//! ```
//!
//! The terminal as ratatui sees it, and its keys, are in the crate `gmon-screen`.

pub(crate) mod collect;
mod draw;
pub(crate) mod model;
mod plain;
mod prompt;
mod rows;
pub(crate) mod snapshot;
pub(crate) mod view;
