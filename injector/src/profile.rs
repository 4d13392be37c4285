//! From counters and samples to a profile.
//!
//! In come a region file and samples, out come the bytes of a gmon.out and what is missing in it. How the process was reached, and what
//! is said about it, is not known here.

pub(crate) mod baseline;
pub(crate) mod collect;
pub(crate) mod counted;
pub(crate) mod falls;
pub(crate) mod gmon_out;
pub(crate) mod placement;

#[cfg(test)]
mod hostile_tests;
