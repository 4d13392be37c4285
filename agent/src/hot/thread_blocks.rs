//! Thread blocks: parts of the region file, each mapped at an address of its own in the process.
//!
//! A thread block has two mappings. The one that thunks use consists of private zero pages at first. The
//! *source* is a shared mapping of the thread block's part of the region file, which no code reads or writes.
//! When a chunk is committed, the pages of the source are mapped over the zeros.
#![allow(unsafe_code, reason = "blocks are mapped, and reached by their addresses")]

use crate::os::memory;
use crate::program::agent::Agent;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::region::{
    COUNTER_BIT, PAGE, SEGMENT_BIT, SEGMENTS, counters_offset, round_up, segment_len, segment_offset,
};
use gprofinject_abi::shared::BlockRef;

/// The addresses of a thread block in this process.
#[repr(C)]
pub(crate) struct Place {
    /// The address that thunks use, or 0 if there is no thread block or it is not ready. Stored with
    /// `Release` by the thread that has created the thread block, and loaded with `Acquire`, so that a thread
    /// that sees the address also sees the header.
    block: AtomicU64,
    /// The address of the shared mapping of the same part of the file, or 0 if the counts go to no file.
    /// Stored before `block` by the thread that creates the thread block.
    source: AtomicU64,
}

/// The table of the places of all thread blocks, indexed by their numbers. Stored once, by `prepare`, before
/// the first hook is in place.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of places.
///
/// # Errors
/// Returns the error number of mmap.
pub(crate) fn prepare(agent: &Agent) -> Result<(), i32> {
    let len = agent.orders.blocks_max * size_of::<Place>() as u64;
    let table = memory::map_zeros(len.next_multiple_of(PAGE), memory::PROT_READ | memory::PROT_WRITE)?;
    PLACES.store(table as *mut Place, Ordering::Relaxed);
    Ok(())
}

/// Returns the place of a thread block, or `None` if the number is beyond the table.
fn place(agent: &Agent, index: u64) -> Option<&'static Place> {
    let table = NonNull::new(PLACES.load(Ordering::Relaxed)).filter(|_| index < agent.orders.blocks_max)?;
    // SAFETY: `prepare` has mapped a table of `blocks_max` places, which nothing unmaps. All-zero bytes are a
    // valid place.
    Some(unsafe { table.add(index as usize).as_ref() })
}

/// Returns the thread block at an address that the agent has mapped, or `None` if the address is 0.
pub(crate) fn at(address: u64) -> Option<BlockRef> {
    // SAFETY: the addresses of thread blocks come from `map_zeros`, and nothing unmaps a thread block that
    // has had an owner. All accesses to its header are those of `BlockRef`.
    unsafe { BlockRef::at(address) }
}

/// Returns the number of thread blocks that the process has created so far, but at most the number for which
/// the file has room.
pub(crate) fn made(agent: &Agent) -> u64 {
    let made = agent.region.blocks().load(Ordering::Acquire);
    if made < agent.orders.blocks_max { made } else { agent.orders.blocks_max }
}

/// Returns the thread block with this number, or `None` if it is not ready.
pub(crate) fn numbered(agent: &Agent, index: u64) -> Option<BlockRef> {
    at(place(agent, index)?.block.load(Ordering::Acquire))
}

/// Returns all thread blocks of this process that are ready.
pub(crate) fn all(agent: &Agent) -> impl Iterator<Item = BlockRef> {
    (0..made(agent)).filter_map(|index| numbered(agent, index))
}

/// Creates a thread block with the next free number. Returns `None` if the file has no room for it or there
/// is no memory.
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

/// Commits the first chunk of a thread block of zeros, fills in its header, and commits its basic block
/// counters. Returns `false` if there is no room. No thread may use the thread block yet.
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

/// Maps the part of the region file that belongs to thread block `index`, and returns the address of this
/// shared mapping. The mapping is derived from the header's mapping and so needs no file descriptor: the file
/// is mapped up to the end of the thread block, and all but the thread block's part is unmapped.
fn source(agent: &Agent, index: u64) -> Option<u64> {
    let before = agent.orders.blocks_offset + index * agent.orders.block_len;
    let all = memory::map_again(agent.region.address(), before + agent.orders.block_len).ok()?;
    // SAFETY: this is the first part of a mapping that no other code knows of.
    unsafe { memory::munmap(all, before) }.ok()?;
    Some(all + before)
}

/// Commits a part of the calling thread's thread block: maps pages of the region file in place of private
/// zero pages. Returns `false` if the file system is full or there is no memory.
pub(crate) fn commit(agent: &Agent, block: BlockRef, bit: u32, offset: u64, len: u64) -> bool {
    if block.committed().load(Ordering::Relaxed) & 1 << bit != 0 {
        return true;
    }
    let source = place(agent, block.index().load(Ordering::Relaxed))
        .map_or(0, |place| place.source.load(Ordering::Relaxed));
    // The thread blocks of a child that is not followed have no source, because its counts go to no file.
    if source != 0 {
        if memory::populate(source + offset, len).is_err() {
            return false;
        }
        // SAFETY: this part of the thread block holds zeros, because it is not committed, and only the
        // calling thread uses the thread block. If a signal handler of this thread has committed the part
        // meanwhile, this maps the same pages at the same address again.
        if unsafe { memory::map_again_over(source + offset, len, block.address() + offset) }.is_err() {
            return false;
        }
    }
    block.committed().fetch_or(1 << bit, Ordering::Relaxed);
    true
}

/// Commits the whole of the calling thread's thread block, as far as there is room.
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

/// Forgets, in a forked child, the thread blocks of the parent's other threads, which do not exist in the
/// child, and all sources, which are parts of the parent's file.
pub(crate) fn forget_all(parent: &Agent) {
    for index in 0..made(parent) {
        if let Some(place) = place(parent, index) {
            place.block.store(0, Ordering::Relaxed);
            place.source.store(0, Ordering::Relaxed);
        }
    }
}

/// Makes the thread block of a forked child's only thread, at the same address, thread block `index` of the
/// child's file. A child that counts nowhere gets private zero pages. Returns `false` if there is no memory.
pub(crate) fn begin_again(child: &Agent, block: BlockRef, index: u64) -> bool {
    let (Some(place), Some(source)) =
        (place(child, index), if child.counts_nowhere { Some(0) } else { source(child, index) })
    else {
        return false;
    };
    // SAFETY: the thread block is the calling thread's, and the process has no other thread. A signal handler
    // may have forked while a thunk held the thread block's address in a register; the thunk then counts in
    // the new thread block at the same address.
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
