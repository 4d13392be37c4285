//! A program that gprofinject starts for its profile.
//!
//! A program and its arguments enter; a child process that loads the agent, or gets it from an usher, leaves.

pub(crate) mod launched;
pub(crate) mod spawn;
pub(crate) mod standing;
pub(crate) mod streams;
pub(crate) mod usher;
pub(crate) mod witness;
