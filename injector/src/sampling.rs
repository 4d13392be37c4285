//! Samples that the kernel takes of the profiled processes.
//!
//! The kernel's records enter; histograms by link address leave. This layer does not know what they are used
//! for.

pub(crate) mod faults;
pub(crate) mod histogram;
mod interpreters;
pub(crate) mod maps;
pub(crate) mod perf;
pub(crate) mod records;
pub(crate) mod sampler;
pub(crate) mod samples;
pub(crate) mod stacks;
mod track;
pub(crate) mod unfollowed;
