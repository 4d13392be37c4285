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
    COUNTER_BIT, PAGE, SEGMENT_BIT, SEGMENTS, SLOT_CHUNKS, counters_offset, library_offset, round_up,
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
    if !commit_chunks(agent, block, &Slots::of_program(agent), 0, 1) {
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

/// The home slots of the program or of libraries in a thread block. Their chunks are committed as they are needed.
struct Slots {
    start: u64,
    end: u64,
    /// Bytes of a chunk; the last one may be shorter.
    chunk: u64,
    /// The bit of the first chunk in `committed_chunks`.
    first_bit: u64,
}

impl Slots {
    fn of_program(agent: &Agent) -> Slots {
        // The last chunk ends where the overflow segments begin.
        let end = segment_offset(agent.orders.slot_bytes, 0);
        Slots { start: 0, end, chunk: agent.orders.slot_chunk, first_bit: 0 }
    }

    fn of_libraries(agent: &Agent) -> Slots {
        let start = library_slots(agent);
        Slots { start, end: start + agent.orders.library_bytes, chunk: PAGE, first_bit: SLOT_CHUNKS }
    }
}

/// Returns the home slots to which the one at an offset belongs.
#[inline(always)]
fn slots_with(agent: &Agent, offset: u64) -> Slots {
    if offset < library_slots(agent) { Slots::of_program(agent) } else { Slots::of_libraries(agent) }
}

/// The number of pieces of home slots that were mapped in this process.
static PIECES: AtomicU64 = AtomicU64::new(0);
/// The greatest number of them. Each takes two of the mappings that a process can have, by default 65530
/// (vm.max_map_count), and the program needs some for its own threads.
const PIECES_MAX: u64 = 12_000;

/// Returns whether a home slot, by its offset in the calling thread's thread block, is out of reach: its chunk is not
/// committed and will not be, because mappings are scarce. Its arc is counted in an overflow table instead. Integer code
/// only; see [`crate::hot::gate`].
#[inline(always)]
pub(crate) fn is_out_of_reach(agent: &Agent, block: BlockRef, offset: u64) -> bool {
    if PIECES.load(Ordering::Relaxed) < PIECES_MAX {
        return false;
    }
    let slots = slots_with(agent, offset);
    let bit = slots.first_bit + (offset - slots.start) / slots.chunk;
    match block.committed_chunks().get((bit / 64) as usize) {
        Some(word) => word.load(Ordering::Relaxed) >> (bit % 64) & 1 == 0,
        None => true,
    }
}

/// Commits the chunk of the calling thread's thread block that contains a home slot, and perhaps more. `offset` is the
/// slot's. Returns `false` if the file system or memory is full, or mappings are scarce.
pub(crate) fn commit_slot(agent: &Agent, block: BlockRef, offset: u64) -> bool {
    if is_out_of_reach(agent, block, offset) {
        return false;
    }
    let slots = slots_with(agent, offset);
    let chunk = (offset - slots.start) / slots.chunk;
    // A thread that calls few functions takes little memory; one that calls many is not to have a mapping for each chunk.
    let at_once = match block.pieces().load(Ordering::Relaxed) {
        ..64 => 1,
        64..96 => 4,
        _ => 16,
    };
    commit_chunks(agent, block, &slots, chunk / at_once * at_once, at_once)
        || commit_chunks(agent, block, &slots, chunk, 1)
}

/// Commits up to `count` chunks from the one with this index on, unless they are all committed. Returns `false` if the file system or memory is full.
fn commit_chunks(agent: &Agent, block: BlockRef, slots: &Slots, first: u64, count: u64) -> bool {
    let bits = first..first + count;
    let word_of = |chunk: u64| {
        let bit = slots.first_bit + chunk;
        Some((block.committed_chunks().get((bit / 64) as usize)?, 1 << (bit % 64)))
    };
    let is_committed =
        |chunk| word_of(chunk).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0);
    if bits.clone().all(is_committed) {
        return true;
    }
    let at = slots.start + first * slots.chunk;
    let end = slots.end.min(at + count * slots.chunk);
    if at >= end || !map_source(agent, block, at, end - at) {
        return false;
    }
    for (word, bit) in bits.filter_map(word_of) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    block.pieces().fetch_add(1, Ordering::Relaxed);
    PIECES.fetch_add(1, Ordering::Relaxed);
    true
}

/// Commits the whole of the calling thread's thread block, as far as there is room.
pub(crate) fn commit_all(agent: &Agent, block: BlockRef) {
    const AT_ONCE: u64 = 64;
    let used = libraries::slots_end();
    let (program, libraries) = (Slots::of_program(agent), Slots::of_libraries(agent));
    let ends = [program.end, used.max(libraries.start)];
    for (slots, end) in [program, libraries].iter().zip(ends) {
        for first in (0..(end - slots.start).div_ceil(slots.chunk)).step_by(AT_ONCE as usize) {
            if !commit_chunks(agent, block, slots, first, AT_ONCE) {
                return;
            }
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
