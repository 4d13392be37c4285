//! A profile in memory: what one process has counted, by module.
//!
//! All addresses are link addresses. Nothing here depends on a file format: each writer takes a [`Profile`]
//! and decides what its format can represent. The first writer is `gmon_out`.

use gmon::{Arc, Block};

use crate::profile::collect::Collected;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;

/// What one process has counted.
pub(crate) struct Profile<'p> {
    /// The files whose code was profiled. The program comes first; libraries are not profiled yet.
    pub(crate) modules: Vec<Module<'p>>,
    /// The samples per second of CPU time; 0 means that none were taken.
    pub(crate) rate: u32,
}

/// What was counted in the code of one file.
pub(crate) struct Module<'p> {
    /// The file and its functions.
    pub(crate) program: &'p Planned<'p, 'p>,
    /// How often each call site has called each function. The arcs are sorted, each pair once.
    pub(crate) arcs: &'p [Arc],
    /// The samples by address.
    pub(crate) samples: &'p Histogram,
    /// How often each basic block was executed; empty if basic blocks were not counted.
    pub(crate) blocks: Vec<Block>,
}

impl<'p> Profile<'p> {
    /// Returns the profile of a process with one module, the program.
    pub(crate) fn of_program(
        program: &'p Planned<'p, 'p>,
        collected: &'p Collected,
        samples: &'p Histogram,
        rate: u32,
    ) -> Profile<'p> {
        let plan = program.plan.as_ref().filter(|_| !collected.counters.is_empty());
        let counts = plan.map(|plan| plan.block_counts(&collected.counters, collected.stopped).0);
        let blocks = counts.into_iter().flatten().map(|(addr, count)| Block { addr, count }).collect();
        let module = Module { program, arcs: &collected.arcs, samples, blocks };
        Profile { modules: vec![module], rate }
    }
}
