//! TODO

pub(crate) mod arena;
pub(crate) mod bodies;
pub(crate) mod cfi;
pub(crate) mod code;
pub(crate) mod copies;
pub(crate) mod emitted;
pub(crate) mod emitter;
pub(crate) mod homes;
pub(crate) mod layout;
pub(crate) mod part;
pub(crate) mod patch;
pub(crate) mod sleds;
pub(crate) mod tail_calls;
pub(crate) mod tails;
pub(crate) mod thunk;
