//! Keeps apart the calls of two libraries that were loaded at the same address, one after the other.
//!
//! The key of a call is its return address. When a library is loaded where one that has been unloaded was before, the keys
//! of the old one's calls get a mark and its number, so that the new one's calls get counters of their own. When the old one
//! comes back, its keys get their old form again.

use crate::hot::slots;
use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use crate::program::libraries;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::{
    ARCHIVED, LOAD_SHIFT, PAGE, RETURN_ADDRESS, SEGMENT_BIT, SEGMENTS, SLOTS, Slot, TWICE, is_archived,
    segment_entries,
};
use gprofinject_abi::shared::BlockRef;

/// Marks the keys of the calls from these addresses, which no code has any more, with the library's index. The range does
/// not contain its start, and contains its end.
pub(crate) fn store(agent: &Agent, index: u32, lo: u64, hi: u64) {
    each_key(agent, |key| {
        let old = key.load(Ordering::Relaxed);
        let address = old & RETURN_ADDRESS;
        if old & !(RETURN_ADDRESS | TWICE) == 0 && address > lo && address <= hi {
            key.store(old | ARCHIVED | u64::from(index) << LOAD_SHIFT, Ordering::Relaxed);
        }
    });
}

/// Restores the keys of the calls of the library with this index.
pub(crate) fn restore(agent: &Agent, index: u32) {
    each_key(agent, |key| {
        let old = key.load(Ordering::Relaxed);
        if is_archived(old) == Some(index) {
            key.store(old & (RETURN_ADDRESS | TWICE), Ordering::Relaxed);
        }
    });
}

/// Visits the keys of all counters. Other threads may count meanwhile, but not by the keys that change here: no code makes
/// such calls.
fn each_key(agent: &Agent, mut visit: impl FnMut(&AtomicU64)) {
    let slot_len = size_of::<Slot>() as u64;
    let own = SLOTS..SLOTS + agent.orders.slot_bytes;
    let of_libraries = thread_blocks::library_slots(agent)..libraries::slots_end();
    for block in thread_blocks::all(agent) {
        for range in [&own, &of_libraries] {
            let mut at = range.start;
            while at + slot_len <= range.end {
                let is_first_of_page = at.is_multiple_of(PAGE);
                if is_first_of_page
                    && range == &of_libraries
                    && !thread_blocks::is_library_slot_committed(agent, block, at)
                {
                    at += PAGE;
                    continue;
                }
                visit(slots::slot(block, at as u32).key());
                at += slot_len;
            }
        }
        for segment in (0..SEGMENTS).filter(|&segment| is_committed(block, segment)) {
            for index in 0..segment_entries(segment) {
                visit(slots::entry(agent, block, segment, index).key());
            }
        }
    }
}

fn is_committed(block: BlockRef, segment: usize) -> bool {
    block.committed().load(Ordering::Relaxed) & 1 << (SEGMENT_BIT + segment as u32) != 0
}
