//! TODO

pub mod detour;
pub(crate) mod frames;
pub(crate) mod jump;
pub(crate) mod nops;
pub(crate) mod predecode;
pub mod relocate;
pub(crate) mod scratch;
pub(crate) mod template;
