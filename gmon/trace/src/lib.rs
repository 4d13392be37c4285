//! The file of a trace: every call of a program's functions, on all threads.
//!
//! A file is a [`FILE_HEADER`] and [`Chunk`]s. Each chunk can be read without the chunks of events before it: it says which
//! calls were open when its first event happened. So the oldest chunks can be left out, and a reader that meets damage goes on
//! with the next chunk.
//!
//! Nothing here knows how a trace is recorded, or how it is shown.

mod calls;
mod chunk;
mod clock;
mod codec;
mod contents;
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
pub use event::{Event, Open, OpenKind, State};
pub use events::Events;
pub use file::{CHUNK_HEADER, Encoder, FILE_HEADER, MAGIC, Raw, VERSION};
pub use index::OpenError;
pub use input::Input;
pub use scan::Damage;
pub use statistics::{ArcTimes, BUCKETS, FunctionTimes, Statistics, ThreadTimes, bucket_start};
pub use step::{Begun, Ended, How, Overhead, Step, What};
pub use steps::{Choice, Steps};
pub use switches::{Doing, Scheduled, Scheduling};
pub use trace::{Callee, Function as Named, Recorded, Trace};
