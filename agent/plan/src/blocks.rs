//! Counts of basic blocks: each counted function is copied into the arena as a whole, with counters in the
//! copy.
//!
//! Hooks enter; [`copies::Copies`] leaves. It knows the place of each instruction's copy, and can write the
//! copies once their address is known. This layer does not know the arena.
//!
//! ```text
//! tables      the frame descriptions and exception tables of all copies
//! copies      all counted functions
//! unit        one counted function
//! layout      the place of each instruction of a copy, and its code
//! entries     where indirect jumps may lead, and how places of the original lead to the copy
//! flags       where in its basic block a counter may stand
//! graph       basic blocks, and which of them need a counter
//! frames      frame descriptions and exception tables of the original, read
//! stubs       stubs of the procedure linkage table
//! steps       the instructions of a function and its cold parts
//! code        the machine code of counters and of what replaces some instructions
//! uncounted   why a function is not counted
//! ```
//!
//! The original code stays where it is. Its first bytes lead to the function's thunk and from there to the
//! copy; other places that something may jump to lead straight to the copy. See docs/internals/blocks.md.

pub(crate) mod code;
pub(crate) mod copies;
pub(crate) mod entries;
pub(crate) mod flags;
pub(crate) mod frames;
pub(crate) mod graph;
pub(crate) mod layout;
pub(crate) mod steps;
pub(crate) mod stubs;
pub(crate) mod tables;
pub(crate) mod uncounted;
pub(crate) mod unit;
