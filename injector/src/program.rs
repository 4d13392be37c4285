//! The program's file: what kind of program it is, and the plan that is made for it.
//!
//! In comes a path, out comes a plan with everything that the other layers ask about it. No process is known here.

pub(crate) mod filters;
pub(crate) mod memory;
pub(crate) mod plan_cache;
pub(crate) mod planned;
pub(crate) mod planner;
pub(crate) mod privileges;
pub(crate) mod profilee;
pub(crate) mod resolve;
pub(crate) mod subject;
