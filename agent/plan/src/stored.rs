//! Converts a finished plan to bytes and back, for a cache of plans.
//!
//! A stored plan has two pieces. One is the plan file, exactly as [`Plan::encode`] writes it for the agent;
//! hooked functions and patches are read from its tables. The other has the data that only the injector
//! needs, which the agent does not get.
//!
//! The bytes may be damaged. [`Plan::from_stored`] allocates at most a small multiple of their length, does
//! not panic, and compares the plan with the image. Callers may rely on the indices and extents that `fits`
//! checks.

use crate::decide::options::{Engine, Hooks, Role};
use crate::decide::verdict::Verdict;
use crate::emit::fixups::Fixups;
use crate::flow::falls::Fall;
use crate::plan::{Plan, code_extents, extents};
use crate::stored_file::StoredFile;
use crate::x86::template::kind::Measured;
use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{FunctionRecord, MAGIC, Patch, PlanHeader, Table};
use gprofinject_abi::region::{SLOTS, Slot};
use gprofinject_image::Image;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use zerocopy::{FromBytes, Immutable};

/// The planner's version, a hash of its sources. A planner with another version may make a different plan for
/// the same program.
pub const PLANNER: &str = env!("GPROFINJECT_PLANNER");

/// The data that the plan file does not have. The fields are those of [`Plan`].
#[derive(Serialize, Deserialize)]
struct Decisions<'p> {
    hooks: Hooks,
    engine: Engine,
    downgrade: Option<Cow<'p, str>>,
    caution: Option<Cow<'p, str>>,
    verdicts: Cow<'p, [Verdict]>,
    function_of: Cow<'p, [usize]>,
    slot_bytes: u64,
    arena_owners: Cow<'p, [(u32, u32)]>,
    tail_sites: Cow<'p, HashMap<(u32, u32), Option<u64>>>,
    falls: Cow<'p, [Fall]>,
    nameless_parts: Cow<'p, [(usize, usize)]>,
    hook_points: Cow<'p, [u64]>,
    moved: Cow<'p, [(u64, u32, u32)]>,
    fixups: Cow<'p, Fixups>,
    redirected: Cow<'p, [u64]>,
    unredirected: Cow<'p, [u64]>,
    uses_gs: Option<u64>,
}

impl Plan {
    /// Encodes the parts of the plan that its plan file does not contain. Returns `None` if basic blocks
    /// are counted, because a plan with copies is not stored.
    pub fn to_stored(&self) -> Option<Vec<u8>> {
        if self.counted() != (0, 0) || !self.originals.is_empty() {
            return None;
        }
        let decisions = Decisions {
            hooks: self.hooks,
            engine: self.engine,
            downgrade: self.downgrade.as_deref().map(Cow::Borrowed),
            caution: self.caution.as_deref().map(Cow::Borrowed),
            verdicts: Cow::Borrowed(&self.verdicts),
            function_of: Cow::Borrowed(&self.function_of),
            slot_bytes: self.slot_bytes,
            arena_owners: Cow::Borrowed(&self.arena_owners),
            tail_sites: Cow::Borrowed(&self.tail_sites),
            falls: Cow::Borrowed(&self.falls),
            nameless_parts: Cow::Borrowed(&self.nameless_parts),
            hook_points: Cow::Borrowed(&self.hook_points),
            moved: Cow::Borrowed(&self.emitted.moved),
            fixups: Cow::Borrowed(&self.emitted.fixups),
            redirected: Cow::Borrowed(&self.redirected),
            unredirected: Cow::Borrowed(&self.unredirected),
            uses_gs: self.uses_gs,
        };
        postcard::to_allocvec(&decisions).ok()
    }

