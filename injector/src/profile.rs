//! From counters and samples to a profile.
//!
//! A region file and samples enter. A profile in memory ([`model`]), its bytes as a gmon.out, and what gprof
//! cannot show of it leave. This layer knows neither how the process was reached nor how the result is
//! reported.

pub(crate) mod baseline;
pub(crate) mod by_thread;
pub(crate) mod clocked;
pub(crate) mod collect;
pub(crate) mod costs;
pub(crate) mod counted;
pub(crate) mod elsewhere;
pub(crate) mod ends;
pub(crate) mod falls;
mod file;
pub(crate) mod generated;
pub(crate) mod gmon_out;
mod homes;
pub(crate) mod model;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod possible;
pub(crate) mod recorded;
pub(crate) mod recorder;
pub(crate) mod slowest;
pub(crate) mod space;
pub(crate) mod stacks;
pub(crate) mod tallied;
pub(crate) mod threads;
pub(crate) mod times;
pub(crate) mod totals;
pub(crate) mod unwound;
pub(crate) mod values;

#[cfg(test)]
mod hostile_tests;
