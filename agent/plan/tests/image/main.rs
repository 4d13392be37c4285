//! [`gprofinject_plan::image`] on programs from the installed compilers, compared with the output of
//! binutils, and on damaged files.
#![allow(clippy::unwrap_used)]

mod assembly;
mod build;
mod cold;
mod compiled;
mod executed;
mod hostile;
mod placed;
mod profiling;
mod readelf;
mod refusals;
mod return_slot;
mod speed;
mod standalone;
mod stripped;
