//! gmon.pb.gz: the measured times of a program's functions, in pprof's format.
//!
//! A [`Measured`] enters, the times of a run by function, arc, call path and thread; the bytes of a file leave
//! ([`Measured::write()`]), and the other way round ([`Measured::read()`]). `go tool pprof` and other readers of
//! pprof's `profile.proto` see the samples of a profile. What that format has no place for is in a message of
//! this crate's own, under a field number that they ignore. `docs/measured.md` describes both parts.
//!
//! The crate knows neither how times are measured nor how they are shown, and nothing of program files.
//!
//! ```
//! use gmon_measured::{ArcTimes, Function, Measured, Module, Thread};
//!
//! let measured = Measured {
//!     program: "prog".to_owned(),
//!     modules: vec![Module { name: "/usr/bin/prog".to_owned(), ..Module::default() }],
//!     functions: vec![Function { name: "main".to_owned(), address: 0x1000, ..Function::default() }],
//!     threads: vec![Thread { pid: 100, tid: 100, name: "prog".to_owned(), ..Thread::default() }],
//!     arcs: vec![ArcTimes { callee: 0, calls: 1, self_ns: 1_500_000, ..ArcTimes::default() }],
//!     ..Measured::default()
//! };
//! assert_eq!(Measured::read(&measured.write())?, measured);
//! # Ok::<(), gmon_measured::ReadError>(())
//! ```

#![forbid(unsafe_code)]

mod check;
mod error;
mod intervals;
mod merge;
mod model;
pub mod paths;
mod quantile;
mod read;
mod sum;
mod summary;
mod tables;
pub mod wire;
mod write;

pub use crate::check::Invalid;
pub use crate::error::ReadError;
pub use crate::intervals::{INTERVALS_MAX, Intervals};
pub use crate::merge::MergeError;
pub use crate::model::{
    ArcTimes, Clock, ClockSource, Function, FunctionTimes, Measured, Module, Node, REST, REST_NAME, Thread,
};
pub use crate::sum::Sum;
pub use crate::summary::Summary;
