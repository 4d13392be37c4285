//! The modules of a process that are hooked or about to be: the program, and the libraries that its region file
//! lists.
//!
//! The process can write anything into that list, and into the tables of patches in its memory. Whatever it writes is
//! bounded, and decides only where the process's own threads may stand and where they continue.

use gprofinject_abi::plan as abi;
use gprofinject_abi::region::LoadRecord;
use gprofinject_plan::Plan;

use crate::program::library::Libraries;
use crate::store::region::file::RegionFile;
use crate::target::agent::attachment::Attachment;
use crate::target::agent::overwritten::{Overwritten, Patch};
use crate::target::threads::memory::Memory;

/// The greatest number of patches of all libraries together.
const PATCHES_MAX: usize = 1 << 22;
/// The end of the addresses that a process can map: they have 47 bits.
const TOP: u64 = 1 << 47;
/// The greatest distance between the first thunk of a library and the last one. The agent reserves a part of that.
const ARENAS_MAX: u64 = 1 << 32;

/// The plans of the modules that may be hooked in a process.
#[derive(Clone, Copy)]
pub(crate) struct Plans<'p> {
    pub(crate) program: Option<&'p Plan>,
    pub(crate) libraries: &'p Libraries,
}

/// What is overwritten in the modules of a process, and where its instructions have gone.
pub(super) struct Modules<'p> {
    /// The libraries.
    records: Vec<LoadRecord>,
    pub(super) overwritten: Overwritten,
    /// The modules whose plans are known.
    moved: Vec<Moved<'p>>,
}

/// A module of which the copies of overwritten instructions are known.
struct Moved<'p> {
    plan: &'p Plan,
    bias: u64,
    /// The start of its thunks.
    arena: u64,
}

impl Modules<'_> {
    /// Returns the place of an overwritten instruction's copy, or `None` if the instruction has no copy. Both are
    /// runtime addresses.
    pub(super) fn moved(&self, at: u64) -> Option<u64> {
        self.moved.iter().find_map(|module| {
            let offset = module.plan.moved(at.wrapping_sub(module.bias))?;
            Some(module.arena.wrapping_add(offset.into()))
        })
    }

    /// Returns whether these are still all libraries of the process.
    pub(super) fn are_those_of(&self, attachment: &Attachment) -> bool {
        self.records == attachment.libraries()
    }
}

impl Attachment {
    /// Returns what the patches of these plans overwrite.
    pub(super) fn planned_modules<'p>(&mut self, plans: Plans<'p>) -> Modules<'p> {
        let records = self.libraries();
        let start = self.arenas.program.start;
        let program = plans.program.into_iter().map(|plan| Moved {
            plan,
            bias: start.wrapping_sub(plan.arena),
            arena: start,
        });
        let mut moved: Vec<Moved> = program.collect();
        let mut patches = Vec::new();
        for record in &records {
            let library = plans.libraries.get(record.plan);
            let Some(plan) = library.and_then(|library| library.planned.plan.as_ref()) else { continue };
            if patches.len() + plan.patches().len() <= PATCHES_MAX {
                patches.extend(Patch::all(plan, record.bias));
                moved.push(Moved { plan, bias: record.bias, arena: record.arena });
            }
        }
        self.note_arenas(&records);
        Modules { overwritten: Overwritten::new(&self.patches, patches), records, moved }
    }

    /// Returns what the patches overwrite that are in the process's text.
    pub(super) fn patched_modules(&mut self, memory: &Memory) -> Modules<'static> {
        let records = self.libraries();
        let mut patches = Vec::new();
        // What is read counts, whatever it is.
        let mut left = PATCHES_MAX;
        for record in &records {
            let count = usize::try_from(record.patch_count).unwrap_or(usize::MAX);
            if count <= left {
                left -= count;
                let written: Vec<abi::Patch> = memory.records(record.patches, count).unwrap_or_default();
                let text = record.lo..record.hi;
                patches.extend(written.iter().filter_map(|patch| Patch::of_library(patch, &text)));
            }
        }
        self.note_arenas(&records);
        let overwritten = Overwritten::new(&self.patches, patches);
        Modules { overwritten, records, moved: Vec::new() }
    }

    /// Returns the libraries that are hooked in the process, or prepared for that. A process that overwrites or cuts
    /// off its region file can hide them, which must not keep gprofinject from leaving it.
    fn libraries(&self) -> Vec<LoadRecord> {
        let Some(home) = &self.home else { return Vec::new() };
        let records = RegionFile::new(home, self.region.clone()).libraries().unwrap_or_default();
        let is_sound = |record: &LoadRecord| record.lo <= record.hi && record.hi < TOP;
        records.into_iter().filter(is_sound).collect()
    }

    /// Notes where the thunks of these libraries are.
    fn note_arenas(&mut self, records: &[LoadRecord]) {
        let known = records.iter().filter(|record| record.arena < TOP && record.arena_len < TOP);
        for record in known {
            let all = &self.arenas.libraries;
            let lo = if all.is_empty() { record.arena } else { all.start.min(record.arena) };
            let hi = all.end.max(record.arena + record.arena_len);
            if hi - lo <= ARENAS_MAX {
                self.arenas.libraries = lo..hi;
            }
        }
    }
}
