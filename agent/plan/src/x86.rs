//! Machine code as such: how an instruction is decoded, what it does to registers and the stack, how it is
//! moved to another address, and what the thunks are made of.
//!
//! Bytes and addresses enter; decoded facts and new bytes leave. This layer knows nothing of programs,
//! functions or plans.

pub mod detour;
pub(crate) mod frames;
pub(crate) mod jump;
pub(crate) mod nops;
pub(crate) mod predecode;
pub mod relocate;
pub(crate) mod scratch;
pub(crate) mod system_call;
pub(crate) mod template;
