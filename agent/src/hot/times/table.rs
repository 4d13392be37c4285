//! A thread's hash table from caller and callee to the record of the arc.
//!
//! The gates search the table too. Entries never change, and a table that has been replaced by a larger one stays mapped, because a
//! signal may have interrupted a search in it. If a signal handler adds an entry that the interrupted code is about to add, the arc
//! gets two records; readers of the region file add up records of the same arc.
#![allow(unsafe_code, reason = "entries are places in a table")]

use crate::os::memory;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::PAGE;
use gprofinject_abi::shared::TimesRef;
use gprofinject_abi::times::{TABLE_TAIL, TableEntry, table_offset};

/// Number of entries of the first table.
const FIRST: u64 = 1024;
/// The maximum number of times that the table grows for one entry.
const GROWTHS: u32 = 2;
/// Up to this size the table grows until the arcs whose calls are only counted are at the first place that a search looks at, if it has fewer
/// places for each arc than [`SPARSE`].
const SETTLED: u64 = 16 * 1024;
/// See [`SETTLED`].
const SPARSE: u64 = 64;
const ENTRY: u64 = size_of::<TableEntry>() as u64;

/// The context of the entries for the records of functions.
pub(crate) const FUNCTIONS: u32 = 1;
/// The context of the entries for the nodes of functions whose calls have no node of their own.
pub(crate) const RESTS: u32 = 2;
/// The bit that marks the context of the entries for arcs, beside the caller's number, when calling paths are measured.
pub(crate) const ARCS: u32 = 1 << 30;

/// The addresses that an entry holds.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) arc: u64,
    pub(crate) node: u64,
}

fn word(entry: u64, field: usize) -> &'static AtomicU64 {
    // SAFETY: a thread's tables are never unmapped, and only atomics and the gates access their entries.
    unsafe { AtomicU64::from_ptr((entry + field as u64) as *mut u64) }
}

fn key(entry: u64) -> &'static AtomicU64 {
    word(entry, offset_of!(TableEntry, key))
}

/// Makes the thread's first table, if it has none. Returns `false` if memory is short.
pub(crate) fn prepare(times: TimesRef) -> bool {
    times.table().load(Ordering::Relaxed) != 0 || grow(times, FIRST)
}

/// Returns the entry whose key consists of this context and this number of a called function.
pub(crate) fn find(times: TimesRef, context: u32, callee: u32) -> Option<Entry> {
    let wanted = gprofinject_abi::times::table_key(context, callee);
    let table = times.table().load(Ordering::Relaxed);
    if table == 0 {
        return None;
    }
    let mut at = table + table_offset(context, callee, times.mask().load(Ordering::Relaxed));
    loop {
        match key(at).load(Ordering::Relaxed) {
            0 => return None,
            found if found == wanted => {
                let [arc, node] = [offset_of!(TableEntry, arc), offset_of!(TableEntry, node)]
                    .map(|field| word(at, field).load(Ordering::Relaxed));
                return Some(Entry { arc, node });
            }
            _ => at += ENTRY,
        }
    }
}

/// Adds an entry. Returns `false` if memory is short.
pub(crate) fn add(times: TimesRef, context: u32, callee: u32, entry: Entry) -> bool {
    let entries = times.mask().load(Ordering::Relaxed) / ENTRY + 1;
    let used = times.arcs().fetch_add(1, Ordering::Relaxed) + 1;
    if used * 2 > entries && !grow(times, 2 * entries) && used > entries - entries / 8 {
        times.arcs().fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    // In a larger table, other entries do not occupy the same places.
    for _ in 0..=GROWTHS {
        let (table, mask) = (times.table().load(Ordering::Relaxed), times.mask().load(Ordering::Relaxed));
        if put(table, mask, context, callee, entry) {
            return true;
        }
        if !grow(times, 2 * (mask / ENTRY + 1)) {
            break;
        }
    }
    times.arcs().fetch_sub(1, Ordering::Relaxed);
    false
}

/// Has the gates find an entry at the first place where they search for it, if a table of a reasonable size can have it there. They search for
/// it in each of many calls that are only counted.
pub(crate) fn settle(times: TimesRef, context: u32, callee: u32) {
    let wanted = gprofinject_abi::times::table_key(context, callee);
    loop {
        let (table, mask) = (times.table().load(Ordering::Relaxed), times.mask().load(Ordering::Relaxed));
        let (entries, arcs) = (mask / ENTRY + 1, times.arcs().load(Ordering::Relaxed));
        let is_first = key(table + table_offset(context, callee, mask)).load(Ordering::Relaxed) == wanted;
        if is_first || entries >= SETTLED.min(SPARSE * arcs) || !grow(times, 2 * entries) {
            return;
        }
    }
}

/// Writes an entry to a table. Returns `false` if all places from its hash to the table's end are occupied.
fn put(table: u64, mask: u64, context: u32, callee: u32, entry: Entry) -> bool {
    let mut at = table + table_offset(context, callee, mask);
    // The last place stays free, so that every search ends.
    let end = table + mask + TABLE_TAIL * ENTRY;
    while key(at).load(Ordering::Relaxed) != 0 {
        at += ENTRY;
        if at >= end {
            return false;
        }
    }
    word(at, offset_of!(TableEntry, arc)).store(entry.arc, Ordering::Relaxed);
    word(at, offset_of!(TableEntry, node)).store(entry.node, Ordering::Relaxed);
    key(at).store(gprofinject_abi::times::table_key(context, callee), Ordering::Release);
    true
}

/// Replaces the table by one of `entries` places, a power of two, and copies the entries. Returns `false` if memory is short.
fn grow(times: TimesRef, entries: u64) -> bool {
    let bytes = ((entries + TABLE_TAIL) * ENTRY).next_multiple_of(PAGE);
    let Ok(new) = memory::map_zeros(bytes, memory::PROT_READ | memory::PROT_WRITE) else { return false };
    // The time of the slow path is excluded from calls. Page faults in the gates would be included.
    if memory::populate(new, bytes).is_err() {
        // SAFETY: no other code has the mapping's address yet.
        let _ = unsafe { memory::munmap(new, bytes) };
        return false;
    }
    let (old, mask) = (times.table().load(Ordering::Relaxed), times.mask().load(Ordering::Relaxed));
    let new_mask = (entries - 1) * ENTRY;
    if old != 0 {
        let end = old + mask + TABLE_TAIL * ENTRY;
        for at in (old..=end).step_by(ENTRY as usize) {
            let found = key(at).load(Ordering::Relaxed);
            if found != 0 {
                let [arc, node] = [offset_of!(TableEntry, arc), offset_of!(TableEntry, node)]
                    .map(|field| word(at, field).load(Ordering::Relaxed));
                // An entry that finds no place is lost; its records are made again when they are needed.
                put(new, new_mask, (found >> 32) as u32, found as u32, Entry { arc, node });
            }
        }
    }
    times.table().store(new, Ordering::Relaxed);
    times.mask().store(new_mask, Ordering::Relaxed);
    true
}
