//! From counters and samples to a profile.
//!
//! In come a region file and samples. Out come a profile in memory ([`model`]), its bytes as a gmon.out, and what gprof cannot
//! show of it. This layer knows neither how the process was reached nor what is said about it.

pub(crate) mod baseline;
pub(crate) mod collect;
pub(crate) mod counted;
pub(crate) mod falls;
pub(crate) mod gmon_out;
pub(crate) mod model;
pub(crate) mod placement;

#[cfg(test)]
mod hostile_tests;
