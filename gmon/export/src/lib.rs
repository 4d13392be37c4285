//! Whatever a run measured, in one model, and its exports for other tools.
//!
//! A gmon.pb.gz, or a gmon.out with its program, enters and becomes a [`Run`] ([`load`]). What a run does not say, the model does not have; inclusive times without measured ones are
//! [estimated](estimate()) as gprof does, and [`Run::time`] says so. Tables, exports and comparisons take a [`Run`] and do not
//! know where it comes from.
//!
//! The crate opens no files except those of modules and their debug files, and those only if source lines are wanted.

#![forbid(unsafe_code)]

pub mod diff;
mod estimate;
mod flame;
pub mod formats;
pub mod html;
mod likely;
pub mod load;
mod markup;
mod model;
pub mod processes;
mod stacks;

pub use crate::estimate::estimate;
pub use crate::likely::Paths;
pub use crate::model::{
    Arc, Cycle, Durations, Frame, Function, Inlined, Line, Module, Node, ProgramFunction, Run, Share, Spot,
    Time, View,
};
pub use gmon_run::{Clock, ClockSource, Ending, FunctionTimes, Intervals, Origin, Process, Program, Thread};
