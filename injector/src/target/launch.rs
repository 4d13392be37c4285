//! A program that is started for its profile.
//!
//! In comes a program with its arguments, out comes a child that the agent is loaded into.

pub(crate) mod launched;
pub(crate) mod spawn;
pub(crate) mod witness;
