//! The table of hooked libraries in the region file, from which the injector learns of them.
#![allow(unsafe_code, reason = "the table is a part of the mapped region file")]

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use gprofinject_abi::region::{LOADS_MAX, Load, LoadRecord};
use gprofinject_abi::shared::LoadRef;

use crate::os::memory;
use crate::program::agent::Agent;

/// Returns the entry of the region file for a library.
fn entry(index: u32) -> Option<LoadRef> {
    let agent = Agent::get();
    if agent.orders.loads_offset == 0 || index as usize >= LOADS_MAX {
        return None;
    }
    let at = agent.region.address()
        + agent.orders.loads_offset
        + u64::from(index) * size_of::<LoadRecord>() as u64;
    // SAFETY: the table is a part of the region file that is mapped as long as the process lives, and the index is less
    // than its length. Only `LoadRef` accesses it while the process runs.
    Some(unsafe { LoadRef::new(NonNull::new(at as *mut LoadRecord)?) })
}

/// Writes what is known of a library to the region file, but for its state. Returns `false` if there is no room.
pub(crate) fn note(index: u32, record: &LoadRecord) -> bool {
    let Some(entry) = entry(index) else { return false };
    let page = entry.address() & !4095;
    let end = (entry.address() + size_of::<LoadRecord>() as u64).next_multiple_of(4096);
    if memory::populate(page, end - page).is_err() {
        return false;
    }
    entry.plan().store(record.plan, Ordering::Relaxed);
    entry.first_function().store(record.first_function, Ordering::Relaxed);
    entry.functions().store(record.functions, Ordering::Relaxed);
    entry.first_slot().store(record.first_slot, Ordering::Relaxed);
    entry.slot_bytes().store(record.slot_bytes, Ordering::Relaxed);
    entry.bias().store(record.bias, Ordering::Relaxed);
    entry.lo().store(record.lo, Ordering::Relaxed);
    entry.hi().store(record.hi, Ordering::Relaxed);
    entry.arena().store(record.arena, Ordering::Relaxed);
    entry.arena_len().store(record.arena_len, Ordering::Relaxed);
    entry.first_counter().store(record.first_counter, Ordering::Relaxed);
    entry.counter_bytes().store(record.counter_bytes, Ordering::Relaxed);
    entry.patches().store(record.patches, Ordering::Relaxed);
    entry.patch_count().store(record.patch_count, Ordering::Relaxed);
    true
}

/// Says how far the agent is with a library.
pub(crate) fn set_state(index: u32, state: Load) {
    if let Some(entry) = entry(index) {
        entry.state().store(state.code().0, Ordering::Release);
    }
}
