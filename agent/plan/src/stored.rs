//! A finished plan as bytes and back, for a cache of plans.
//!
//! A stored plan has two pieces. One is the plan file, exactly as [`Plan::encode`] writes it for the agent;
//! hooked functions and patches are read from its tables. The other has what the injector needs besides and
//! the agent does not get.
//!
//! The bytes may be damaged. [`Plan::from_stored`] allocates at most a small multiple of their length, does
//! not panic, and compares them with the image. The indices and extents that `fits` checks can be relied on
//! afterwards.

use crate::decide::options::{Engine, Hooks};
use crate::decide::verdict::Verdict;
use crate::flow::falls::Fall;
use crate::plan::{Plan, code_extents, extents};
use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{FunctionRecord, MAGIC, Patch, PlanHeader, Table};
use gprofinject_abi::region::{SLOTS, Slot};
use gprofinject_image::Image;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::mem::offset_of;

/// The planner's name, a hash of its sources. A planner with another name may decide otherwise about the same
/// program.
pub const PLANNER: &str = env!("GPROFINJECT_PLANNER");

/// What the plan file does not have. The fields are those of [`Plan`].
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
    hook_points: Cow<'p, [u64]>,
    moved: Cow<'p, [(u64, u32, u32)]>,
}

impl Plan {
    /// Encodes what belongs to the plan besides its plan file. `None`: basic blocks are counted, and a plan
    /// with copies is not stored.
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
            hook_points: Cow::Borrowed(&self.hook_points),
            moved: Cow::Borrowed(&self.emitted.moved),
        };
        postcard::to_allocvec(&decisions).ok()
    }

    /// Makes the plan for `image` from what [`Plan::to_stored`] (`decisions`) and [`Plan::encode`] (`file`)
    /// returned. `None`: the bytes are damaged, or belong to the plan of another program.
    pub fn from_stored(image: &Image, decisions: &[u8], file: Vec<u8>) -> Option<Plan> {
        let (decisions, []) = postcard::take_from_bytes::<Decisions>(decisions).ok()? else { return None };
        let header = Header::read(&file)?;
        let records: Vec<FunctionRecord> = header.records.chunks_exact(RECORD).map(record).collect();
        let patches: Vec<Patch> = header.patches.chunks_exact(PATCH).map(patch).collect();
        let (arena, arena_len) = (header.arena, header.arena_len);
        let mut plan = Plan {
            hooks: decisions.hooks,
            downgrade: decisions.downgrade.map(Cow::into_owned),
            caution: decisions.caution.map(Cow::into_owned),
            verdicts: decisions.verdicts.into_owned(),
            records,
            function_of: decisions.function_of.into_owned(),
            text: header.text,
            arena,
            arena_len,
            slot_bytes: decisions.slot_bytes,
            arena_owners: decisions.arena_owners.into_owned(),
            tail_sites: decisions.tail_sites.into_owned(),
            falls: decisions.falls.into_owned(),
            emitted: Default::default(),
            hooked: Vec::new(),
            code: code_extents(image),
            entry: header.entry,
            phdr: header.phdr,
            hook_points: decisions.hook_points.into_owned(),
            hooks_removed: image.facts.hooks_removed,
            engine: decisions.engine,
            copies: Default::default(),
            originals: Vec::new(),
            file: None,
        };
        plan.emitted.patches = patches;
        plan.emitted.moved = decisions.moved.into_owned();
        plan.emitted.copies = u32::try_from(arena_len).ok()?;
        let fits = plan.fits(image);
        plan.file = Some(file);
        fits.then_some(plan)
    }

    /// Whether every index and extent in the plan stays within the image, the arena and the slots.
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

/// Bytes of an encoded [`FunctionRecord`].
const RECORD: usize = size_of::<FunctionRecord>();
/// Bytes of an encoded [`Patch`].
const PATCH: usize = size_of::<Patch>();

/// The part of a plan file's [`PlanHeader`] that a loaded plan needs, with the encoded records and patches.
struct Header<'f> {
    phdr: u64,
    entry: u64,
    text: (u64, u64),
    arena: u64,
    arena_len: u64,
    records: &'f [u8],
    patches: &'f [u8],
}

impl<'f> Header<'f> {
    /// Reads the header. `None`: the file is too short, or is no plan file of this version.
    fn read(file: &'f [u8]) -> Option<Header<'f>> {
        let header = file.get(..size_of::<PlanHeader>())?;
        let table = |at: usize, size: usize| {
            let offset = usize::try_from(word(header, at + offset_of!(Table, offset))).ok()?;
            let count = usize::try_from(word(header, at + offset_of!(Table, count))).ok()?;
            file.get(offset..offset.checked_add(count.checked_mul(size)?)?)
        };
        let is_ours = header.starts_with(&MAGIC) && half(header, offset_of!(PlanHeader, version)) == VERSION;
        is_ours.then_some(())?;
        Some(Header {
            phdr: word(header, offset_of!(PlanHeader, phdr)),
            entry: word(header, offset_of!(PlanHeader, entry)),
            text: (
                word(header, offset_of!(PlanHeader, text_lo)),
                word(header, offset_of!(PlanHeader, text_hi)),
            ),
            arena: word(header, offset_of!(PlanHeader, arena)),
            arena_len: word(header, offset_of!(PlanHeader, arena_len)),
            records: table(offset_of!(PlanHeader, functions), RECORD)?,
            patches: table(offset_of!(PlanHeader, patches), PATCH)?,
        })
    }
}

/// Decodes a record of exactly [`RECORD`] bytes.
fn record(bytes: &[u8]) -> FunctionRecord {
    let half = |at| half(bytes, at);
    FunctionRecord {
        entry: word(bytes, offset_of!(FunctionRecord, entry)),
        exit: half(offset_of!(FunctionRecord, exit)),
        slots: half(offset_of!(FunctionRecord, slots)),
        mask: half(offset_of!(FunctionRecord, mask)),
        multiplier: half(offset_of!(FunctionRecord, multiplier)),
        shift: bytes[offset_of!(FunctionRecord, shift)],
        popped: bytes[offset_of!(FunctionRecord, popped)],
        pushed: bytes[offset_of!(FunctionRecord, pushed)],
        flags: bytes[offset_of!(FunctionRecord, flags)],
        resume: half(offset_of!(FunctionRecord, resume)),
        body: half(offset_of!(FunctionRecord, body)),
        size: half(offset_of!(FunctionRecord, size)),
        slot_count: half(offset_of!(FunctionRecord, slot_count)),
        thunk: half(offset_of!(FunctionRecord, thunk)),
    }
}

/// Decodes a patch of exactly [`PATCH`] bytes.
fn patch(bytes: &[u8]) -> Patch {
    Patch {
        address: word(bytes, offset_of!(Patch, address)),
        len: half(bytes, offset_of!(Patch, len)),
        by: half(bytes, offset_of!(Patch, by)),
        original: array(bytes, offset_of!(Patch, original)),
        replacement: array(bytes, offset_of!(Patch, replacement)),
    }
}

/// Returns the u64 at an offset.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Returns the u32 at an offset.
fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Returns `LEN` bytes at an offset of a header or an entry whose length has been checked.
fn array<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    bytes[at..].first_chunk().copied().unwrap_or([0; LEN])
}

#[cfg(test)]
mod tests;
