//! The analysis of whatever a run measured, and its exports for other tools.
//!
//! The model of a run is [`gmon_run::Recording`]. A gmon.pb.gz is one, and a gmon.out with its program becomes one ([`load`]). Its
//! analysis is a [`Run`]: a row for each function that occurs. What a run does not say, its analysis does not have; inclusive times
//! that were not measured are those of sampled stacks, or else [estimated](estimate()) as gprof does, and [`Run::time`] says so. Tables, exports and comparisons take
//! the analysis and do not know where it comes from.
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
mod sampled;
mod stacks;
pub mod values;

pub use crate::estimate::estimate;
pub use crate::likely::Paths;
pub use crate::model::{
    Arc, Cycle, Durations, Frame, Function, InclusiveTime, Inlined, Line, ProgramFunction, Run, Share, Spot,
    Time, View,
};
pub use gmon_run::{
    Clock, ClockSource, Ending, FunctionTimes, Intervals, Module, Node, Origin, Process, Program, Slow,
    SlowCall, SlowEnd, SlowNode, Thread, Typical,
};
