//! The planner: from the bytes of a program to a decision for each of its functions, and the machine code
//! that carries the decisions out.
//!
//! It is pure: it reads an [`Image`](gprofinject_image::Image) and yields a [`Plan`], without I/O and without
//! unsafe code. The folders are layers. A file imports only from its own layer and from the layers below it
//! in this list:
//!
//! ```text
//! planner, plan, encode, placed, stored   the whole plan: made, queried, encoded for the agent, stored for a later run
//! emit      machine code: thunks, relocated instructions, patches, unwind tables, and their places in the arena
//! blocks    copies of functions with a counter for each basic block
//! decide    how each function is hooked, or why it is not
//! flow      what the program's code does: its branches, the addresses that it takes, the registers that are free
//! x86       single instructions: decoding, relocation, encoding
//! ```
//!
//! `parallel`, in the same layer as `x86`, distributes work among threads. `fetches` is apart from all this: it turns the signatures
//! of functions into what the agent does to read their arguments.
#![forbid(unsafe_code)]

mod blocks;
mod decide;
mod emit;
mod encode;
pub mod fetches;
mod flow;
mod image_file;
mod parallel;
mod placed;
mod plan;
mod planner;
mod stored;
mod stored_file;
mod switch;
#[cfg(test)]
mod testing;
mod words;
pub mod x86;

pub use crate::blocks::uncounted::Uncounted;
pub use crate::decide::go::{is_reentered, preemption};
pub use crate::decide::options::{Engine, Hooks, Options, Told};
pub use crate::decide::stack_copiers::may_copy_stack;
pub use crate::decide::verdict::{Reason, Tactic, Verdict};
pub use crate::flow::facts::{Flow, FunctionFlow};
pub use crate::image_file::ImageFile;
pub use crate::placed::Placement;
pub use crate::plan::Plan;
pub use crate::stored::PLANNER;
pub use crate::stored_file::StoredFile;
pub use crate::words::offset_of_words;
pub use crate::x86::template::kind::{Measured, Role};
