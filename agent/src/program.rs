//! The facts about the profiled program: its tables, addresses and text.
//!
//! The set-up writes an [`agent::Agent`] once it has read the plan; every layer above reads it. This layer does not
//! know how calls are counted.

pub(crate) mod agent;
pub(crate) mod failure;
pub(crate) mod provoke;
pub(crate) mod text;
