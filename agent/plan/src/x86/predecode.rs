//! Length, class and registers of common instructions, in a fraction of the time that a full decoder takes.
//!
//! For most instructions, the planner only needs to know where the next one begins. [`skim`] recognises
//! those, direct branches, and `push` and `pop`, by a few lookups in tables. Any other instruction is passed
//! to [`decode::predecode`], which also finds out what an instruction does with registers ([`effects`]). Both
//! functions give an answer only if it is certain. For all other instructions (rare opcodes, indirect
//! branches) the caller uses iced. Therefore an opcode that is missing from [`tables`] costs time and nothing
//! else. The tests compare the answers with iced's, for all opcodes and over whole programs.
//!
//! Source: Intel SDM volume 2: 2.1.5 (ModRM and SIB), 2.2.1 (REX), appendix A (opcode maps).

pub(crate) mod decode;
pub(crate) mod effects;
pub(crate) mod fields;
pub(crate) mod skim;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
