//! The modules of a process that are hooked or about to be: the program, and the libraries that its region file
//! lists.
//!
//! The process can write anything into that list, and into the tables of patches in its memory. Whatever it writes is
//! bounded, and decides only where the process's own threads may stand and where they continue.

use std::collections::BTreeSet;

use gprofinject_abi::ask::ARENAS_SPAN;
use gprofinject_abi::plan as abi;
use gprofinject_abi::region::{LOADS_MAX, LoadRecord};
use gprofinject_plan::Plan;

use crate::os::proc::Mapping;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::store::region::file::RegionFile;
use crate::target::agent::attachment::Attachment;
use crate::target::agent::overwritten::{Overwritten, Patch};
use crate::target::threads::memory::Memory;

/// The greatest number of patches of all libraries together.
const PATCHES_MAX: usize = 1 << 22;
/// The end of the addresses that a process can map: they have 47 bits.
const TOP: u64 = 1 << 47;

/// The plans of the modules that may be hooked in a process.
#[derive(Clone, Copy)]
pub(crate) struct Plans<'p> {
    pub(crate) program: Option<&'p Plan>,
    pub(crate) libraries: &'p Numbered<Library>,
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
    /// The libraries.
    pub(super) fn records(&self) -> &[LoadRecord] {
        &self.records
    }

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
            patches.extend(written(record, &mut left, memory));
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

    /// Returns those patches of libraries that stay while hooks are paused.
    pub(super) fn staying_patches(&self, memory: &Memory) -> Vec<Patch> {
        let mut left = PATCHES_MAX;
        let mut patches = Vec::new();
        for record in &self.libraries() {
            patches.extend(written(record, &mut left, memory).into_iter().filter(Patch::stays));
        }
        patches
    }

    /// Notes where the thunks of these libraries are.
    fn note_arenas(&mut self, records: &[LoadRecord]) {
        records.iter().for_each(|record| self.note_arena(record.arena, record.arena_len));
    }

    /// Notes where the thunks of a library are.
    pub(super) fn note_arena(&mut self, arena: u64, len: u64) {
        if arena < TOP && len < TOP {
            let all = &self.arenas.libraries;
            let lo = all.first().map_or(arena, |first| first.start.min(arena));
            let hi = all.last().map_or(0, |last| last.end).max(arena + len);
            if hi - lo <= ARENAS_SPAN && len != 0 && all.len() < LOADS_MAX {
                self.arenas.add(arena..arena + len);
            }
        }
    }
}

/// Returns where the code of files is mapped, by which a library is noticed that the process loads meanwhile.
pub(crate) fn code(mappings: &[Mapping]) -> BTreeSet<(u64, u64)> {
    let is_code = |mapping: &&Mapping| mapping.executable && mapping.path.starts_with('/');
    mappings.iter().filter(is_code).map(|mapping| (mapping.lo, mapping.inode)).collect()
}

