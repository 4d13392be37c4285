//! What one function's facts mean for its callers and for the functions that it jumps to, over the whole
//! program.

pub(crate) mod registers;
pub(crate) mod returns;
