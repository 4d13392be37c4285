//! What is printed: a run that was read enters, text or JSON leaves.

pub(crate) mod asm;
pub(crate) mod blocks;
pub(crate) mod columns;
pub(crate) mod coverage;
pub(crate) mod difference;
pub(crate) mod flat;
pub(crate) mod graph;
pub(crate) mod lines;
pub(crate) mod modules;
pub(crate) mod paths;
pub(crate) mod python;
pub(crate) mod sampled;
pub(crate) mod slow;
pub(crate) mod slow_paths;
pub(crate) mod spread;
pub(crate) mod sums;
pub(crate) mod values;
mod waits;
