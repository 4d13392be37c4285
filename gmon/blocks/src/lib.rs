//! What the counts in a gmon.out file say about its program: by basic block, function, instruction, source
//! line and file.
//!
//! A [`gmon::Profile`] and what [`gprofinject_image`] reads from the program enter; a [`Report`] leaves, with
//! its sums ([`Tally`]). [`split()`] adds records at more addresses, for gprof's lines and so that files can
//! be summed. A [`Disassembler`] writes instructions as text. The command `gmon` prints all of this.

#![forbid(unsafe_code)]

mod counts;
mod disassembly;
mod flow;
mod report;
mod split;
mod tally;

pub use crate::counts::{BlockCounts, FunctionCounts, Step, Sums};
pub use crate::disassembly::{Disassembler, Syntax};
pub use crate::report::Report;
pub use crate::split::{align, at_lines, split};
pub use crate::tally::{FileCounts, Instance, LineCounts, Tally};
