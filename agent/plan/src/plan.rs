//! The whole plan for a program.

use crate::blocks::code::COUNTER;
use crate::blocks::copies::Copies;
use crate::blocks::uncounted::Uncounted;
use crate::decide::options::{Engine, Hooks};
use crate::decide::verdict::Verdict;
use crate::emit::emitted::Emitted;
use crate::flow::falls::Fall;
use gprofinject_abi::plan::{CodeRange, FunctionRecord, Patch};
use gprofinject_image::Image;
use std::collections::HashMap;

#[derive(Debug)]
pub struct Plan {
    /// As done, which may be less than was asked for; then `downgrade` says why.
    pub hooks: Hooks,
    pub downgrade: Option<String>,
    /// What hooks may change in the program, where the user insists on them.
    pub caution: Option<String>,
    /// One for each function of the image, in its order.
    pub verdicts: Vec<Verdict>,
    /// Hooked functions; the index is the function's number.
    pub records: Vec<FunctionRecord>,
    /// From function numbers to indices in the image.
    pub function_of: Vec<usize>,
    /// Extents of all functions, link addresses.
    pub text: (u64, u64),
    pub arena: u64,
    pub arena_len: u64,
    /// Bytes of home slots in a thread block.
    pub slot_bytes: u64,
    /// Sorted: arena offset from which on the bytes belong to the function with that number
    /// (`u32::MAX`: to none).
    pub arena_owners: Vec<(u32, u32)>,
    pub(crate) tail_sites: HashMap<(u32, u32), Option<u64>>,
    /// Sorted by the function that is run into.
    pub(crate) falls: Vec<Fall>,
    pub(crate) emitted: Emitted,
    pub(crate) hooked: Vec<CodeRange>,
    pub(crate) code: (u64, u64),
    pub(crate) entry: u64,
    pub(crate) phdr: u64,
    /// Sorted: where hooks begin that overwrite something.
    pub(crate) hook_points: Vec<u64>,
    /// Some patches take out calls of hooks, which must be the C library's empty ones.
    pub(crate) hooks_removed: bool,
    pub engine: Engine,
    /// The functions whose blocks are counted.
    pub(crate) copies: Copies,
    /// Sorted: arena offsets in the copies, from which on the bytes are those of the instruction at this address.
    pub(crate) originals: Vec<(u32, u64)>,
    /// The plan file of a plan that was stored. Then `emitted` has only what is asked for after planning.
    pub(crate) file: Option<Vec<u8>>,
}

impl Plan {
    /// Where an instruction stands now that was moved with its function's first ones: its arena offset.
    pub fn moved(&self, address: u64) -> Option<u32> {
        let moved = &self.emitted.moved;
        let after = moved.partition_point(|&(from, ..)| from <= address);
        let &(from, len, to) = moved.get(after.checked_sub(1)?)?;
        let offset = address - from;
        (offset < len.into()).then_some(to + offset as u32)
    }

    /// Bytes of counters in a thread block.
    pub fn counter_bytes(&self) -> u64 {
        u64::from(self.copies.counters) * COUNTER
    }

    /// Sorted: address and count of each block of the counted functions, from the counters' values, and how many of
    /// them have run. `stopped`: the link address of the instruction at which a thread came to its end; then what is
    /// behind it in its block has a count of its own.
    pub fn block_counts(&self, counters: &[u64], stopped: Option<u64>) -> (Vec<(u64, u64)>, usize) {
        self.copies.counts(counters, stopped)
    }

    /// How many functions and blocks are counted.
    pub fn counted(&self) -> (usize, usize) {
        (self.copies.units.len(), self.copies.blocks())
    }

    /// Blocks and counters of the function at an address, or why they are not counted.
    pub fn counting(&self, function: u64) -> Result<(usize, u32), Uncounted> {
        self.copies.counting(function)
    }

    /// The link address of the instruction whose copy is at an arena offset.
    pub fn original(&self, offset: u32) -> Option<u64> {
        if offset < self.emitted.copies || u64::from(offset) >= self.arena_len {
            return None;
        }
        let after = self.originals.partition_point(|&(from, _)| from <= offset);
        self.originals.get(after.checked_sub(1)?).map(|&(_, ip)| ip)
    }

    /// Link address of the program headers.
    pub fn phdr(&self) -> u64 {
        self.phdr
    }

    /// All bytes that are overwritten, sorted by address.
    pub fn patches(&self) -> &[Patch] {
        &self.emitted.patches
    }

    /// Whether a function's hook begins there: who is there has not begun with the function.
    pub fn is_hook_point(&self, address: u64) -> bool {
        self.hook_points.binary_search(&address).is_ok()
    }

    /// Whether function `caller` jumps to `callee`, as far as is known.
    pub fn jumps_to(&self, caller: u32, callee: u32) -> bool {
        self.tail_sites.contains_key(&(caller, callee))
    }

    /// How control may run on into the function at an address.
    pub fn fall_into(&self, address: u64) -> Option<&Fall> {
        let index = self.falls.binary_search_by_key(&address, |fall| fall.into).ok()?;
        self.falls.get(index)
    }

    /// The link address of the jump by which function `caller` tail-calls `callee`, where there is one
    /// only.
    pub fn tail_site(&self, caller: u32, callee: u32) -> Option<u64> {
        self.tail_sites.get(&(caller, callee)).copied().flatten()
    }
}

pub(crate) fn extents(image: &Image) -> (u64, u64) {
    let lo = image.functions.first().map_or(image.lo, |f| f.address);
    let hi = image.functions.iter().map(|f| f.address + f.size).max().unwrap_or(image.hi);
    (lo, hi)
}

pub(crate) fn code_extents(image: &Image) -> (u64, u64) {
    let lo = image.code.iter().map(|c| c.address).min().unwrap_or(0);
    let hi = image.code.iter().map(|c| c.address + c.bytes.len() as u64).max().unwrap_or(0);
    (lo, hi)
}
