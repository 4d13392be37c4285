//! The records of a thread's measurements, in the area at the end of its thread block.
#![allow(unsafe_code, reason = "records are places in a thread block")]

use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::region::times_offset;
use gprofinject_abi::shared::{BlockRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{ENDS_SLOWLY, Kind, OpenCall, Record, UNIT};

/// Bytes that are committed at first.
const FIRST: u64 = 64 << 10;
/// Bytes that are committed at once, at most.
const MOST: u64 = 4 << 20;
/// Open calls are added to the free ones by so many.
const CALLS: u64 = 63;

/// Returns the offset of the area in a thread block.
pub(crate) fn offset(agent: &Agent) -> u64 {
    let orders = &agent.orders;
    times_offset(orders.slot_bytes, orders.counter_bytes, orders.library_bytes, orders.library_counter_bytes)
}

/// Returns the address of a new record of `units` units, which are zeros but for the record's start. `None` means that the
/// area, the file system or memory is full.
pub(crate) fn take(agent: &Agent, block: BlockRef, kind: Kind, units: u64) -> Option<u64> {
    let times = block.times();
    let len = units * UNIT;
    // A signal handler of this thread may take a record at any time.
    let at = times.used().fetch_add(len, Ordering::Relaxed);
    let is_there = at + len <= agent.orders.times_bytes && commit(agent, block, times, at + len);
    if !is_there {
        // Nothing is left free in between: the reader finds no record there and stops, so later ones would be lost.
        let _ = times.used().compare_exchange(at + len, at, Ordering::Relaxed, Ordering::Relaxed);
        return None;
    }
    let address = block.address() + offset(agent) + at;
    // SAFETY: the area is a part of the thread block, which stays mapped, and no other code has this part of it. Records are
    // aligned to `UNIT`.
    let [kind_of, units_of] = unsafe {
        [
            AtomicU32::from_ptr((address + core::mem::offset_of!(Record, kind) as u64) as *mut u32),
            AtomicU32::from_ptr((address + core::mem::offset_of!(Record, units) as u64) as *mut u32),
        ]
    };
    units_of.store(units as u32, Ordering::Relaxed);
    kind_of.store(kind.code().0, Ordering::Release);
    Some(address)
}

/// Commits the area up to an offset in it.
fn commit(agent: &Agent, block: BlockRef, times: TimesRef, end: u64) -> bool {
    loop {
        let committed = times.committed().load(Ordering::Relaxed);
        if end <= committed {
            return true;
        }
        let step = if committed < FIRST {
            FIRST
        } else if committed < MOST {
            committed
        } else {
            MOST
        };
        if !thread_blocks::commit_times(agent, block, offset(agent) + committed, step) {
            return false;
        }
        times.committed().fetch_max(committed + step, Ordering::Relaxed);
    }
}

/// Takes a free open call. Returns `None` if there is none and no room for more.
pub(crate) fn take_call(agent: &Agent, block: BlockRef) -> Option<OpenCallRef> {
    let times = block.times();
    let mut first = times.free().load(Ordering::Relaxed);
    // One always stays free: a signal may interrupt a gate after it has read the first one and the one after it. If the handler
    // needs more, it adds them after these, and they stay in the list.
    if call(first).is_none_or(|call| call.outer().load(Ordering::Relaxed) == 0) {
        let record = take(agent, block, Kind::Calls, 1 + CALLS)?;
        for n in 1..=CALLS {
            give_back(times, call(record + n * UNIT)?);
        }
        first = times.free().load(Ordering::Relaxed);
    }
    let taken = call(first)?;
    times.free().store(taken.outer().load(Ordering::Relaxed), Ordering::Relaxed);
    taken.flags().store(0, Ordering::Relaxed);
    Some(taken)
}

/// Adds an open call to the free ones.
pub(crate) fn give_back(times: TimesRef, call: OpenCallRef) {
    call.cfa().store(0, Ordering::Relaxed);
    call.outer().store(times.free().load(Ordering::Relaxed), Ordering::Relaxed);
    times.free().store(call.address(), Ordering::Relaxed);
}

/// Returns the CFA of an open call's frame, or what is above all frames of the stack if it is a root.
pub(crate) fn cfa(call: OpenCallRef) -> u64 {
    let ends_slowly = call.flags().load(Ordering::Relaxed) & ENDS_SLOWLY != 0;
    call.cfa().load(Ordering::Relaxed) + u64::from(ends_slowly)
}

/// Returns the open call at an address that a thread block's records contain, or `None` if it is 0.
pub(crate) fn call(address: u64) -> Option<OpenCallRef> {
    const { assert!(size_of::<OpenCall>() as u64 == UNIT) };
    // SAFETY: the addresses in a thread block's records are those of other records in it, which stay mapped, and open calls
    // are accessed only by `OpenCallRef` and the gates.
    unsafe { OpenCallRef::at(address) }
}
