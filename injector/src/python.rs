//! The Python functions that a thread of CPython executes, read from the interpreter's own structures while the process runs.
//!
//! The memory of a process, which may contain anything, enters; the functions of a thread leave. This layer does not know why they are
//! wanted. Nothing in the process has to help, and nothing there is changed.
//!
//! The structures are those of `Include/internal/pycore_*.h` and `Include/cpython/*.h` of each version of CPython.

mod code;
mod frames;
mod functions;
#[cfg(test)]
mod hostile_tests;
mod interpreter;
mod layout;
mod lines;
#[cfg(test)]
mod lines_tests;
mod memory;
mod reader;
mod symbols;
#[cfg(test)]
mod synthetic;
mod thread;

pub(crate) use frames::{Executed, Frames, Run};
pub(crate) use functions::Function;
pub(crate) use interpreter::may_be;
pub(crate) use reader::{Found, Reader};
