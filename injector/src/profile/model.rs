//! A profile in memory: what one process has counted, by module.
//!
//! All addresses are link addresses. Nothing here depends on a file format: each writer takes a [`Profile`]
//! and decides what its format can represent. The first writer is `gmon_out`; the report and `--stats` read
//! the same profile.

use gmon::Block;

use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;

/// What one process has counted.
pub(crate) struct Profile {
    /// The files whose code was profiled. The program comes first; libraries are not profiled yet.
    pub(crate) modules: Vec<Module>,
    /// The calls, by caller and called function. The arcs are sorted, each pair once.
    pub(crate) arcs: Vec<Arc>,
    /// The number of threads that have counted.
    pub(crate) threads: u64,
    /// The samples per second of CPU time; 0 means that none were taken.
    pub(crate) rate: u32,
}

/// What was counted in the code of one file.
pub(crate) struct Module {
    /// The file, its functions and its plan.
    pub(crate) program: &'static Planned<'static, 'static>,
    /// The samples by address.
    pub(crate) samples: Histogram,
    /// What the basic-block counters say.
    pub(crate) counters: Counters,
}

/// The values of a module's basic-block counters. The plan has the basic blocks that each of them stands for.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// The values, in the plan's order; empty if basic blocks were not counted.
    pub(crate) values: Vec<u64>,
    /// The link address of the instruction at which the process was killed, if it is in a function whose
    /// basic blocks are counted.
    pub(crate) stopped: Option<u64>,
}

/// The index of a module in [`Profile::modules`].
pub(crate) type ModuleIndex = u32;

/// The module of the program itself.
pub(crate) const PROGRAM: ModuleIndex = 0;

/// An address in the code of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) module: ModuleIndex,
    /// The link address.
    pub(crate) address: u64,
}

/// How often one call site has called one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arc {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) count: u64,
}

impl Arc {
    /// Returns an arc whose ends are both in `module`.
    pub(crate) fn inside(module: ModuleIndex, arc: gmon::Arc) -> Arc {
        let place = |address| Place { module, address };
        Arc { from: place(arc.from), to: place(arc.to), count: arc.count }
    }

    /// Returns the arc by its link addresses if both ends are in `module`.
    pub(crate) fn within(&self, module: ModuleIndex) -> Option<gmon::Arc> {
        let is_within = self.from.module == module && self.to.module == module;
        is_within.then_some(gmon::Arc { from: self.from.address, to: self.to.address, count: self.count })
    }
}

impl Module {
    /// Returns how often each basic block was executed, and how many were executed at all. There is nothing if
    /// basic blocks were not counted.
    pub(crate) fn blocks(&self) -> (Vec<Block>, usize) {
        let plan = self.program.plan.as_ref().filter(|_| !self.counters.values.is_empty());
        let Some(plan) = plan else { return (Vec::new(), 0) };
        let (counts, executed) = plan.block_counts(&self.counters.values, self.counters.stopped);
        (counts.into_iter().map(|(addr, count)| Block { addr, count }).collect(), executed)
    }
}

impl Profile {
    /// Returns the profile of a process that has counted nothing yet. Its only module is the program.
    pub(crate) fn of_program(program: &'static Planned<'static, 'static>, rate: u32) -> Profile {
        let samples = Histogram::new(program.shape);
        let module = Module { program, samples, counters: Counters::default() };
        Profile { modules: vec![module], arcs: Vec::new(), threads: 0, rate }
    }

    /// Returns the number of counted calls.
    pub(crate) fn calls(&self) -> u64 {
        self.arcs.iter().fold(0, |sum, arc| sum.saturating_add(arc.count))
    }

    /// Subtracts what an earlier profile of the same process has counted. The number of threads stays.
    pub(crate) fn subtract(&mut self, before: &Profile) {
        let mut old = before.arcs.iter().peekable();
        for arc in &mut self.arcs {
            // Both lists are sorted.
            while old.next_if(|old| (old.from, old.to) < (arc.from, arc.to)).is_some() {}
            if let Some(old) = old.next_if(|old| (old.from, old.to) == (arc.from, arc.to)) {
                arc.count = arc.count.saturating_sub(old.count);
            }
        }
        self.arcs.retain(|arc| arc.count > 0);
        for (module, before) in self.modules.iter_mut().zip(&before.modules) {
            for (count, before) in module.counters.values.iter_mut().zip(&before.counters.values) {
                *count = count.saturating_sub(*before);
            }
            module.samples.subtract(&before.samples);
        }
    }
}
