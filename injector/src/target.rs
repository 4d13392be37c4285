//! The process that is profiled.
//!
//! A planned program enters; a process that contains the agent leaves. This layer does not know what is
//! counted there.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod contract;
pub(crate) mod grip;
pub(crate) mod launch;
pub(crate) mod loaded;
pub(crate) mod named;
pub(crate) mod permitted;
pub(crate) mod process;
pub(crate) mod threads;
