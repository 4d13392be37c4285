//! The facts about the profiled program: its tables, addresses and text.
//!
//! The set-up writes an [`agent::Agent`] once it has read the plan, and adds hooked libraries to [`libraries`]; every
//! layer above reads both. This layer does not
//! know how calls are counted.

pub(crate) mod agent;
pub(crate) mod domain;
pub(crate) mod extents;
pub(crate) mod failure;
pub(crate) mod interned;
pub(crate) mod libraries;
pub(crate) mod module;
pub(crate) mod provoke;
pub(crate) mod switches;
pub(crate) mod text;
