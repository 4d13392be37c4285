//! From the bytes of a program to a decision for each of its functions. Pure: no I/O, no unsafe.
//!
//! [`image`] reads the ELF file; [`flow`] decodes the code, most of it with [`predecode`] alone; [`start`] looks at the first bytes of a
//! function; [`tactic`] decides; [`slots`] lays out the counters; [`emit`] writes the machine code from
//! [`template`]s with [`relocate`]d instructions; [`encode`] makes the plan file of
//! [`gprofinject_abi::plan`]; [`stored`] keeps it for a later run. [`blocks`] is the way of functions whose blocks are counted.
#![forbid(unsafe_code)]

mod blocks;
mod cfi;
pub mod detour;
pub mod emit;
pub mod encode;
mod falls;
pub mod flow;
mod moved;
mod own_text;
mod parallel;
mod plan;
mod predecode;
pub mod registers;
pub mod relocate;
mod return_slot;
pub mod slots;
pub mod start;
mod stored;
pub mod tactic;
pub mod tails;
pub mod template;
#[cfg(test)]
mod testing;
mod unwinder;

pub use blocks::Uncounted;
pub use plan::{Engine, Hooks, Options, Plan, Verdict};
pub use stored::PLANNER;
pub use tactic::{Reason, Tactic};
