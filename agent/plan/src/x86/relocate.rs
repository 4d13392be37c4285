//! Relocates the first instructions of a function to another address.
//!
//! Plain instructions are copied, RIP-relative ones get a new displacement, and branches are encoded again by
//! iced's block encoder. Only the last instruction can be a call: see [`call`].

pub mod call;
pub mod instructions;
pub mod relocated;
