//! Decodes every function once and notes what the tactics need: who branches where, which call sites a
//! function has, whose address is taken, who reads its own return address.
//!
//! Decoding is linear within a function's extent, as compilers emit it. A function in which the decoder
//! meets bytes that are no instruction is marked [`FunctionFlow::undecodable`]: what was read of it still
//! warns ("something seems to branch there") but is never patched. So does what belongs to no function (`unread`).

pub(crate) mod branch;
pub(crate) mod build;
pub(crate) mod facts;
pub(crate) mod falls;
pub(crate) mod head;
pub(crate) mod padding;
pub(crate) mod read;
pub(crate) mod registers;
pub(crate) mod return_slot;
pub(crate) mod spread;
