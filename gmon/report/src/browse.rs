//! `gmon report`: a browser of a run on a terminal.
//!
//! A run's files enter; keys move through its functions, their callers and callees, a flame graph, source and instructions. The
//! files are read by a thread of their own, so that keys are always answered.
//!
//! ```text
//! session            one turn: keys, signals, what was read, drawing
//! draw               the screen: a head, one view, and a line of hints
//! model              what is shown, and what keys do
//! flame              the frames of the flame graph, from call paths or estimated
//! worker             the thread that reads: programs, source, instructions
//! source, assembly   the lines and the instructions of a function with their costs
//! chosen             the part of a recording that is of a program or a thread
//! data               a run, indexed for the views; the identity of a function
//! list, numbers      a list with a selected row; numbers as text
//! signals            signals as bytes of a pipe
//! ```

pub(crate) mod assembly;
pub(crate) mod chosen;
pub(crate) mod data;
pub(crate) mod draw;
pub(crate) mod flame;
pub(crate) mod list;
pub(crate) mod model;
pub(crate) mod numbers;
pub(crate) mod session;
pub(crate) mod signals;
pub(crate) mod source;
pub(crate) mod worker;

#[cfg(test)]
mod tests;
