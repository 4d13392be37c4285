//! Finds and fills the counters of arcs: the home slots of their functions, or overflow entries, in the
//! calling thread's thread block.
#![allow(unsafe_code, reason = "slots are places in a block, which the plan's numbers lead to")]

use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{FunctionRecord, SPARE_SLOTS};
use gprofinject_abi::region::{
    BlockHeader, Overflow, PROBES, SEGMENT_BIT, SEGMENTS, SLOTS, Slot, is_linked, plain_key, recent,
    segment_entries, segment_len, segment_offset,
};
use gprofinject_abi::shared::{BlockRef, OverflowRef, SlotRef};

/// The place of an arc, or a free place for it.
pub(crate) enum Found {
    /// The arc's slot, or its overflow entry, which begins as a slot does.
    At(SlotRef),
    /// A free home slot.
    Home(SlotRef),
    /// A free entry of the overflow segment with this number.
    Over(usize, OverflowRef),
    Nowhere,
}

/// Key of an overflow entry whose function is being stored.
const TAKEN: u64 = 1;

/// Returns the home slot at this offset in a thread block.
pub(crate) fn slot(block: BlockRef, offset: u32) -> SlotRef {
    let at = (block.address() + u64::from(offset)) as *mut Slot;
    // SAFETY: the offsets in the plan are those of slots within the thread block, which stays mapped. Besides
    // thunks, all accesses are those of `SlotRef`. An address within a mapping is not 0.
    unsafe { SlotRef::new(NonNull::new_unchecked(at)) }
}

/// Looks up an arc and returns its place or a free one. A free place may be in a chunk that is not committed
/// yet, where reads yield zeros. Integer code only; see [`crate::hot::gate`].
pub(crate) fn find(agent: &Agent, block: BlockRef, number: u32, record: &FunctionRecord, key: u64) -> Found {
    let mut at = (key as u32).wrapping_mul(record.multiplier) >> (record.shift & 31) & record.mask;
    let last = if record.mask == 0 { at } else { at + SPARE_SLOTS * size_of::<Slot>() as u32 };
    while at <= last {
        let slot = slot(block, record.slots + at);
        let found = slot.key().load(Ordering::Relaxed);
        if found == key || is_linked(found) && plain_key(found) == key {
            return Found::At(slot);
        }
        if found == 0 {
            return Found::Home(slot);
        }
        at += size_of::<Slot>() as u32;
    }
    overflow(agent, block, number, key)
}

fn overflow(agent: &Agent, block: BlockRef, number: u32, key: u64) -> Found {
    let hash =
        (key ^ (u64::from(number) << 32 | u64::from(number))).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let mut segment = 0;
    while segment < SEGMENTS {
        let base = block.address() + segment_offset(agent.orders.slot_bytes, segment);
        let mask = segment_entries(segment) - 1;
        let mut probe = 0;
        while probe < PROBES {
            let index = (hash as usize + probe) & mask;
            let at = (base + (index * size_of::<Overflow>()) as u64) as *mut Overflow;
            // SAFETY: all segments lie within the thread block, which stays mapped, and the index is less
            // than the segment's length. All accesses are those of `OverflowRef`, or of thunks and `SlotRef`
            // to the part of an entry that is a slot.
            let entry = unsafe { OverflowRef::new(NonNull::new_unchecked(at)) };
            let found = entry.key().load(Ordering::Relaxed);
            if found == key && entry.function().load(Ordering::Relaxed) == number {
                // SAFETY: the thread block stays mapped, and the index is less than the segment's length. An
                // entry begins with the fields of a slot, which `gprofinject_abi::region` asserts.
                return Found::At(unsafe { SlotRef::new(NonNull::new_unchecked(at.cast())) });
            }
            if found == 0 {
                return Found::Over(segment, entry);
            }
            probe += 1;
        }
        segment += 1;
    }
    Found::Nowhere
}

/// Adds one to the slot's count with a single instruction, because a signal handler of this thread may count
/// the same arc.
pub(crate) fn increment(slot: SlotRef) {
    let count = slot.count().as_ptr();
    // SAFETY: the slot is in the calling thread's thread block. No other thread writes it, so the instruction
    // needs no lock.
    unsafe { asm!("inc qword ptr [{}]", in(reg) count, options(nostack)) };
}

/// Counts any arc in the calling thread's thread block, after giving the arc a place if it has none.
pub(crate) fn count(agent: &Agent, block: BlockRef, number: u32, record: &FunctionRecord, key: u64) {
    // A signal handler may take the free place first; in that case, the loop searches again.
    for _ in 0..64 {
        match find(agent, block, number, record, key) {
            Found::At(slot) => {
                increment(slot);
                return;
            }
            Found::Home(slot) => {
                if !take(agent, block, slot, key) {
                    break;
                }
            }
            Found::Over(segment, entry) => {
                let at = segment_offset(agent.orders.slot_bytes, segment);
                if !thread_blocks::commit(
                    agent,
                    block,
                    SEGMENT_BIT + segment as u32,
                    at,
                    segment_len(segment),
                ) {
                    break;
                }
                // The function is stored first, so that a reader that sees the key also sees the function. An
                // entry that a handler has taken meanwhile keeps the handler's function.
                if entry.key().compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    entry.function().store(number, Ordering::Relaxed);
                    entry.key().store(key, Ordering::Release);
                }
            }
            Found::Nowhere => break,
        }
    }
    block.lost_calls().fetch_add(1, Ordering::Relaxed);
    agent.region.lost_calls().fetch_add(1, Ordering::Relaxed);
}

/// Puts a free home slot into use, unless a signal handler does so first. Returns `false` if the slot's chunk
/// cannot be committed.
pub(crate) fn take(agent: &Agent, block: BlockRef, slot: SlotRef, key: u64) -> bool {
    let len = agent.orders.slot_chunk;
    let chunk = (slot.address() - block.address()) / len;
    // The last chunk ends where the overflow segments begin.
    let end = segment_offset(agent.orders.slot_bytes, 0);
    if !thread_blocks::commit(agent, block, chunk as u32, chunk * len, len.min(end - chunk * len)) {
        return false;
    }
    let _ = slot.key().compare_exchange(0, key, Ordering::Release, Ordering::Relaxed);
    true
}

/// Enters an arc into the thread's table of recent arcs. The assembly between thunks and slow paths
/// ([`crate::hot::gate`]) looks into that table before it calls a slow path. `slot` is the arc's place in
/// `block`, the calling thread's.
pub(crate) fn remember(block: BlockRef, number: u32, key: u64, slot: SlotRef) {
    let word = (slot.address() - block.address()) | u64::from(number + 1) << 32;
    // SAFETY: the table is part of the block's first chunk, and the offset is one of its words. The arc is written with one
    // store, because a signal handler that interrupts this thread may write to the same place.
    unsafe { AtomicU64::from_ptr((block.address() + recent(key, number)) as *mut u64) }
        .store(word, Ordering::Relaxed);
}

const _: () = assert!(SLOTS as usize >= size_of::<BlockHeader>());
