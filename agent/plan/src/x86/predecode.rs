//! Length, class and registers of common instructions, in a fraction of the time that a full decoder takes.
//!
//! Most instructions of a program tell the planner nothing but where the next one begins. [`skim`] recognises those, direct
//! branches, and `push` and `pop`, by a few lookups in tables. What it does not recognise is looked at by [`predecode`],
//! which tells what an instruction does with registers as well. Both answer only where they are certain. For the rest (rare
//! opcodes, indirect branches) the caller decodes the instruction with iced. So an opcode that is missing from the tables costs time and nothing
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
