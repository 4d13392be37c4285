//! The program's file: what kind of program it is, and the plan for it.
//!
//! A path enters; a plan with the answers to the other layers' questions leaves. This layer knows no process.

pub(crate) mod arguments;
pub(crate) mod choice;
pub(crate) mod contents;
pub(crate) mod filters;
pub(crate) mod image_kind;
pub(crate) mod library;
pub(crate) mod libs;
pub(crate) mod memory;
pub(crate) mod numbered;
pub(crate) mod plan_cache;
pub(crate) mod planned;
pub(crate) mod planner;
pub(crate) mod privileges;
pub(crate) mod profilee;
pub(crate) mod resolve;
pub(crate) mod subject;
