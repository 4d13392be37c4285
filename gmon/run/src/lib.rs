//! gmon.pb.gz: everything that a run has counted, sampled and measured, in pprof's format.
//!
//! A [`Recording`] enters: programs, modules and functions, calls by call site, samples and their stacks, counts of basic blocks, and the times by
//! function, arc, call path and thread. The bytes of a file leave ([`Recording::write()`]), and the other way round
//! ([`Recording::read()`]). `go tool pprof` and other readers of
//! pprof's `profile.proto` see the samples of a profile. What that format has no place for is in a message of
//! this crate's own, under a field number that they ignore. `docs/internals/run.md` describes both parts.
//!
//! The crate knows neither how times are measured nor how they are shown, and nothing of program files but how names in
//! them are demangled.
//!
//! ```
//! use gmon_run::{Calls, Function, Module, Program, Recording};
//!
//! let recording = Recording {
//!     programs: vec![Program { name: "prog".to_owned(), processes: 1, ..Program::default() }],
//!     modules: vec![Module { path: "/usr/bin/prog".to_owned(), ..Module::default() }],
//!     functions: vec![Function { name: "main".to_owned(), address: 0x1000, ..Function::default() }],
//!     calls: vec![Calls { callee: 0, calls: 1, ..Calls::default() }],
//!     ..Recording::default()
//! };
//! assert_eq!(Recording::read(&recording.write())?, recording);
//! # Ok::<(), gmon_run::ReadError>(())
//! ```

#![forbid(unsafe_code)]

mod below;
mod check;
mod columns;
mod costs;
mod error;
mod intervals;
mod lines;
mod lines_check;
mod lines_tables;
mod merge;
mod model;
pub mod overhead;
pub mod paths;
mod quantile;
mod read;
mod select;
mod shown_names;
mod slow;
mod slow_check;
mod slow_tables;
mod stacks;
mod strings;
mod sum;
mod summary;
mod tables;
pub mod ticks;
mod values;
mod values_check;
mod values_counted;
mod values_tables;
pub mod wire;
mod write;

pub use crate::check::Invalid;
pub use crate::costs::{By, Cost, Costs};
pub use crate::error::ReadError;
pub use crate::intervals::{INTERVALS_MAX, Intervals};
pub use crate::lines::LineSamples;
pub use crate::merge::MergeError;
pub use crate::model::{
    ArcTimes, Block, Calls, Clock, ClockSource, Ending, Function, FunctionTimes, GENERATED, Hits, Module,
    NO_PATH_NAME, Node, Origin, PROCESSES_MAX, PYTHON, Process, Program, REST_NAME, Recording, Stack, Thread,
};
pub use crate::slow::{Slow, SlowCall, SlowEnd, SlowNode, Typical};
pub use crate::strings::Strings;
pub use crate::sum::Sum;
pub use crate::summary::Summary;
pub use crate::values::{
    INTERVALS, KEPT_MAX, KeptValue, OtherValues, ValueCounts, ValueKind, ValueSummary, Values,
};
pub use crate::values_counted::ValueCounter;
