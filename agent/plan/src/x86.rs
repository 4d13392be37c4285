//! Machine code as such: how an instruction is decoded, what it does to registers and the stack, how it is
//! moved to another address, and what the thunks are made of.
//!
//! What enters is bytes and addresses; what leaves is decoded facts and new bytes. This layer knows no
//! program, no function and no plan.

pub mod detour;
pub(crate) mod frames;
pub(crate) mod jump;
pub(crate) mod nops;
pub(crate) mod predecode;
pub mod relocate;
pub(crate) mod scratch;
pub(crate) mod template;
