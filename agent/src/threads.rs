//! Thread blocks: handed out on a thread's first hooked call, used again after its end.
//!
//! A block has two mappings: zeros at the place that thunks use, and a shared mapping of its part of the
//! region file, never touched itself. Committing a chunk maps the latter's pages over the zeros.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::counters;
use crate::sys;
use crate::timer;
use crate::words;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::region::{BlockHeader, SEGMENT_BIT, SEGMENTS, segment_len, segment_offset};

/// Where each block is in this process, by its number. Filled as blocks are made.
#[derive(Clone, Copy)]
#[repr(C)]
struct Place {
    /// What thunks use.
    block: u64,
    /// The shared mapping of the same part of the file.
    source: u64,
}

struct Places(core::cell::UnsafeCell<*mut Place>);
// SAFETY: the pointer is set by `prepare` before the first hook; entries are written once by the thread
// that took their number and read through atomics.
unsafe impl Sync for Places {}
static PLACES: Places = Places(core::cell::UnsafeCell::new(core::ptr::null_mut()));

/// Blocks looked at for a dead owner each time a block is wanted.
const REUSE_LOOKS: u64 = 8;

/// Reserves the table of blocks.
pub(crate) fn prepare(agent: &Agent) -> Result<(), i32> {
    let len = agent.blocks_max * size_of::<Place>() as u64;
    let table = sys::map_zeros(len.next_multiple_of(4096), sys::PROT_READ | sys::PROT_WRITE)?;
    // SAFETY: one thread, no hooks yet.
    unsafe { *PLACES.0.get() = table as *mut Place };
    Ok(())
}

fn place(index: u64) -> *mut Place {
    // SAFETY: index < blocks_max, the length of the table.
    unsafe { (*PLACES.0.get()).add(index as usize) }
}

/// The calling thread's block, made or taken over if it has none. None: no memory for one.
pub(crate) fn block(agent: &Agent) -> Option<u64> {
    let words = words::get();
    // SAFETY: the thread's own words.
    let block = unsafe { (*words).block };
    if block == agent.lost_block {
        return None;
    }
    if block != agent.no_block && block != 0 {
        return Some(block);
    }
    let found = if sys::is_frozen() { None } else { reuse(agent).or_else(|| make(agent)) };
    match found {
        Some(block) => {
            adopt(agent, block);
            Some(block)
        }
        None => {
            // SAFETY: the thread's own words; the region header stays mapped.
            unsafe {
                (*words).block = agent.lost_block;
                add(&raw mut (*agent.header()).lost_threads, 1);
            }
            counters::count_in(agent, agent.lost_block);
            None
        }
    }
}

/// A block whose thread has ended, or that was this thread's before the C library reset its words.
fn reuse(agent: &Agent) -> Option<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tid = sys::gettid();
    // SAFETY: the region header stays mapped.
    let made = unsafe { AtomicU64::from_ptr(&raw mut (*agent.header()).blocks) }.load(Ordering::Acquire);
    let made = if made < agent.blocks_max { made } else { agent.blocks_max };
    let looks = if made < REUSE_LOOKS { made } else { REUSE_LOOKS };
    for _ in 0..looks {
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % made;
        // SAFETY: index < blocks_max; written once with release order.
        let block = unsafe { AtomicU64::from_ptr(&raw mut (*place(index)).block) }.load(Ordering::Acquire);
        if block == 0 {
            continue;
        }
        // SAFETY: a block stays mapped; its header is in its first, committed chunk.
        let owner = unsafe { AtomicU32::from_ptr(&raw mut (*(block as *mut BlockHeader)).tid) };
        let old = owner.load(Ordering::Acquire);
        if old == 0 || old != tid && sys::thread_lives(agent.pid, old) {
            continue;
        }
        // Of several threads that saw the owner dead, one gets the block.
        if owner.compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(block);
        }
    }
    None
}

