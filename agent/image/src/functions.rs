//! The list of functions, merged from symbols and frame descriptions.

pub(crate) mod cold;
pub(crate) mod merge;
pub(crate) mod parents;
pub(crate) mod symbols;
