//! Profiles for compilers and for optimisers of linked programs.
//!
//! The counts of a module's basic blocks and its calls enter, with its code and the positions of its instructions in the source; text
//! or bytes leave that a compiler reads. There are three kinds of profiles:
//!
//! ```text
//! source      counts by place in the source, which a compiler finds again when it compiles the source anew: llvm, gcc
//! branches    how often control passed from a basic block to another: bolt, autofdo
//! go          calls by place in the source, which need no counts of blocks
//! ```
//!
//! This crate opens no files, and does not know how blocks were counted.

#![forbid(unsafe_code)]

pub mod autofdo;
pub mod bolt;
pub mod branches;
mod flow;
pub mod gcc;
pub mod go;
pub mod llvm;
mod module;
pub mod source;
mod targets;

pub use crate::module::{Module, Names};
