//! The list of functions, merged from symbols (or Go's own table) and frame descriptions.

pub(crate) mod cold;
pub(crate) mod label;
pub(crate) mod merge;
pub(crate) mod parents;
mod pclntab;
pub(crate) mod symbols;