/// Returns the patches in a library's text, by the process's own table. No more than `left` are read of it, which becomes
/// less by their number.
fn written(record: &LoadRecord, left: &mut usize, memory: &Memory) -> Vec<Patch> {
    let count = usize::try_from(record.patch_count).unwrap_or(usize::MAX);
    let Some(rest) = left.checked_sub(count) else { return Vec::new() };
    *left = rest;
    let written: Vec<abi::Patch> = memory.records(record.patches, count).unwrap_or_default();
    let text = record.lo..record.hi;
    written.iter().filter_map(|patch| Patch::of_library(patch, record.bias, &text)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use gprofinject_abi::region::{Load, PAGE, RegionHeader};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::store::private_folder::PrivateFolder;
    use crate::target::agent::arenas::Arenas;
    use crate::target::agent::attachment::Stage;
    use crate::target::threads::filters::Filters;

    /// Returns an attachment to this process, whose region file lists these libraries.
    fn attachment(records: &[LoadRecord]) -> (tempfile::TempDir, Attachment) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let file = folder.create_file("0.region").expect("a file");
        let mut header = RegionHeader::new_zeroed();
        header.orders.loads_offset = PAGE;
        file.write_all_at(header.as_bytes(), 0).expect("written");
        file.write_all_at(records.as_bytes(), PAGE).expect("written");
        let attachment = Attachment {
            pid: std::process::id() as i32,
            started: 0,
            auxiliary: Vec::new(),
            instruction: 0,
            arenas: Arenas::default(),
            patches: Vec::new(),
            unwinder: Vec::new(),
            is_standalone: false,
            calls: Vec::new(),
            go: None,
            folder: String::new(),
            region: "0.region".into(),
            stage: Stage::Outside,
            home: Some(folder),
            is_inherited: false,
            filters: Filters::None,
        };
        (place, attachment)
    }

    /// The load bias of all libraries here.
    const BIAS: u64 = 0x3000;

    /// Returns a library in the text from `lo` on, of 4096 bytes, with these patches.
    fn library(lo: u64, patches: &[abi::Patch]) -> LoadRecord {
        LoadRecord {
            state: Load::Hooked.code(),
            bias: BIAS,
            lo,
            hi: lo + 0x1000,
            patches: patches.as_ptr() as u64,
            patch_count: patches.len() as u64,
            ..LoadRecord::default()
        }
    }

    /// Returns a patch at a runtime address.
    fn patch(at: u64, len: u8) -> abi::Patch {
        abi::Patch { address: at.wrapping_sub(BIAS), len, ..abi::Patch::new_zeroed() }
    }

    fn overwritten(records: &[LoadRecord]) -> Overwritten {
        let (_place, mut attachment) = attachment(records);
        let memory = Memory::open(attachment.pid).expect("its own memory");
        attachment.patched_modules(&memory).overwritten
    }

    #[test]
    fn patches_outside_of_the_librarys_text_do_not_count() {
        let patches = [
            patch(0x5010, 5),
            patch(0x5ffb, 5),
            patch(0x5ffc, 5),
            patch(0x4fff, 5),
            patch(u64::MAX - 1, 5),
            patch(0x5100, 0),
            patch(0x5100, u8::MAX),
        ];
        let found = overwritten(&[library(0x5000, &patches)]);
        let expected: Vec<u64> = (0x5010..0x5015).chain(0x5ffb..0x6000).collect();
        assert_eq!((0x4000..0x7000).filter(|&at| found.contains(at)).collect::<Vec<u64>>(), expected);
        assert!(!found.contains(u64::MAX - 1) && !found.contains(u64::MAX));
    }

    #[test]
    fn extents_that_cannot_be_do_not_count() {
        let (low, high) = ([patch(0x5010, 5)], [patch(TOP, 5)]);
        let backwards = LoadRecord { hi: 0x4000, ..library(0x5000, &low) };
        let outside = library(TOP - 0x800, &high);
        let found = overwritten(&[backwards, outside, library(0x9000, &[patch(0x9010, 5)])]);
        assert!(!found.contains(0x5010) && !found.contains(TOP) && found.contains(0x9010));
    }

    /// The process says how many patches there are and where. Those that cannot be read count as well, so the time that
    /// they take is bounded.
    #[test]
    fn patches_are_bounded_in_number() {
        let patches = [patch(0x5010, 5)];
        let sound = library(0x5000, &patches);
        let claims = |count: u64| LoadRecord { patch_count: count, ..sound };
        let nowhere = |count: u64| LoadRecord { patches: 8, ..claims(count) };
        let most = PATCHES_MAX as u64;
        for (others, is_found) in [
            // These are not even tried.
            (vec![claims(u64::MAX), claims(most + 1), nowhere(u64::MAX)], true),
            (vec![nowhere(most - 1)], true),
            (vec![nowhere(most)], false),
            (vec![nowhere(most / 2), nowhere(most / 2)], false),
        ] {
            let records = [others.clone(), vec![sound]].concat();
            assert_eq!(overwritten(&records).contains(0x5010), is_found, "{others:?}");
        }
    }

    /// Where the thunks are decides how much of the process's stacks is looked at more closely.
    #[test]
    fn arenas_are_bounded_in_length() {
        let arena = |arena: u64, arena_len: u64| LoadRecord { arena, arena_len, ..library(0x5000, &[]) };
        let one = |range| Vec::from_iter([range]);
        for (records, expected) in [
            (vec![arena(0x10000, 0x2000), arena(0x20000, 0x1000)], vec![0x10000..0x12000, 0x20000..0x21000]),
            (vec![arena(0x10000, 0x2000), arena(0x10000 + ARENAS_SPAN, 0x1000)], one(0x10000..0x12000)),
            (vec![arena(0x10000, 0x2000), arena(TOP, 0x1000), arena(0x10000, TOP)], one(0x10000..0x12000)),
            (vec![arena(0x10000, ARENAS_SPAN + 1)], vec![]),
            (vec![arena(u64::MAX, u64::MAX)], vec![]),
        ] {
            let (_place, mut attachment) = attachment(&records);
            attachment.note_arenas(&records);
            assert_eq!(attachment.arenas.libraries, expected, "{records:?}");
        }
    }

    /// A region file that is gone, cut off or no table at all hides the libraries, and nothing else.
    #[test]
    fn a_table_that_cannot_be_read_is_empty() {
        let patches = [patch(0x5010, 5)];
        let (_place, attachment) = attachment(&[library(0x5000, &patches)]);
        assert_eq!(attachment.libraries().len(), 1);
        let folder = attachment.home.as_ref().expect("one");
        let file = std::fs::File::options().write(true).open(folder.reach("0.region")).expect("there");
        for len in [PAGE, 8, 0] {
            file.set_len(len).expect("cut");
            assert!(attachment.libraries().is_empty(), "{len}");
        }
        folder.remove_file("0.region").expect("removed");
        assert!(attachment.libraries().is_empty());
    }
}
