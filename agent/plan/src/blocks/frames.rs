//! Frame descriptions and exception tables of the original: read, and checked for whether they can be copied.

pub(crate) mod check;
pub(crate) mod program;
