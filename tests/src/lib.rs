//! The harness of the system tests and benches.
//!
//! The expected values come from two sources, never from gprofinject: the arcs in the small programs of
//! `programs/` follow from their source, and callgrind counts the calls of any program.
//!
//! ```text
//! programs/*.c ─ directives ─> build ─> run ─> gmon.out ─> expect
//! any program  ─ callgrind ──> normalise ────> gmon.out ─> check
//! ```

pub mod assembly;
pub mod attached;
pub mod build;
pub mod callgrind;
pub mod check;
pub mod compile;
pub mod container;
pub mod described;
pub mod directives;
pub mod elf;
pub mod expect;
pub mod extent;
pub mod family;
pub mod flags;
pub mod generate;
pub mod gprofdata;
pub mod known;
pub mod layers;
pub mod machine;
pub mod measured;
pub mod mutate;
pub mod normalise;
pub mod place;
pub mod run;
pub mod sequences;
pub mod switched;
pub mod synthetic;
pub mod tmux;
pub mod tool;
pub mod traced;
pub mod tree;
pub mod trials;
pub mod view;
pub mod whole;
pub mod x86;
