//! Thread blocks: parts of the region file, each of which has an address of its own in the process.
//!
//! If the region file is a memory file, a thread block is a shared mapping of its part of the file, whose pages the kernel makes when they
//! are accessed first.
//!
//! Of a file in the folder, a page that is accessed first may find the file system full, and the process would end by SIGBUS. So a thread
//! block has two mappings. The one that thunks use contains private zeros at first. The *source* is a shared mapping of the thread block's
//! part of the file, which no code reads or writes. To commit a chunk, the agent maps the pages of the source over the zeros.
#![allow(unsafe_code, reason = "blocks are mapped, and reached by their addresses")]

use crate::hot::sharers;
use crate::os::kernel;
use crate::os::memory;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::libraries;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::plan::CounterRange;
use gprofinject_abi::region::{
    COUNTER_BIT, LIBRARY_BITS, LIBRARY_COUNTER_CHUNKS, PAGE, RECENT, SEGMENT_BIT, SEGMENTS, SLOTS,
    counters_offset, library_counters_offset, library_offset, round_up, segment_len, segment_offset,
};
use gprofinject_abi::shared::BlockRef;

/// The mappings of a thread block in this process.
#[repr(C)]
pub(crate) struct Place {
    /// The address that thunks use, or 0 if the thread block does not exist or is not ready. Stored with `Release` by
    /// the thread that has made the thread block, and loaded with `Acquire`: a thread that sees the address sees the
    /// header.
    block: AtomicU64,
    /// The shared mapping of the same part of the file, which is the same as `block` if the file is a memory file; or 0 if the counts of
    /// the thread block reach no file. Stored before `block`, by the thread that makes the thread block.
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

/// Returns the address of the calling thread's thread block, or of the zeros that it has in place of one
/// ([`Agent::no_block`], [`Agent::lost_block`]). Integer code only; see [`crate::hot::gate`].
#[inline(always)]
pub(crate) fn address(agent: &Agent) -> u64 {
    let block = words::get().block().load(Ordering::Relaxed);
    if sharers::is_shared(block) { sharers::block(agent) } else { block }
}

/// Returns whether the calling thread shares its words with others: see [`sharers`].
pub(crate) fn are_words_shared() -> bool {
    sharers::is_shared(words::get().block().load(Ordering::Relaxed))
}

/// Stores the address of the calling thread's thread block. Returns `false` if the thread shares its words with more threads than there
/// is room for.
pub(crate) fn set_address(block: u64) -> bool {
    let word = words::get().block();
    if sharers::is_shared(word.load(Ordering::Relaxed)) {
        return sharers::set_block(block);
    }
    word.store(block, Ordering::Relaxed);
    true
}

/// Returns the calling thread's thread block, if it has one. Integer code only; see [`crate::hot::gate`].
#[inline(always)]
pub(crate) fn current(agent: &Agent) -> Option<BlockRef> {
    let block = address(agent);
    if block == agent.no_block || block == agent.lost_block { None } else { at(block) }
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
    let (address, source) = if agent.maps_whole {
        let source = source(agent, index)?;
        memory::note(source, len);
        (source, source)
    } else {
        let zeros = memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE).ok()?;
        let Some(source) = source(agent, index) else {
            // SAFETY: no other code knows of the mapping yet.
            let _ = unsafe { memory::munmap(zeros, len) };
            return None;
        };
        (zeros, source)
    };
    let block = at(address)?;
    place.source.store(source, Ordering::Relaxed);
    if !begin(agent, block, index) {
        return None;
    }
    place.block.store(address, Ordering::Release);
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
    let len = before + agent.orders.block_len;
    let all = memory::reserve(len, agent.orders.block_len).ok()?;
    // SAFETY: no other code knows of the mapping that is replaced.
    if unsafe { memory::map_again_over(agent.region.address(), len, all) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { memory::munmap(all, len) };
        return None;
    }
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
    // A child that is not followed does not count, and its thread blocks have no source. One that is a memory file's has all its pages.
    if source == 0 || source == block.address() {
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

/// Commits a part of the area for measured durations in the calling thread's thread block. Returns `false` if the file system
/// or memory is full, or was at one of the last attempts, or if the agent makes no system calls any more.
pub(crate) fn commit_times(agent: &Agent, block: BlockRef, offset: u64, len: u64) -> bool {
    /// Where there is no memory, each call of a function asks for it. An attempt takes longer than a thousand calls.
    const PATIENCE: u32 = 10_000;
    static SKIPPED: AtomicU32 = AtomicU32::new(0);
    let skipped = SKIPPED.load(Ordering::Relaxed);
    if skipped > 0 || kernel::is_frozen() {
        // Whether threads lose a step to each other does not matter.
        SKIPPED.store(skipped.saturating_sub(1), Ordering::Relaxed);
        return false;
    }
    let is_there =
        map_source(agent, block, offset, len) && memory::populate(block.address() + offset, len).is_ok();
    if !is_there {
        SKIPPED.store(PATIENCE, Ordering::Relaxed);
    }
    is_there
}

/// Makes the table of recent arcs of the calling thread's thread block present, so that no call has the time of its page faults.
/// Returns `false` if there is no memory.
pub(crate) fn touch_recent(block: BlockRef) -> bool {
    kernel::is_frozen() || memory::populate(block.address() + RECENT, SLOTS - RECENT).is_ok()
}

/// Returns the offset of the library slots in a thread block. Their bits are in front of them.
pub(crate) fn library_slots(agent: &Agent) -> u64 {
    let bits = if agent.orders.library_bytes == 0 { 0 } else { LIBRARY_BITS };
    library_offset(agent.orders.slot_bytes, agent.orders.counter_bytes) + bits
}

/// Returns the offset of the end of the library slots in a thread block.
pub(crate) fn library_slots_end(agent: &Agent) -> u64 {
    library_offset(agent.orders.slot_bytes, agent.orders.counter_bytes) + agent.orders.library_bytes
}

/// The home slots of the program or of libraries in a thread block, or the basic block counters of libraries. Their chunks
/// are committed as they are needed.
struct Slots {
    start: u64,
    end: u64,
    /// Bytes of a chunk; the last one may be shorter.
    chunk: u64,
    /// The bytes of the pages in front of the first chunk that have the bits of the chunks, or 0 if they are in the header.
    bits: u64,
}

impl Slots {
    fn of_program(agent: &Agent) -> Slots {
        // The last chunk ends where the overflow segments begin.
        let end = segment_offset(agent.orders.slot_bytes, 0);
        Slots { start: 0, end, chunk: agent.orders.slot_chunk, bits: 0 }
    }

    fn of_libraries(agent: &Agent) -> Slots {
        let (start, end) = (library_slots(agent), library_slots_end(agent));
        Slots { start, end, chunk: PAGE, bits: LIBRARY_BITS }
    }

    fn of_counters(agent: &Agent) -> Slots {
        let start = library_counters(agent);
        let end = start - PAGE + agent.orders.library_counter_bytes;
        Slots { start, end, chunk: PAGE, bits: PAGE }
    }

    /// Returns the words with the bits of the chunks in a thread block.
    fn words(&self, block: BlockRef) -> &'static [AtomicU64] {
        if self.bits == 0 {
            return block.committed_chunks();
        }
        let at = (block.address() + self.start - self.bits) as *const AtomicU64;
        let chunks = self.end.saturating_sub(self.start) / PAGE;
        // SAFETY: every thread block has these pages if it has such chunks, and they stay mapped. They are accessed only here, zeros are
        // valid words, and a page of bits is enough for each of `bits / PAGE` times 32768 chunks. The address is aligned, and not 0.
        unsafe { core::slice::from_raw_parts(at, (chunks / 64) as usize) }
    }

    /// Returns the word with the bit of a chunk, and the bit.
    fn bit_of(&self, block: BlockRef, chunk: u64) -> Option<(&'static AtomicU64, u64)> {
        Some((self.words(block).get((chunk / 64) as usize)?, 1 << (chunk % 64)))
    }

    /// Returns whether the chunk with a slot that is this far from the start of the thread block is committed.
    fn is_committed(&self, block: BlockRef, offset: u64) -> bool {
        // A chunk has bytes; the division must not be able to panic all the same.
        let chunk = (offset - self.start).checked_div(self.chunk).unwrap_or_default();
        match self.bit_of(block, chunk) {
            Some((word, bit)) => word.load(Ordering::Relaxed) & bit != 0,
            None => false,
        }
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
    !slots_with(agent, offset).is_committed(block, offset)
}

/// Returns whether the chunk with the home slot of a library at an offset in a thread block is committed.
pub(crate) fn is_library_slot_committed(agent: &Agent, block: BlockRef, offset: u64) -> bool {
    Slots::of_libraries(agent).is_committed(block, offset)
}

/// Commits the chunk of the calling thread's thread block that contains a home slot, and perhaps more. `offset` is the
/// slot's. Returns `false` if the file system or memory is full, or mappings are scarce.
pub(crate) fn commit_slot(agent: &Agent, block: BlockRef, offset: u64) -> bool {
    if is_out_of_reach(agent, block, offset) {
        return false;
    }
    let slots = slots_with(agent, offset);
    commit_around(agent, block, &slots, (offset - slots.start) / slots.chunk)
}

/// Commits a chunk, and perhaps more.
fn commit_around(agent: &Agent, block: BlockRef, slots: &Slots, chunk: u64) -> bool {
    // A thread that calls few functions takes little memory; one that calls many is not to have a mapping for each chunk.
    let at_once = match block.pieces().load(Ordering::Relaxed) {
        ..64 => 1,
        64..96 => 4,
        _ => 16,
    };
    commit_chunks(agent, block, slots, chunk / at_once * at_once, at_once)
        || commit_chunks(agent, block, slots, chunk, 1)
}

/// Commits up to `count` chunks from the one with this index on, unless they are all committed. Returns `false` if the file system or memory is full.
fn commit_chunks(agent: &Agent, block: BlockRef, slots: &Slots, first: u64, count: u64) -> bool {
    let bits = first..first + count;
    let word_of = |chunk| slots.bit_of(block, chunk);
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
    if !agent.maps_whole {
        block.pieces().fetch_add(1, Ordering::Relaxed);
        PIECES.fetch_add(1, Ordering::Relaxed);
    }
    true
}

/// Returns the offset of the libraries' basic block counters in a thread block. The page before them has their bits.
pub(crate) fn library_counters(agent: &Agent) -> u64 {
    let orders = &agent.orders;
    library_counters_offset(orders.slot_bytes, orders.counter_bytes, orders.library_bytes) + PAGE
}

/// Commits basic block counters of a library in the calling thread's thread block. Returns `false` if the file system or
/// memory is full.
pub(crate) fn commit_library_counters(agent: &Agent, block: BlockRef, counters: CounterRange) -> bool {
    let slots = Slots::of_counters(agent);
    let Some(first) = u64::from(counters.first).checked_sub(slots.start) else { return false };
    let mut chunks = first / PAGE..(first + u64::from(counters.len)).div_ceil(PAGE);
    let is_committed = |chunk| {
        let bit = slots.bit_of(block, chunk);
        bit.is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    };
    // These counters have no other place, so if mappings are scarce, a thread gets one for all of them.
    let are_scarce = PIECES.load(Ordering::Relaxed) >= PIECES_MAX;
    chunks.all(|chunk| {
        is_committed(chunk)
            || are_scarce && commit_chunks(agent, block, &slots, 0, used_counter_chunks(agent))
            || commit_around(agent, block, &slots, chunk)
    })
}

/// Returns the number of chunks with the basic block counters of the libraries that have been loaded so far.
fn used_counter_chunks(agent: &Agent) -> u64 {
    libraries::counters_end().saturating_sub(library_counters(agent)).div_ceil(PAGE)
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
    let (counters, used) = (Slots::of_counters(agent), used_counter_chunks(agent));
    if used > 0 && !commit_chunks(agent, block, &counters, 0, used) {
        return;
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
    // The thread returns to functions that it has entered before the fork, whose counters have to be committed again.
    let mut counters = [0; (LIBRARY_COUNTER_CHUNKS / 64) as usize];
    for (word, committed) in counters.iter_mut().zip(Slots::of_counters(child).words(block)) {
        *word = committed.load(Ordering::Relaxed);
    }
    let is_whole = child.maps_whole && source != 0;
    // SAFETY: the thread block is the calling thread's, and the process has no other thread. A signal handler may
    // have forked inside a thunk, which holds the thread block's address; the thunk will count in the new one at the
    // same address. No other code knows of the source.
    let replaced = unsafe {
        let flags = memory::MAP_PRIVATE | memory::MAP_ANONYMOUS | memory::MAP_FIXED | memory::MAP_NORESERVE;
        let access = memory::PROT_READ | memory::PROT_WRITE;
        match is_whole {
            true => memory::move_over(source, child.orders.block_len, block.address()),
            false => memory::mmap(block.address(), child.orders.block_len, access, flags, -1, 0),
        }
    };
    if replaced.is_err() {
        return false;
    }
    let source = if is_whole { block.address() } else { source };
    place.source.store(source, Ordering::Relaxed);
    place.block.store(block.address(), Ordering::Release);
    if source == 0 {
        block.index().store(index, Ordering::Relaxed);
        return true;
    }
    if !begin(child, block, index) || !commit_again(child, block, &counters) {
        return false;
    }
    block.owners().store(1, Ordering::Relaxed);
    true
}

/// Commits the chunks of the libraries' basic block counters with these bits. Returns `false` if there is no room.
fn commit_again(agent: &Agent, block: BlockRef, bits: &[u64]) -> bool {
    let slots = Slots::of_counters(agent);
    let is_set =
        |chunk: u64| bits.get((chunk / 64) as usize).is_some_and(|word| word & 1 << (chunk % 64) != 0);
    let mut first = 0;
    while first < LIBRARY_COUNTER_CHUNKS {
        let end =
            (first..LIBRARY_COUNTER_CHUNKS).find(|&chunk| !is_set(chunk)).unwrap_or(LIBRARY_COUNTER_CHUNKS);
        if end > first && !commit_chunks(agent, block, &slots, first, end - first) {
            return false;
        }
        first = end + 1;
    }
    true
}
