//! From the bytes of a program to a decision for each of its functions. Pure: no I/O, no unsafe.
//!
//! [`image`] reads the ELF file; [`flow`] decodes the code, most of it with [`predecode`] alone; [`start`] looks at the first bytes of a
//! function; [`tactic`] decides; [`slots`] lays out the counters; [`emit`] writes the machine code from
//! [`template`]s with [`relocate`]d instructions; [`encode`] makes the plan file of
//! [`gprofinject_abi::plan`]; [`stored`] keeps it for a later run. [`blocks`] is the way of functions whose blocks are counted.
#![forbid(unsafe_code)]

mod blocks;
mod decide;
mod emit;
mod encode;
mod flow;
mod parallel;
mod plan;
mod planner;
mod stored;
#[cfg(test)]
mod testing;
pub mod x86;

pub use crate::blocks::uncounted::Uncounted;
pub use crate::decide::options::{Engine, Hooks, Options};
pub use crate::decide::verdict::{Reason, Tactic, Verdict};
pub use crate::flow::facts::{Flow, FunctionFlow};
pub use crate::plan::Plan;
pub use crate::stored::PLANNER;
