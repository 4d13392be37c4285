//! Thread blocks: parts of the region file, each of which has an address of its own in the process.
//!
//! A thread block has two mappings. The one that thunks use contains private zeros at first. The *source* is a shared
//! mapping of the thread block's part of the region file, which no code reads or writes. To commit a chunk, the agent
//! maps the pages of the source over the zeros.
#![allow(unsafe_code, reason = "blocks are mapped, and reached by their addresses")]

use crate::os::memory;
use crate::program::agent::Agent;
use crate::program::libraries;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::region::{
    COUNTER_BIT, LIBRARY_CHUNK, PAGE, SEGMENT_BIT, SEGMENTS, counters_offset, library_offset, round_up,
    segment_len, segment_offset,
};
use gprofinject_abi::shared::BlockRef;

/// The mappings of a thread block in this process.
#[repr(C)]
pub(crate) struct Place {
    /// The address that thunks use, or 0 if the thread block does not exist or is not ready. Stored with `Release` by
    /// the thread that has made the thread block, and loaded with `Acquire`: a thread that sees the address sees the
    /// header.
    block: AtomicU64,
    /// The shared mapping of the same part of the file, or 0 if the counts of the thread block reach no file. Stored
    /// before `block`, by the thread that makes the thread block.
    source: AtomicU64,
}

/// The mappings of all thread blocks, by number. Stored once, by `prepare`, before the first hook is in place.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of mappings.
pub(crate) fn prepare(agent: &Agent) -> Result<(), i32> {
    let len = agent.orders.blocks_max * size_of::<Place>() as u64;
    let table = memory::map_zeros(len.next_multiple_of(PAGE), memory::PROT_READ | memory::PROT_WRITE)?;
    PLACES.store(table as *mut Place, Ordering::Relaxed);
    Ok(())
}

/// Returns the mappings of a thread block, or `None` if the table has no such number.
fn place(agent: &Agent, index: u64) -> Option<&'static Place> {
    let table = NonNull::new(PLACES.load(Ordering::Relaxed)).filter(|_| index < agent.orders.blocks_max)?;
    // SAFETY: `prepare` has mapped a table of `blocks_max` places, which is never unmapped. Zeros are a valid
    // `Place`.
    Some(unsafe { table.add(index as usize).as_ref() })
}

/// Returns the thread block at an address that the agent has mapped, or `None` if the address is 0.
pub(crate) fn at(address: u64) -> Option<BlockRef> {
    // SAFETY: the addresses of thread blocks come from `map_zeros`, and a thread block that a thread has used is
    // never unmapped. Its header is accessed only through `BlockRef`.
    unsafe { BlockRef::at(address) }
}

/// Returns the number of thread blocks made so far, which is at most the number that the file has room for.
pub(crate) fn made(agent: &Agent) -> u64 {
    let made = agent.region.blocks().load(Ordering::Acquire);
    if made < agent.orders.blocks_max { made } else { agent.orders.blocks_max }
}

/// Returns the thread block with this number, if it is ready.
pub(crate) fn numbered(agent: &Agent, index: u64) -> Option<BlockRef> {
    at(place(agent, index)?.block.load(Ordering::Acquire))
}

/// Returns all thread blocks of this process that are ready.
pub(crate) fn all(agent: &Agent) -> impl Iterator<Item = BlockRef> {
    (0..made(agent)).filter_map(|index| numbered(agent, index))
}

/// Makes a thread block with the next free number. Returns `None` if there is no number or no memory left.
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

/// Commits the first part of a thread block of zeros, with its header, and its basic block counters. Returns whether
/// there was room. No thread may be using the thread block.
pub(crate) fn begin(agent: &Agent, block: BlockRef, index: u64) -> bool {
    // The number leads to the thread block's part of the file. It has to be written there once more.
    block.index().store(index, Ordering::Relaxed);
    if !commit(agent, block, 0, 0, agent.orders.slot_chunk.min(agent.orders.block_len)) {
        return false;
    }
    block.index().store(index, Ordering::Relaxed);
    // This field distinguishes the thread blocks of guests from those of the file's own process.
    block.process().store(if agent.guest { agent.pid } else { 0 }, Ordering::Relaxed);
    let len = round_up(agent.orders.counter_bytes, PAGE);
    len == 0 || commit(agent, block, COUNTER_BIT, counters_offset(agent.orders.slot_bytes), len)
}

