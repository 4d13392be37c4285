//! Thread blocks: parts of the region file, each at a place of its own in the process.
//!
//! A block has two mappings. The place that thunks use holds private zeros at first. The *source* is a shared mapping of
//! the block's part of the region file, which no code reads or writes. When a chunk is committed, the pages of the source
//! are mapped over the zeros.
#![allow(unsafe_code, reason = "blocks are mapped, and reached by their addresses")]

use crate::os::memory;
use crate::program::agent::Agent;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::region::{
    COUNTER_BIT, PAGE, SEGMENT_BIT, SEGMENTS, counters_offset, round_up, segment_len, segment_offset,
};
use gprofinject_abi::shared::BlockRef;

/// Where a block is in this process.
#[repr(C)]
pub(crate) struct Place {
    /// What thunks use; 0: the block is not there, or not ready. Stored with `Release` by the thread that has made the
    /// block, and loaded with `Acquire`: who finds the address finds the block's header.
    block: AtomicU64,
    /// The shared mapping of the same part of the file; 0: the block counts for nobody. Stored before `block`, by the
    /// thread that makes the block.
    source: AtomicU64,
}

/// The places of all blocks, by their numbers. Stored once, by `prepare`, before the first hook is in place.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of places.
pub(crate) fn prepare(agent: &Agent) -> Result<(), i32> {
    let len = agent.orders.blocks_max * size_of::<Place>() as u64;
    let table = memory::map_zeros(len.next_multiple_of(PAGE), memory::PROT_READ | memory::PROT_WRITE)?;
    PLACES.store(table as *mut Place, Ordering::Relaxed);
    Ok(())
}

/// The place of a block, or `None` if the table has no such number.
fn place(agent: &Agent, index: u64) -> Option<&'static Place> {
    let table = NonNull::new(PLACES.load(Ordering::Relaxed)).filter(|_| index < agent.orders.blocks_max)?;
    // SAFETY: `prepare` has mapped a table of `blocks_max` places, which nobody unmaps. Zeros are a place.
    Some(unsafe { table.add(index as usize).as_ref() })
}

/// The block at an address that the agent has mapped; `None` if the address is 0.
pub(crate) fn at(address: u64) -> Option<BlockRef> {
    // SAFETY: the addresses of blocks come from `map_zeros`, and nobody unmaps a block that a thread has had. Its header is
    // reached through `BlockRef` only.
    unsafe { BlockRef::at(address) }
}

/// How many blocks the process has had so far, at most as many as the file has room for.
pub(crate) fn made(agent: &Agent) -> u64 {
    let made = agent.region.blocks().load(Ordering::Acquire);
    if made < agent.orders.blocks_max { made } else { agent.orders.blocks_max }
}

/// The block with this number, if it is ready.
pub(crate) fn numbered(agent: &Agent, index: u64) -> Option<BlockRef> {
    at(place(agent, index)?.block.load(Ordering::Acquire))
}

/// All blocks of this process that are ready.
pub(crate) fn all(agent: &Agent) -> impl Iterator<Item = BlockRef> {
    (0..made(agent)).filter_map(|index| numbered(agent, index))
}

/// Makes a block with the next free number.
pub(crate) fn make(agent: &Agent) -> Option<BlockRef> {
    let index = agent.region.blocks().fetch_add(1, Ordering::Relaxed);
    let place = place(agent, index)?;
    let len = agent.orders.block_len;
    let zeros = memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE).ok()?;
    let Some(source) = source(agent, index) else {
        // SAFETY: no other code knows of the mapping yet.
        let _ = unsafe { memory::munmap(zeros, len) };
        return None;
    };
    let block = at(zeros)?;
    place.source.store(source, Ordering::Relaxed);
    if !begin(agent, block, index) {
        return None;
    }
    place.block.store(zeros, Ordering::Release);
    Some(block)
}

/// Makes the first part of a block of zeros lasting, with its header, and its basic block counters. False: there is no
/// room. The block must be one that no thread uses.
pub(crate) fn begin(agent: &Agent, block: BlockRef, index: u64) -> bool {
    // The number leads to the block's part of the file. There, it has to be written once more.
    block.index().store(index, Ordering::Relaxed);
    if !commit(agent, block, 0, 0, agent.orders.slot_chunk.min(agent.orders.block_len)) {
        return false;
    }
    block.index().store(index, Ordering::Relaxed);
    // What tells the blocks of guests apart from those of the file's own process.
    block.process().store(if agent.guest { agent.pid } else { 0 }, Ordering::Relaxed);
    let len = round_up(agent.orders.counter_bytes, PAGE);
    len == 0 || commit(agent, block, COUNTER_BIT, counters_offset(agent.orders.slot_bytes), len)
}

