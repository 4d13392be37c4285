//! From the bytes of a run's files to a [`Run`](crate::Run).
//!
//! `charge` gives the records of a gmon.out to symbols, as gprof does; [`program`] and [`process`] find the symbols of a program
//! and of a gmon.syms; [`measured`] takes the numbers of a gmon.pb.gz; `blocks` and `lines` add what counts of basic blocks and
//! debug information say.

mod blocks;
mod charge;
mod contract;
mod lines;
mod measured;
mod names;
mod process;
mod program;

pub use crate::load::contract::{Detail, LoadError};
pub use crate::load::measured::measured;
pub use crate::load::process::process;
pub use crate::load::program::{KnownProgram, program};