/// Returns a shared mapping of the part of the region file that belongs to thread block `index`. It is made from the
/// header's mapping, which takes no descriptor: first the whole file is mapped up to the thread block's end, and then
/// only the thread block's part is kept.
fn source(agent: &Agent, index: u64) -> Option<u64> {
    let before = agent.orders.blocks_offset + index * agent.orders.block_len;
    let all = memory::map_again(agent.region.address(), before + agent.orders.block_len).ok()?;
    // SAFETY: this is the first part of a mapping that no other code knows of.
    unsafe { memory::munmap(all, before) }.ok()?;
    Some(all + before)
}

/// Commits a part of the calling thread's thread block: maps pages of the region file over the private zeros. Returns
/// `false` if the file system or memory is full.
pub(crate) fn commit(agent: &Agent, block: BlockRef, bit: u32, offset: u64, len: u64) -> bool {
    if block.committed().load(Ordering::Relaxed) & 1 << bit != 0 {
        return true;
    }
    if !map_source(agent, block, offset, len) {
        return false;
    }
    block.committed().fetch_or(1 << bit, Ordering::Relaxed);
    true
}

/// Maps pages of the region file over a part of the calling thread's thread block that is not committed yet.
fn map_source(agent: &Agent, block: BlockRef, offset: u64, len: u64) -> bool {
    let source = place(agent, block.index().load(Ordering::Relaxed))
        .map_or(0, |place| place.source.load(Ordering::Relaxed));
    // A child that is not followed does not count, and its thread blocks have no source.
    if source == 0 {
        return true;
    }
    if memory::populate(source + offset, len).is_err() {
        return false;
    }
    // SAFETY: this part of the thread block contains zeros, because it is not committed, and only the calling
    // thread uses the thread block. If a signal handler of this thread has committed the part meanwhile, the same
    // pages are mapped again.
    unsafe { memory::map_again_over(source + offset, len, block.address() + offset) }.is_ok()
}

/// Returns the offset of the library slots in a thread block.
pub(crate) fn library_slots(agent: &Agent) -> u64 {
    library_offset(agent.orders.slot_bytes, agent.orders.counter_bytes)
}

/// Commits a chunk of the library slots of the calling thread's thread block. Returns `false` if the file system or
/// memory is full.
pub(crate) fn commit_library_chunk(agent: &Agent, block: BlockRef, chunk: u64) -> bool {
    let Some(word) = block.library_committed().get((chunk / 64) as usize) else { return false };
    let bit = 1 << (chunk % 64);
    if word.load(Ordering::Relaxed) & bit == 0 {
        let offset = library_slots(agent) + chunk * LIBRARY_CHUNK;
        if !map_source(agent, block, offset, LIBRARY_CHUNK) {
            return false;
        }
        word.fetch_or(bit, Ordering::Relaxed);
    }
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
    let used = libraries::slots_end().saturating_sub(library_slots(agent));
    for chunk in 0..used.div_ceil(LIBRARY_CHUNK) {
        if !commit_library_chunk(agent, block, chunk) {
            return;
        }
    }
    for segment in 0..SEGMENTS {
        let at = segment_offset(agent.orders.slot_bytes, segment);
        if !commit(agent, block, SEGMENT_BIT + segment as u32, at, segment_len(segment)) {
            return;
        }
    }
}

/// In a forked child: forgets the thread blocks of the parent's other threads, which are no longer in use, and all
/// sources, which are parts of the parent's file.
pub(crate) fn forget_all(parent: &Agent) {
    for index in 0..made(parent) {
        if let Some(place) = place(parent, index) {
            place.block.store(0, Ordering::Relaxed);
            place.source.store(0, Ordering::Relaxed);
        }
    }
}

/// In a forked child, which has one thread: makes that thread's thread block, at the same address, thread block
/// `index` of the child's file. A child that counts nowhere gets zeros. Returns `false` if there is no memory.
pub(crate) fn begin_again(child: &Agent, block: BlockRef, index: u64) -> bool {
    let (Some(place), Some(source)) =
        (place(child, index), if child.counts_nowhere { Some(0) } else { source(child, index) })
    else {
        return false;
    };
    // SAFETY: the thread block is the calling thread's, and the process has no other thread. A signal handler may
    // have forked inside a thunk, which holds the thread block's address; the thunk will count in the new one at the
    // same address.
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
