//! Counting blocks: counted functions are copied into the arena as a whole, with counters in the copy.
//!
//! ```text
//! decode     the instructions of a function and its cold parts, or why it is not counted
//! entries    where indirect jumps may lead, and how the original's places are led to the copy
//! graph      basic blocks, and which of them need a counter
//! flags      where in its block a counter may stand
//! layout     the copy, instruction by instruction
//! unwind     its frame descriptions and exception tables
//! ```
//!
//! The original stays where it is. Its entry leads to the function's thunk and from there to the copy; other
//! places that something may jump to lead straight to the copy. See docs/blocks.md.

pub(crate) mod code;
pub(crate) mod copies;
pub(crate) mod entries;
pub(crate) mod flags;
pub(crate) mod frames;
pub(crate) mod graph;
pub(crate) mod layout;
pub(crate) mod steps;
pub(crate) mod tables;
pub(crate) mod uncounted;
pub(crate) mod unit;
