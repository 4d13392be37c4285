//! The functions of a program as gprof sees them.
//!
//! An ELF file enters, a [`gmon::Program`] leaves. `program` takes the symbols that gprof takes; `clones` finds out to which
//! function the symbols belong that gprof leaves out.

mod clones;
mod program;

pub use crate::gprof::program::parse;
