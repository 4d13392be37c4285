//! Converts a finished plan to bytes and back, for a cache of plans.
//!
//! A stored plan has two pieces. One is the plan file, exactly as [`Plan::encode`] writes it for the agent;
//! hooked functions and patches are read from its tables. The other has the data that only the injector
//! needs, which the agent does not get.
//!
//! The bytes may be damaged. [`Plan::from_stored`] allocates at most a small multiple of their length, does
//! not panic, and compares the plan with the image. Callers may rely on the indices and extents that `fits`
//! checks.

use crate::decide::options::{Engine, Hooks};
use crate::decide::verdict::Verdict;
use crate::emit::emitted::Moved;
use crate::flow::falls::Fall;
use crate::plan::{Plan, code_extents, extents};
use crate::stored_file::StoredFile;
use crate::x86::template::kind::{Measured, Role};
use gprofinject_abi::plan::{FunctionRecord, Patch};
use gprofinject_abi::region::{SLOTS, Slot};
use gprofinject_image::Image;
use gprofinject_image::tables::{Reader, Writer};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use zerocopy::TryFromBytes;

/// The planner's version, a hash of its sources. A planner with another version may make a different plan for
/// the same program.
pub const PLANNER: &str = env!("GPROFINJECT_PLANNER");

/// The data that the plan file does not have, and that are no long tables. The fields are those of [`Plan`].
#[derive(Serialize, Deserialize)]
struct Decisions<'p> {
    hooks: Hooks,
    engine: Engine,
    role: Role,
    downgrade: Option<Cow<'p, str>>,
    caution: Option<Cow<'p, str>>,
    slot_bytes: u64,
    falls: Cow<'p, [Fall]>,
    redirected: Cow<'p, [u64]>,
    unredirected: Cow<'p, [u64]>,
    uses_gs: Option<u64>,
}

impl Plan {
    /// Encodes the parts of the plan that its plan file does not contain. Returns `None` if basic blocks
    /// are counted, because a plan with copies is not stored.
    pub fn to_stored(&self) -> Option<Vec<u8>> {
        // The agent finds where goroutines were preempted by the table in the plan file, and the injector does not need it.
        let has_copies = !self.originals.is_empty() && !self.small_stacks;
        if self.counted() != (0, 0) || has_copies {
            return None;
        }
        let decisions = Decisions {
            hooks: self.hooks,
            engine: self.engine,
            role: self.role,
            downgrade: self.downgrade.as_deref().map(Cow::Borrowed),
            caution: self.caution.as_deref().map(Cow::Borrowed),
            slot_bytes: self.slot_bytes,
            falls: Cow::Borrowed(&self.falls),
            redirected: Cow::Borrowed(&self.redirected),
            unredirected: Cow::Borrowed(&self.unredirected),
            uses_gs: self.uses_gs,
        };
        let mut writer = Writer::default();
        writer.add(&postcard::to_allocvec(&decisions).ok()?);
        writer.add(&self.verdicts);
        writer.add(&self.function_of);
        writer.add(&self.arena_owners);
        writer.add(&self.tail_sites);
        writer.add(&self.moved);
        writer.add(&self.hook_points);
        writer.add(&self.nameless_parts);
        self.emitted.fixups.lists().into_iter().for_each(|list| writer.add(list));
        Some(writer.into_bytes())
    }

    /// Makes the plan for `image` from the results of [`Plan::to_stored`] (`decisions`) and
    /// [`Plan::encode`] (`file`). The image then knows its nameless parts. Returns `None` if the bytes are damaged, or belong to the plan of
    /// another program.
    pub fn from_stored(image: &Image, decisions: &'static [u8], file: StoredFile) -> Option<Plan> {
        let mut reader = Reader::new(decisions);
        let (decisions, []) = postcard::take_from_bytes::<Decisions>(reader.bytes(1)?).ok()? else {
            return None;
        };
        let verdicts = <[Verdict]>::try_ref_from_bytes(reader.bytes(size_of::<Verdict>())?).ok()?;
        let header = file.header();
        let records: Cow<'static, [FunctionRecord]> = file.table(header.functions)?;
        let patches: Cow<'static, [Patch]> = file.table(header.patches)?;
        let (arena, arena_len) = (header.arena, header.arena_len);
        let mut plan = Plan {
            hooks: decisions.hooks,
            downgrade: decisions.downgrade.map(Cow::into_owned),
            caution: decisions.caution.map(Cow::into_owned),
            verdicts: verdicts.into(),
            records,
            function_of: reader.table()?,
            text: (header.text_lo, header.text_hi),
            arena,
            arena_len,
            words: header.words,
            slot_bytes: decisions.slot_bytes,
            arena_owners: reader.table()?,
            tail_sites: reader.table()?,
            falls: decisions.falls.into_owned(),
            nameless_parts: Cow::default(),
            emitted: Default::default(),
            moved: reader.table()?,
            hooked: Vec::new(),
            code: code_extents(image),
            entry: header.entry,
            phdr: header.phdr,
            hook_points: reader.table()?,
            hooks_removed: image.facts.hooks_removed,
            engine: decisions.engine,
            role: decisions.role,
            small_stacks: header.small_stacks != 0,
            measured: Measured::of(header.measured),
            outermost: header.outermost != 0,
            resumes: header.resumes != 0,
            redirected: decisions.redirected.into_owned(),
            unredirected: decisions.unredirected.into_owned(),
            uses_gs: decisions.uses_gs,
            copies: Default::default(),
            originals: Vec::new(),
            file: None,
            patches,
        };
        plan.nameless_parts = reader.table()?;
        for list in plan.emitted.fixups.lists_mut() {
            *list = reader.table()?;
        }
        plan.emitted.copies = u32::try_from(arena_len).ok()?;
        let parts = plan.nameless_parts.iter().map(|&[part, function]| (part as usize, function as usize));
        let fits = reader.is_at_end() && plan.fits(image) && image.set_nameless_parts(parts.collect());
        plan.file = Some(file);
        fits.then_some(plan)
    }

    /// Returns whether every index and extent in the plan lies within the image, the arena and the slots.
    fn fits(&self, image: &Image) -> bool {
        let functions = &image.functions;
        // The home slots of functions follow each other.
        let mut next_slot = SLOTS;
        let mut slots_fit = |record: &FunctionRecord| {
            let start = u64::from(record.slots);
            let follows = start >= next_slot;
            next_slot = start + u64::from(record.slot_count) * size_of::<Slot>() as u64;
            follows && next_slot <= SLOTS + self.slot_bytes
        };
        let are_hooked = self.function_of.iter().zip(&*self.records).all(|(&function, record)| {
            functions.address(function as usize) == Some(record.entry)
                && slots_fit(record)
                && u64::from(record.body) < self.arena_len
        });
        let is_patch_of_code = |patch: &Patch| {
            patch.len as usize <= patch.original.len()
                && patch.address >= self.code.0
                && patch.address.checked_add(patch.len.into()).is_some_and(|end| end <= self.code.1)
        };
        let is_moved_to_arena = |moved: &Moved| u64::from(moved.len) + u64::from(moved.to) <= self.arena_len;
        (self.text, self.entry, self.phdr) == (extents(image), image.entry, image.phdr)
            && self.verdicts.len() == functions.len()
            && self.function_of.len() == self.records.len()
            && are_hooked
            && self.slot_bytes <= u32::MAX.into()
            && self.patches.iter().all(is_patch_of_code)
            && self.patches.is_sorted_by_key(|patch| patch.address)
            && self.moved.iter().all(is_moved_to_arena)
    }
}

#[cfg(test)]
mod tests;
