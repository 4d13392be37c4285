//! gmon.out, the profile that `gprof` reads: read, write, merge, check.
//!
//! The way of the data: bytes -> [`read()`] -> [`Profile`] -> [`Merger`] -> [`Profile`] -> [`write()`] -> bytes.
//! Counts are 64-bit in memory; the 16- and 32-bit fields of the file are split on writing and
//! summed on reading, so nothing is truncated as `gprof -s` does.
//!
//! ```
//! use gmon::{Arc, Format, HistogramBuilder, Profile};
//!
//! let mut samples = HistogramBuilder::new(0x1000..0x3000, 250);
//! samples.add(0x1234, 17);
//! let profile = Profile {
//!     histograms: samples.build().histograms,
//!     arcs: vec![Arc { from: 0x1100, to: 0x1234, count: 5_000_000_000 }],
//!     ..Profile::new(Format::LITTLE_64)
//! };
//! let mut bytes = Vec::new();
//! gmon::write(&profile, &mut bytes)?;
//! assert_eq!(gmon::read(&bytes)?, profile);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The format's sources: binutils `gprof/gmon_out.h`, `gprof/gmon_io.c`, `gprof/hist.c`; glibc
//! `gmon/gmon.c`.

#![forbid(unsafe_code)]

mod build_id;
mod check;
mod finding;
mod fit;
mod format;
mod histogram;
mod merge;
#[cfg(feature = "files")]
pub mod output;
mod profile;
mod program;
mod read;
mod records;
mod words;
mod write;

pub use build_id::{BuildId, BuildMismatch};
pub use check::check;
pub use finding::{Finding, Problem, Severity};
pub use format::{BlockForm, Endian, Format, Width};
pub use histogram::{CHUNK, HistogramBuilder, Sampled};
pub use merge::{MergeError, Merger, merge};
pub use profile::{Arc, BILLIONS, Block, Histogram, SECONDS, ShapeError, Unit};
pub use profile::{CountOverflow, Profile};
pub use program::{Function, Hidden, Place, Program, Relation, Whole};
pub use read::{ReadOptions, Reading, read};
pub use records::ReadError;
pub use words::{EscapedJson, counted, is_hidden, visible};
pub use write::{PLACEHOLDER_RATE, WriteError, write};
