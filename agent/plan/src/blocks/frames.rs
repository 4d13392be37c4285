//! TODO

pub(crate) mod check;
pub(crate) mod lsda;
pub(crate) mod program;
