//! Samples that the kernel takes of the profiled processes.
//!
//! In come the kernel's records, out come histograms by link address. What becomes of them is not known here.

pub(crate) mod faults;
pub(crate) mod histogram;
pub(crate) mod perf;
pub(crate) mod records;
pub(crate) mod sampler;
