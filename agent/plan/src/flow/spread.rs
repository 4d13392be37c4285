//! TODO

pub(crate) mod registers;
pub(crate) mod returns;
