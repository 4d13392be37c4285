//! The counters of arcs in the calling thread's thread block: home slots of their functions, or overflow segments.
#![allow(unsafe_code, reason = "slots are places in a block, which the plan's numbers lead to")]

use crate::hot::counters;
use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{FunctionRecord, SPARE_SLOTS};
use gprofinject_abi::region::{
    BlockHeader, Overflow, PROBES, RECENT_WAYS, SEGMENT_BIT, SEGMENTS, SLOTS, Slot, recent, segment_entries,
    segment_len, segment_offset,
};
use gprofinject_abi::shared::{BlockRef, OverflowRef, SlotRef};

/// The result of a look-up: where an arc is counted, or could be.
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
    // SAFETY: the plan's offsets are those of slots within the thread block, which stays mapped. Besides thunks, only
    // `SlotRef` accesses them. An address within a mapping is not 0.
    unsafe { SlotRef::new(NonNull::new_unchecked(at)) }
}

/// Looks an arc up. The free place that it returns need not be committed: reading there yields zeros. Integer code
/// only; see [`crate::hot::gate`].
pub(crate) fn find(agent: &Agent, block: BlockRef, number: u32, record: &FunctionRecord, key: u64) -> Found {
    let mut at = (key as u32).wrapping_mul(record.multiplier) >> (record.shift & 31) & record.mask;
    let last = if record.mask == 0 { at } else { at + SPARE_SLOTS * size_of::<Slot>() as u32 };
    while at <= last {
        let slot = slot(block, record.slots + at);
        let found = slot.key().load(Ordering::Relaxed);
        if found == key {
            return Found::At(slot);
        }
        if found == 0 {
            let offset = u64::from(record.slots + at);
            if thread_blocks::is_out_of_reach(agent, block, offset) {
                break;
            }
            return Found::Home(slot);
        }
        at += size_of::<Slot>() as u32;
    }
    overflow(agent, block, number, key)
}

/// Returns the entry of an overflow segment with this index, which must be less than the segment's length.
pub(crate) fn entry(agent: &Agent, block: BlockRef, segment: usize, index: usize) -> OverflowRef {
    let base = block.address() + segment_offset(agent.orders.slot_bytes, segment);
    let at = (base + (index * size_of::<Overflow>()) as u64) as *mut Overflow;
    // SAFETY: all segments lie within the thread block, which stays mapped, and the index is less than the segment's
    // length. Only `OverflowRef` accesses entries; thunks and `SlotRef` access the part of an entry that is a slot.
    unsafe { OverflowRef::new(NonNull::new_unchecked(at)) }
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
            let entry = entry(agent, block, segment, index);
            let found = entry.key().load(Ordering::Relaxed);
            if found == key && entry.function().load(Ordering::Relaxed) == number {
                // SAFETY: as for the entry above, which begins with the fields of a slot; `gprofinject_abi::region`
                // asserts that.
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

/// Adds one to the count in one instruction, because a signal handler of this thread may count the same arc.
pub(crate) fn increment(slot: SlotRef) {
    let count = slot.count().as_ptr();
    // SAFETY: the count belongs to the calling thread's thread block. No other thread writes it, so the instruction
    // needs no lock prefix.
    unsafe { asm!("inc qword ptr [{}]", in(reg) count, options(nostack)) };
}

/// Counts any arc in the calling thread's thread block, and gives it a place there if it has none.
pub(crate) fn count(agent: &Agent, block: BlockRef, number: u32, record: &FunctionRecord, key: u64) {
    // A signal handler may use the free place first; then the look-up is repeated.
    for _ in 0..64 {
        match find(agent, block, number, record, key) {
            Found::At(slot) => {
                increment(slot);
                return;
            }
            Found::Home(slot) => {
                if !take(agent, block, number, slot, key) {
                    break;
                }
            }
            Found::Over(segment, entry) => {
                let at = segment_offset(agent.orders.slot_bytes, segment);
                if !counters::commit(agent, block, number) {
                    break;
                }
                if !thread_blocks::commit(
                    agent,
                    block,
                    SEGMENT_BIT + segment as u32,
                    at,
                    segment_len(segment),
                ) {
                    break;
                }
                // While the key is the mark `TAKEN`, no signal handler uses the entry. If a handler has used it
                // before, the exchange fails and the arc is looked up again. The function is stored before the key,
                // so that a reader that sees the key also sees the function.
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

/// Assigns a free home slot of a function to an arc, unless a signal handler does so first. Returns `false` if the slot, or
/// the function's basic block counters, cannot be committed.
pub(crate) fn take(agent: &Agent, block: BlockRef, number: u32, slot: SlotRef, key: u64) -> bool {
    if !counters::commit(agent, block, number) {
        return false;
    }
    let offset = slot.address() - block.address();
    if !thread_blocks::commit_slot(agent, block, offset) {
        return false;
    }
    let _ = slot.key().compare_exchange(0, key, Ordering::Release, Ordering::Relaxed);
    true
}

/// Stores an arc in the thread's table of recent arcs. The assembly between thunks and slow paths
/// ([`crate::hot::gate`]) searches that table before it calls a slow path. `slot` is the arc's place in `block`,
/// which is the calling thread's.
pub(crate) fn remember(block: BlockRef, number: u32, key: u64, slot: SlotRef) {
    let word = (slot.address() - block.address()) | u64::from(number + 1) << 32;
    let set = block.address() + recent(key, number);
    // SAFETY: the table is a part of the thread block, and these are the offsets of two of its words. An arc is written with
    // one store, because a signal handler that interrupts this thread may write the same word.
    let [first, second] = [set, set + 8].map(|word| unsafe { AtomicU64::from_ptr(word as *mut u64) });
    second.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
    first.store(word, Ordering::Relaxed);
}

const _: () = assert!(RECENT_WAYS == 2);
const _: () = assert!(SLOTS as usize >= size_of::<BlockHeader>());
