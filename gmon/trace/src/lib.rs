//! The file of a trace: every call of a program's functions, on all threads.
//!
//! A file consists of a [`FILE_HEADER`] and [`Chunk`]s. A chunk of events lists the calls that were open at its first event, so
//! that a reader does not need the events before it. Therefore a recorder can drop the oldest chunks, and a reader that finds
//! damage continues with the next chunk.
//!
//! This crate does not know how a trace is recorded or displayed.

mod calls;
mod chunk;
mod clock;
mod codec;
mod contents;
mod counted;
mod cursor;
mod event;
mod events;
mod file;
mod follow;
mod hash;
mod index;
mod input;
mod part;
mod scan;
mod stack;
mod statistics;
mod step;
mod steps;
mod switches;
mod trace;
pub mod value;

pub use chunk::{Chunk, ClockKind, Function, Process, Switch, SwitchKind};
pub use clock::Clock;
pub use codec::Error;
pub use counted::{CountedValues, Counting, ThreadValues};
pub use event::{Event, Open, OpenKind, State};
pub use events::Events;
pub use file::{CHUNK_HEADER, Encoder, FILE_HEADER, MAGIC, Raw, VERSION};
pub use index::OpenError;
pub use input::Input;
pub use scan::Damage;
pub use statistics::{BUCKETS, Statistics, ThreadTimes, bucket_start};
pub use step::{Begun, Ended, How, Overhead, Step, What};
pub use steps::{Choice, Steps};
pub use switches::{Doing, Scheduled, Scheduling};
pub use trace::{Callee, Function as Named, Recorded, Trace};
