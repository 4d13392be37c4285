//! From the bytes of a run's files to a [`Run`](crate::Run).
//!
//! [`recording`] takes the numbers of a gmon.pb.gz; [`program`] finds the symbols of a program, to which `charge` gives the records of
//! its gmon.out, as gprof does; `blocks` and `lines` add what counts of basic blocks and debug information say.

mod blocks;
mod charge;
mod contract;
mod lines;
mod names;
mod numbers;
mod program;
mod programs;
mod recording;

pub use crate::load::contract::{Detail, LoadError};
pub use crate::load::program::{KnownProgram, program};
pub use crate::load::programs::by_program;
pub use crate::load::recording::{ELSEWHERE, OUTSIDE, profile_of, recording};