    /// Makes the plan for `image` from the results of [`Plan::to_stored`] (`decisions`) and
    /// [`Plan::encode`] (`file`). The image then knows its nameless parts. Returns `None` if the bytes are damaged, or belong to the plan of
    /// another program.
    pub fn from_stored(image: &Image, decisions: &[u8], file: StoredFile) -> Option<Plan> {
        let (decisions, []) = postcard::take_from_bytes::<Decisions>(decisions).ok()? else { return None };
        let (header, _) = PlanHeader::read_from_prefix(&file).ok()?;
        if header.magic != MAGIC || header.version != VERSION {
            return None;
        }
        let records: Vec<FunctionRecord> = table(&file, header.functions)?;
        let patches: Vec<Patch> = table(&file, header.patches)?;
        let (arena, arena_len) = (header.arena, header.arena_len);
        let mut plan = Plan {
            hooks: decisions.hooks,
            downgrade: decisions.downgrade.map(Cow::into_owned),
            caution: decisions.caution.map(Cow::into_owned),
            verdicts: decisions.verdicts.into_owned(),
            records,
            function_of: decisions.function_of.into_owned(),
            text: (header.text_lo, header.text_hi),
            arena,
            arena_len,
            slot_bytes: decisions.slot_bytes,
            arena_owners: decisions.arena_owners.into_owned(),
            tail_sites: decisions.tail_sites.into_owned(),
            falls: decisions.falls.into_owned(),
            nameless_parts: decisions.nameless_parts.into_owned(),
            emitted: Default::default(),
            hooked: Vec::new(),
            code: code_extents(image),
            entry: header.entry,
            phdr: header.phdr,
            hook_points: decisions.hook_points.into_owned(),
            hooks_removed: image.facts.hooks_removed,
            engine: decisions.engine,
            // The role matters only to copies.
            role: Role::Program,
            standalone: header.standalone != 0,
            small_stacks: header.small_stacks != 0,
            measured: Measured::of(header.measured),
            resumes: header.resumes != 0,
            redirected: decisions.redirected.into_owned(),
            unredirected: decisions.unredirected.into_owned(),
            uses_gs: decisions.uses_gs,
            copies: Default::default(),
            originals: Vec::new(),
            file: None,
        };
        plan.emitted.patches = patches;
        plan.emitted.moved = decisions.moved.into_owned();
        plan.emitted.fixups = decisions.fixups.into_owned();
        plan.emitted.copies = u32::try_from(arena_len).ok()?;
        let fits = plan.fits(image) && image.set_nameless_parts(plan.nameless_parts.clone());
        plan.file = Some(file);
        fits.then_some(plan)
    }

    /// Returns whether every index and extent in the plan lies within the image, the arena and the slots.
    fn fits(&self, image: &Image) -> bool {
        let functions = &image.functions;
        let slots_fit = |record: &FunctionRecord| {
            u64::from(record.slots) + u64::from(record.slot_count) * size_of::<Slot>() as u64
                <= SLOTS + self.slot_bytes
        };
        let are_hooked = self.function_of.iter().zip(&self.records).all(|(&function, record)| {
            functions.get(function).is_some_and(|function| function.address == record.entry)
                && slots_fit(record)
                && u64::from(record.body) < self.arena_len
        });
        let is_patch_of_code = |patch: &Patch| {
            patch.len as usize <= patch.original.len()
                && patch.address >= self.code.0
                && patch.address.checked_add(patch.len.into()).is_some_and(|end| end <= self.code.1)
        };
        let is_moved_to_arena =
            |&(_, len, to): &(u64, u32, u32)| u64::from(len) + u64::from(to) <= self.arena_len;
        (self.text, self.entry, self.phdr) == (extents(image), image.entry, image.phdr)
            && self.verdicts.len() == functions.len()
            && self.function_of.len() == self.records.len()
            && are_hooked
            && self.slot_bytes <= u32::MAX.into()
            && self.emitted.patches.iter().all(is_patch_of_code)
            && self.emitted.patches.is_sorted_by_key(|patch| patch.address)
            && self.emitted.moved.iter().all(is_moved_to_arena)
    }
}

/// Returns a table of a plan file, or `None` if the file does not contain all of it.
fn table<T: FromBytes + Immutable + Copy>(file: &[u8], table: Table) -> Option<Vec<T>> {
    let (offset, count) = (usize::try_from(table.offset).ok()?, usize::try_from(table.count).ok()?);
    let entries = file.get(offset..offset.checked_add(count.checked_mul(size_of::<T>())?)?)?;
    // The file may have any alignment in memory, so its entries are copied rather than cast.
    entries.chunks_exact(size_of::<T>()).map(|entry| T::read_from_bytes(entry).ok()).collect()
}

#[cfg(test)]
mod tests;
