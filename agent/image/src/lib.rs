//! What an ELF file says of its code: functions, their extents, kinds and frames, and the addresses that
//! data points at.
//!
//! [`Image::read`] is the whole way: `elf` checks headers and ranges; `ranges` says where code is; `symbols`
//! and `unwind` read the two witnesses of functions, and `functions` (with `cold`) merges them; `lsda`,
//! `pointers` and `notes` collect what else may enter code. After `elf` only a missing table is an error:
//! what is odd inside of one costs what it describes, not the program. `imports` and `profiling` take out what
//! a build for profiling has put in.

#![forbid(unsafe_code)]

mod clones;
mod cold;
mod elf;
pub mod encoded;
mod error;
mod functions;
mod image;
mod imports;
mod lsda;
mod notes;
mod pointers;
mod profiling;
mod ranges;
pub mod sort;
mod symbols;
pub mod unwind;
pub mod x86;

pub use error::{ImageError, NotExecutable};
pub use functions::is_stub;
pub use image::{Code, Facts, Function, FunctionKind, Image, ImageKind, Segment, TextMarks};
pub use imports::{Profiling, Stubs};
pub use profiling::Removed;
