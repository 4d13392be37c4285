//! From the bytes of a run's files to a [`Run`](crate::Run).
//!
//! A gmon.pb.gz is a recording as it is. [`program`] makes one of a gmon.out: it finds the symbols of the program, to which `charge` gives
//! the records of the file, as gprof does. [`recording()`] is the analysis of either; `blocks` and `lines` add what counts of basic
//! blocks and debug information say.

mod blocks;
mod charge;
mod contract;
mod gmon_out;
mod lines;
mod names;
mod numbers;
mod programs;
mod recording;
mod samples;

pub use crate::load::contract::{Detail, LoadError};
pub use crate::load::gmon_out::{KnownProgram, program};
pub use crate::load::programs::by_program;
pub use crate::load::recording::{ELSEWHERE, OUTSIDE, profile_of, recording};
