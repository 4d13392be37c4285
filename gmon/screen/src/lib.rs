//! A terminal that a view fills: the live view of gprofinject, and the browser of `gmon`.
//!
//! ```text
//! screen     the terminal as ratatui sees it
//! terminal   it is set up, and restored on every way out of this process
//! keys       bytes from a terminal -> keys
//! ```
//!
//! The crate installs no signal handlers: whoever takes a [`Screen`] drops it when a signal asks the process to end, and stops the
//! process within [`terminal::without`].

#![forbid(unsafe_code)]

mod keys;
mod screen;
pub mod terminal;

pub use crate::keys::{Key, keys};
pub use crate::screen::Screen;
