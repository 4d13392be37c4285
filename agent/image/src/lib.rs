//! What an ELF file says about its code: functions, their extents, kinds and frames, and the addresses to
//! which data points.
//!
//! [`Image::read`] does everything: `elf` checks headers and ranges; `ranges` says where code is; `symbols`
//! and `unwind` read the two sources of functions, and `functions` (with `cold`) merges them; `landing_pads`,
//! `pointers` and `notes` collect what else may enter code. After `elf`, only a missing table is an error: a
//! damaged entry affects only what it describes, not the whole program. `imports` and `profiling` remove what
//! a build for profiling has added.
//!
//! Reports also read 32-bit programs and their debug information: [`gprof`] has the functions that gprof
//! knows, [`instructions`] the code, and [`debug`] source lines and separate debug files.

#![forbid(unsafe_code)]

pub mod debug;
mod facts;
mod file;
pub mod frames;
mod function;
mod functions;
pub mod gprof;
pub mod headers;
mod image;
pub mod instructions;
mod jump_table;
pub mod library;
mod list;
pub mod names;
mod outline;
pub mod plt;
pub mod positions;
mod profiling;
mod read;
mod removed;
pub mod signatures;
pub mod sort;
pub mod symbols;
pub mod tables;
pub mod x86;

pub use crate::facts::{Facts, NET};
pub use crate::file::elf::ElfType;
pub use crate::file::error::{ImageError, NotExecutable};
pub use crate::file::imports::{Profiling, Stubs};
pub use crate::file::marks::TextMarks;
pub use crate::file::object::ProgramError;
pub use crate::function::{Function, FunctionKind};
pub use crate::image::{Code, Details, Image, Segment};
pub use crate::jump_table::JumpTable;
pub use crate::list::Functions;
pub use crate::removed::Removed;
pub use crate::x86::is_stub;
