//! The interface to the kernel, the dynamic linker and the machine, without the C library.
//!
//! This layer knows nothing about the program, its plan or its counters. Everything here may be called in a
//! signal handler: nothing allocates memory, and nothing takes a lock.

pub(crate) mod builtins;
pub(crate) mod current;
pub(crate) mod dispatch;
pub(crate) mod files;
pub(crate) mod frame_table;
pub(crate) mod initial;
pub(crate) mod kernel;
pub(crate) mod limits;
pub(crate) mod loaded;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod own_frames;
pub(crate) mod own_image;
pub(crate) mod place;
#[cfg(feature = "standalone")]
pub(crate) mod record;
#[cfg(feature = "standalone")]
pub(crate) mod records;
pub(crate) mod shadow_stack;
#[cfg(not(feature = "standalone"))]
pub(crate) mod stat;
pub(crate) mod task;
pub(crate) mod vectors;
pub(crate) mod words;