/// A shared mapping of the part of the region file that belongs to block `index`. It is made from the header's mapping,
/// which takes no descriptor: first of the whole file up to the block's end, of which only the block's part is kept.
fn source(agent: &Agent, index: u64) -> Option<u64> {
    let before = agent.orders.blocks_offset + index * agent.orders.block_len;
    let all = memory::map_again(agent.region.address(), before + agent.orders.block_len).ok()?;
    // SAFETY: this is the first part of a mapping that no other code knows of.
    unsafe { memory::munmap(all, before) }.ok()?;
    Some(all + before)
}

/// Makes a part of the calling thread's block lasting: pages of the region file in place of private zeros. False: the file
/// system is full, or memory is.
pub(crate) fn commit(agent: &Agent, block: BlockRef, bit: u32, offset: u64, len: u64) -> bool {
    if block.committed().load(Ordering::Relaxed) & 1 << bit != 0 {
        return true;
    }
    let source = place(agent, block.index().load(Ordering::Relaxed))
        .map_or(0, |place| place.source.load(Ordering::Relaxed));
    // A child that is not followed counts for nobody, and its blocks have no source.
    if source != 0 {
        if memory::populate(source + offset, len).is_err() {
            return false;
        }
        // SAFETY: this part of the block holds zeros, because it is not committed, and only the calling thread uses the
        // block. If a signal handler of this thread has committed the part meanwhile, the same pages come to the same place.
        if unsafe { memory::map_again_over(source + offset, len, block.address() + offset) }.is_err() {
            return false;
        }
    }
    block.committed().fetch_or(1 << bit, Ordering::Relaxed);
    true
}

/// Makes the whole of the calling thread's block lasting, as far as there is room.
pub(crate) fn commit_all(agent: &Agent, block: BlockRef) {
    let (slots, chunk) = (segment_offset(agent.orders.slot_bytes, 0), agent.orders.slot_chunk);
    let (mut at, mut bit) = (0, 0);
    while at < slots {
        let len = chunk.min(slots - at);
        if !commit(agent, block, bit, at, len) {
            return;
        }
        (at, bit) = (at + len, bit + 1);
    }
    for segment in 0..SEGMENTS {
        let at = segment_offset(agent.orders.slot_bytes, segment);
        if !commit(agent, block, SEGMENT_BIT + segment as u32, at, segment_len(segment)) {
            return;
        }
    }
}

/// In a forked child: forgets the blocks of the parent's other threads, which nobody uses any more, and all sources, which
/// are parts of the parent's file.
pub(crate) fn forget_all(parent: &Agent) {
    for index in 0..made(parent) {
        if let Some(place) = place(parent, index) {
            place.block.store(0, Ordering::Relaxed);
            place.source.store(0, Ordering::Relaxed);
        }
    }
}

/// In a forked child, which has one thread: its block, at the same address, becomes block `index` of the child's file. False:
/// there is no memory. A child that counts nowhere gets zeros.
pub(crate) fn begin_again(child: &Agent, block: BlockRef, index: u64) -> bool {
    let (Some(place), Some(source)) =
        (place(child, index), if child.counts_nowhere { Some(0) } else { source(child, index) })
    else {
        return false;
    };
    // SAFETY: the block is the calling thread's, and the process has no other thread. A signal handler may have forked in the
    // middle of a thunk, which holds the block's address; the thunk will count in the new block at the same address.
    let cleared = unsafe {
        let flags = memory::MAP_PRIVATE | memory::MAP_ANONYMOUS | memory::MAP_FIXED | memory::MAP_NORESERVE;
        let access = memory::PROT_READ | memory::PROT_WRITE;
        memory::mmap(block.address(), child.orders.block_len, access, flags, -1, 0)
    };
    if cleared.is_err() {
        return false;
    }
    place.source.store(source, Ordering::Relaxed);
    place.block.store(block.address(), Ordering::Release);
    if source == 0 {
        block.index().store(index, Ordering::Relaxed);
        return true;
    }
    if !begin(child, block, index) {
        return false;
    }
    block.owners().store(1, Ordering::Relaxed);
    true
}
