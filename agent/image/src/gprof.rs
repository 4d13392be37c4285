//! The functions of a program as gprof sees them.
//!
//! An ELF file enters; a [`gmon::Program`] leaves. `program` selects the symbols that gprof accepts, and
//! `clones` finds the functions to which the symbols belong that gprof leaves out.

mod clones;
mod program;

pub use crate::gprof::program::parse;