fn make(agent: &Agent) -> Option<u64> {
    // SAFETY: the region header stays mapped.
    let index = unsafe { add(&raw mut (*agent.header()).blocks, 1) };
    if index >= agent.blocks_max {
        return None;
    }
    let access = sys::PROT_READ | sys::PROT_WRITE;
    let block = sys::map_zeros(agent.block_len, access).ok()?;
    let Some(source) = source(agent, index) else {
        // SAFETY: nobody knows of the mapping yet.
        let _ = unsafe { sys::munmap(block, agent.block_len) };
        return None;
    };
    // SAFETY: index < blocks_max, and the number is this thread's alone.
    unsafe { (*place(index)).source = source };
    if !begin(agent, block, index) {
        return None;
    }
    // SAFETY: zeros of our own, as long as a block.
    unsafe { (*(block as *mut BlockHeader)).process = process(agent) };
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(&raw mut (*place(index)).block) }.store(block, Ordering::Release);
    Some(block)
}

/// Makes the first part of a block of zeros lasting, and its block counters. False: there is no room.
fn begin(agent: &Agent, block: u64, index: u64) -> bool {
    let header = block as *mut BlockHeader;
    // SAFETY: a block that nobody else uses yet. The number leads to its part of the file; there it has to be
    // written once more.
    unsafe {
        (*header).index = index;
        if !commit(block, 0, 0, agent.slot_chunk.min(agent.block_len)) {
            return false;
        }
        (*header).index = index;
    }
    counters::commit(agent, block)
}

/// What tells the blocks of guests apart.
fn process(agent: &Agent) -> u32 {
    if agent.guest { agent.pid } else { 0 }
}

/// A shared mapping of block `index`'s part of the region file, made from the header's mapping, which
/// needs no descriptor: the whole file up to the block's end for a moment, then only the block.
fn source(agent: &Agent, index: u64) -> Option<u64> {
    let before = agent.blocks_offset + index * agent.block_len;
    let all = sys::map_again(agent.header() as u64, before + agent.block_len).ok()?;
    // SAFETY: the first part of a mapping that was just made.
    unsafe { sys::munmap(all, before) }.ok()?;
    Some(all + before)
}

/// Makes the block the calling thread's.
fn adopt(agent: &Agent, block: u64) {
    let words = words::get();
    let header = block as *mut BlockHeader;
    // SAFETY: the block is this thread's now, and so are the words. A signal handler that comes in
    // between finds no block yet and gets another one; then that one is kept for the handler's counts
    // only, and this one goes on.
    unsafe {
        (*header).owners += 1;
        timer::restart(agent, header);
        AtomicU32::from_ptr(&raw mut (*header).tid).store(sys::gettid(), Ordering::Release);
        (*words).block = block;
    }
    counters::count_in(agent, block);
}

/// Makes a part of the block lasting: pages of the region file in place of private zeros. False: the file
/// system is full, or memory is.
pub(crate) fn commit(block: u64, bit: u32, offset: u64, len: u64) -> bool {
    let header = block as *mut BlockHeader;
    // SAFETY: the header is part of the thread's own block, and only this thread (or a handler in it)
    // writes it.
    unsafe {
        if (*header).committed & 1 << bit != 0 {
            return true;
        }
        // A child that is not followed counts for nobody.
        let source = (*place((*header).index)).source;
        if source != 0 {
            if sys::populate(source + offset, len).is_err() {
                return false;
            }
            if sys::map_again_over(source + offset, len, block + offset).is_err() {
                return false;
            }
        }
        AtomicU32::from_ptr(&raw mut (*header).committed).fetch_or(1 << bit, Ordering::Relaxed);
    }
    true
}

/// Makes the whole block lasting, as far as there is room.
pub(crate) fn commit_all(agent: &Agent, block: u64) {
    let slots = segment_offset(agent.slot_bytes, 0);
    let mut at = 0;
    while at < slots {
        let len = agent.slot_chunk.min(slots - at);
        if !commit(block, (at / agent.slot_chunk) as u32, at, len) {
            return;
        }
        at += len;
    }
    for segment in 0..SEGMENTS {
        let at = segment_offset(agent.slot_bytes, segment);
        if !commit(block, SEGMENT_BIT + segment as u32, at, segment_len(segment)) {
            return;
        }
    }
}

