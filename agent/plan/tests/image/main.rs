//! [`gprofinject_plan::image`] on programs that the machine's own compilers make, against what binutils say
//! of them; and on damaged files.
#![allow(clippy::unwrap_used)]

mod assembly;
mod build;
mod cold;
mod compiled;
mod hostile;
mod profiling;
mod readelf;
mod refusals;
mod return_slot;
mod speed;
