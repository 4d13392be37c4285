//! The whole plan for a program, and what the injector asks it.

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

/// The plan for a program: which functions are hooked and how, and everything that the agent needs to carry
/// that out.
///
/// [`Plan::new`] makes one. Unless a field says otherwise, an address is a link address, that is, one as the
/// ELF file has it, and an arena offset counts bytes from [`Plan::arena`].
#[derive(Debug)]
pub struct Plan {
    /// The hooks that the plan makes. They may be fewer than the user asked for; then `downgrade` says why.
    pub hooks: Hooks,
    /// Why the plan makes fewer hooks than the user asked for, as text for the user; `None` if it makes
    /// all of them.
    pub downgrade: Option<String>,
    /// What hooks may change in the program's behaviour, as text for the user, where the user insists on
    /// them.
    pub caution: Option<String>,
    /// The decision for each function of the image, in the image's order.
    pub verdicts: Vec<Verdict>,
    /// One record for each hooked function. The index of a record is the function's *number*.
    pub records: Vec<FunctionRecord>,
    /// For each function number, the function's index in the image.
    pub function_of: Vec<usize>,
    /// The start of the first function of the image and the end of the last one.
    pub text: (u64, u64),
    /// Address of the arena, the memory in which the agent puts the thunks.
    pub arena: u64,
    /// Bytes of the arena.
    pub arena_len: u64,
    /// Bytes of home slots in the counters of each thread.
    pub slot_bytes: u64,
    /// Which function the bytes of the arena belong to, sorted by offset: from each arena offset on, the
    /// number of the function, or `u32::MAX` for none.
    pub arena_owners: Vec<(u32, u32)>,
    /// For each pair of function numbers (caller, callee) with a jump from the one to the start of the other:
    /// the address of that jump, or `None` if there are several.
    pub(crate) tail_sites: HashMap<(u32, u32), Option<u64>>,
    /// Where control may run on from one function into the next, sorted by the address of the second one.
    pub(crate) falls: Vec<Fall>,
    /// The machine code, the patches, and the tables of the agent.
    pub(crate) emitted: Emitted,
    /// Ranges of addresses, sorted: a return address in them belongs to hooked code.
    pub(crate) hooked: Vec<CodeRange>,
    /// The lowest address of executable segments, and the first one behind the highest.
    pub(crate) code: (u64, u64),
    /// The ELF entry point.
    pub(crate) entry: u64,
    /// Address of the program headers when loaded.
    pub(crate) phdr: u64,
    /// The addresses at which hooks overwrite something, sorted.
    pub(crate) hook_points: Vec<u64>,
    /// Whether some patches remove calls of functions of an earlier profiler, which are harmless only while
    /// those functions are the empty ones of the C library.
    pub(crate) hooks_removed: bool,
    /// What writes the patches.
    pub engine: Engine,
    /// The copies of functions whose basic blocks are counted.
    pub(crate) copies: Copies,
    /// Which instruction each byte of the copies stands for, sorted: from each arena offset on, the address
    /// of the instruction.
    pub(crate) originals: Vec<(u32, u64)>,
    /// The plan file, if the plan was loaded from a cache. Then `emitted` has only the fields that are used
    /// after planning.
    pub(crate) file: Option<Vec<u8>>,
}

impl Plan {
    /// Returns the arena offset at which the instruction at `address` stands now, if it was relocated with
    /// the first instructions of its function. The first one of each function does not count: its place holds
    /// the hook.
    pub fn moved(&self, address: u64) -> Option<u32> {
        let moved = &self.emitted.moved;
        let after = moved.partition_point(|&(from, ..)| from <= address);
        let &(from, len, to) = moved.get(after.checked_sub(1)?)?;
        let offset = address - from;
        (offset < len.into()).then_some(to + offset as u32)
    }

    /// Returns the bytes that the counters of basic blocks take in the counters of each thread.
    pub fn counter_bytes(&self) -> u64 {
        u64::from(self.copies.counters) * COUNTER
    }

    /// Computes how often each basic block of the counted functions ran, from the counters' values.
    ///
    /// Returns pairs of a block's address and its count, sorted by address, and the number of blocks that ran
    /// at all. `stopped` is the address of the instruction at which a thread ended, if it ended inside a
    /// block; then the rest of that block, behind the instruction, is a pair of its own, with a count that is
    /// lower by one.
    pub fn block_counts(&self, counters: &[u64], stopped: Option<u64>) -> (Vec<(u64, u64)>, usize) {
        self.copies.counts(counters, stopped)
    }

    /// Returns how many functions have counted basic blocks, and how many blocks those have.
    pub fn counted(&self) -> (usize, usize) {
        (self.copies.units.len(), self.copies.blocks())
    }

    /// Returns the number of basic blocks and the number of counters of the function at an address.
    ///
    /// # Errors
    ///
    /// The reason, if the function's blocks are not counted.
    pub fn counting(&self, function: u64) -> Result<(usize, u32), Uncounted> {
        self.copies.counting(function)
    }

    /// Returns the address of the instruction whose copy stands at an arena offset, if the offset lies in the
    /// copies.
    pub fn original(&self, offset: u32) -> Option<u64> {
        if offset < self.emitted.copies || u64::from(offset) >= self.arena_len {
            return None;
        }
        let after = self.originals.partition_point(|&(from, _)| from <= offset);
        self.originals.get(after.checked_sub(1)?).map(|&(_, ip)| ip)
    }

    /// Returns the address of the program headers.
    pub fn phdr(&self) -> u64 {
        self.phdr
    }

    /// Returns the bytes of the program that the plan overwrites, sorted by address.
    pub fn patches(&self) -> &[Patch] {
        &self.emitted.patches
    }

    /// Returns whether a hook overwrites the instruction at an address. A thread that stands there has not
    /// begun with the function.
    pub fn is_hook_point(&self, address: u64) -> bool {
        self.hook_points.binary_search(&address).is_ok()
    }

    /// Returns whether the function with number `caller` is known to jump to the start of the one with number
    /// `callee`.
    pub fn jumps_to(&self, caller: u32, callee: u32) -> bool {
        self.tail_sites.contains_key(&(caller, callee))
    }

    /// Returns how control may run on into the function at an address from the one before it.
    pub fn fall_into(&self, address: u64) -> Option<&Fall> {
        let index = self.falls.binary_search_by_key(&address, |fall| fall.into).ok()?;
        self.falls.get(index)
    }

    /// Returns the address of the jump by which the function with number `caller` tail-calls the one with
    /// number `callee`, if there is exactly one.
    pub fn tail_site(&self, caller: u32, callee: u32) -> Option<u64> {
        self.tail_sites.get(&(caller, callee)).copied().flatten()
    }
}

/// Returns the start of the first function and the end of the last one.
pub(crate) fn extents(image: &Image) -> (u64, u64) {
    let lo = image.functions.first().map_or(image.lo, |f| f.address);
    let hi = image.functions.iter().map(|f| f.address + f.size).max().unwrap_or(image.hi);
    (lo, hi)
}

/// Returns the lowest address of executable segments and the first one behind the highest.
pub(crate) fn code_extents(image: &Image) -> (u64, u64) {
    let lo = image.code.iter().map(|c| c.address).min().unwrap_or(0);
    let hi = image.code.iter().map(|c| c.address + c.bytes.len() as u64).max().unwrap_or(0);
    (lo, hi)
}