/// The headers of all blocks of this process.
pub(crate) fn headers(agent: &Agent) -> impl Iterator<Item = *mut BlockHeader> {
    // SAFETY: the region header stays mapped.
    let made = unsafe { AtomicU64::from_ptr(&raw mut (*agent.header()).blocks) }.load(Ordering::Acquire);
    (0..made.min(agent.blocks_max)).filter_map(|index| {
        // SAFETY: index < blocks_max; written once with release order.
        let block = unsafe { AtomicU64::from_ptr(&raw mut (*place(index)).block) }.load(Ordering::Acquire);
        (block != 0).then_some(block as *mut BlockHeader)
    })
}

/// From now on the calling thread counts nowhere, and its calls are counted as lost.
pub(crate) fn lose(agent: &Agent) {
    // SAFETY: the thread's own words.
    unsafe { (*words::get()).block = agent.lost_block };
    counters::count_in(agent, agent.lost_block);
}

/// In a forked child, which has one thread: that thread's block, at the same place, becomes a new block of the
/// same file. False: there is none.
pub(crate) fn begin_guest(parent: &Agent, child: &Agent) -> bool {
    let words = words::get();
    // SAFETY: one thread; the region header stays mapped.
    unsafe {
        let block = (*words).block;
        let has_none = block == parent.no_block || block == parent.lost_block || block == 0;
        let index = if has_none { 0 } else { add(&raw mut (*parent.header()).blocks, 1) };
        if index >= parent.blocks_max {
            return false;
        }
        forget_blocks(parent);
        if has_none {
            return true;
        }
        let Some(source) = source(child, index) else { return false };
        if !clear(block, parent.block_len) {
            return false;
        }
        let header = block as *mut BlockHeader;
        *place(index) = Place { block, source };
        if !begin(child, block, index) {
            return false;
        }
        (*header).owners = 1;
        (*header).process = process(child);
        (*header).tid = sys::gettid();
    }
    true
}

/// In a forked child, where other threads' blocks are no longer used, and nothing of the parent's file is.
///
/// # Safety
/// The process must have one thread.
unsafe fn forget_blocks(parent: &Agent) {
    // SAFETY: the region header stays mapped; passed on.
    unsafe {
        let made = AtomicU64::from_ptr(&raw mut (*parent.header()).blocks).load(Ordering::Relaxed);
        for index in 0..made.min(parent.blocks_max) {
            *place(index) = Place { block: 0, source: 0 };
        }
    }
}

/// Zeros in place of a block. A signal handler may have forked in the middle of a thunk, which has the
/// block's address at hand.
///
/// # Safety
/// The process must have one thread.
unsafe fn clear(block: u64, len: u64) -> bool {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED | sys::MAP_NORESERVE;
    // SAFETY: a block of the process's own; passed on.
    unsafe { sys::mmap(block, len, access, flags, -1, 0) }.is_ok()
}

/// In a forked child, which has one thread: that thread's block, at the same place, becomes zeros again, and a
/// part of the child's own region file; other threads' blocks are no longer used. `parent` and `child` differ
/// in their region. False: no memory.
pub(crate) fn begin_child(parent: &Agent, child: &Agent) -> bool {
    let words = words::get();
    // SAFETY: one thread; the region headers stay mapped.
    unsafe {
        let made = (*parent.header()).blocks.min(parent.blocks_max);
        (*child.header()).blocks = made;
        forget_blocks(parent);
        let block = (*words).block;
        if block == parent.no_block || block == parent.lost_block || block == 0 {
            return true;
        }
        let header = block as *mut BlockHeader;
        let index = (*header).index;
        if !clear(block, parent.block_len) {
            return false;
        }
        (*header).index = index;
        (*place(index)).block = block;
        if !child.counts_nowhere {
            (*place(index)).source = source(child, index).unwrap_or(0);
            if (*place(index)).source == 0 || !begin(child, block, index) {
                return false;
            }
            (*header).owners = 1;
            timer::restart(child, header);
        }
        (*header).tid = sys::gettid();
    }
    true
}
