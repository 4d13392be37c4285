//! Propagates the facts about each function to its callers and to the functions that it jumps to, over the
//! whole program.

pub(crate) mod registers;
pub(crate) mod returns;
