//! The planner: from the bytes of a program to a decision for each of its functions, and the machine code
//! that carries the decisions out.
//!
//! It is pure: it reads an [`Image`](gprofinject_image::Image) and yields a [`Plan`], without I/O and without
//! unsafe code. The folders are layers. What is in one imports only what is in the ones below it:
//!
//! ```text
//! planner, plan, encode, stored   the whole plan: made, asked, written for the agent, kept for a later run
//! emit      machine code: thunks, relocated instructions, patches, unwind tables, and where each stands in the arena
//! blocks    copies of functions with a counter for each basic block
//! decide    how each function is hooked, or why it is not
//! flow      what the program's code does: who branches where, whose address is taken, which registers are free
//! x86       machine code as such: decoded, moved, written
//! ```
//!
//! `parallel`, beside `x86`, shares work out among threads.
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
