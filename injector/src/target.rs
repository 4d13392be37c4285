//! The process that is profiled.
//!
//! In comes a planned program, out comes a process with the agent in it. What is counted there is not known here.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod contract;
pub(crate) mod grip;
pub(crate) mod launch;
pub(crate) mod named;
pub(crate) mod process;
pub(crate) mod threads;
