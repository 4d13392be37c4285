//! The slowest calls of a run, as those who follow the calls hand them on to the recording.

use gmon_run::Slow;

/// The slowest calls, with the functions and programs to which they refer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowest {
    /// The calls. Functions and programs are indexes into the tables below.
    pub(crate) slow: Slow,
    pub(crate) functions: Vec<Function>,
    /// The paths of programs.
    pub(crate) programs: Vec<String>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The path of its module.
    pub(crate) module: String,
    /// The link address.
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The name as in the symbol table.
    pub(crate) name: String,
}
