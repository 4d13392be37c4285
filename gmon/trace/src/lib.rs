//! The file of a trace: every call of a program's functions, on all threads.
//!
//! A file is a [`FILE_HEADER`] and [`Chunk`]s. Each chunk can be read without the chunks of events before it: it says which
//! calls were open when its first event happened. So the oldest chunks can be left out, and a reader that meets damage goes on
//! with the next chunk.
//!
//! Nothing here knows how a trace is recorded, or how it is shown.

mod chunk;
mod codec;
mod contents;
mod event;
mod events;
pub mod value;

pub use chunk::{CHUNK_HEADER, Chunk, ClockKind, Encoder, Function, MAGIC, Process, Raw, Switch, SwitchKind};
pub use codec::Error;
pub use event::{Event, Open, OpenKind, State};
pub use events::Events;

/// The first bytes of a file: a magic number, and the version of the format.
pub const FILE_HEADER: [u8; 16] = *b"gpitrace\x01\0\0\0\0\0\0\0";
