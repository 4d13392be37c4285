//! Allocates the records of a thread's measurements in the area at the end of its thread block
//! ([`gprofinject_abi::times`]).
#![allow(unsafe_code, reason = "records are places in a thread block")]

use crate::hot::thread_blocks;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU32, Ordering};
use gprofinject_abi::region::times_offset;
use gprofinject_abi::shared::{BlockRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{ENDS_SLOWLY, Kind, OpenCall, Record, UNIT};

/// The number of bytes that the first commit covers.
const FIRST: u64 = 64 << 10;
/// The maximum number of bytes that one commit covers. Until then, each commit doubles the committed part.
const MOST: u64 = 4 << 20;
/// The number of open calls that are added to the free list at once.
const CALLS: u64 = 63;

/// Returns the offset of the area in a thread block.
pub(crate) fn offset(agent: &Agent) -> u64 {
    let orders = &agent.orders;
    times_offset(orders.slot_bytes, orders.counter_bytes, orders.library_bytes, orders.library_counter_bytes)
}

/// Allocates a record of `units` units and returns its address. All of its bytes are zero except those of its [`Record`] header.
/// Returns `None` if the area, the file system or memory is full.
pub(crate) fn take(agent: &Agent, block: BlockRef, kind: Kind, units: u64) -> Option<u64> {
    let times = block.times();
    let len = units * UNIT;
    // A signal handler of this thread may take a record at any time.
    let at = times.used().fetch_add(len, Ordering::Relaxed);
    let is_committed = at + len <= agent.orders.times_bytes && commit(agent, block, times, at + len);
    if !is_committed {
        // Give the bytes back: a reader stops at the first place without a record, so a gap would hide all later records.
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

/// Takes an open call from the free list. Returns `None` if the list is empty and there is no room for more open calls.
pub(crate) fn take_call(agent: &Agent, block: BlockRef) -> Option<OpenCallRef> {
    let times = block.times();
    let mut first = times.free().load(Ordering::Relaxed);
    // The last entry is never taken, as in the gates: a signal may interrupt a gate after the gate has read the first two entries
    // of the list. The handler's calls end before the handler returns, so both entries are free again when the gate continues.
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

/// Returns an open call to the free list.
pub(crate) fn give_back(times: TimesRef, call: OpenCallRef) {
    call.cfa().store(0, Ordering::Relaxed);
    call.outer().store(times.free().load(Ordering::Relaxed), Ordering::Relaxed);
    times.free().store(call.address(), Ordering::Relaxed);
}

/// Returns the CFA of an open call's frame. For a root, the result is an address above all frames of the stack.
pub(crate) fn cfa(call: OpenCallRef) -> u64 {
    let ends_slowly = call.flags().load(Ordering::Relaxed) & ENDS_SLOWLY != 0;
    call.cfa().load(Ordering::Relaxed) + u64::from(ends_slowly)
}

/// Returns the open call at an address that a thread block's records contain, or `None` if it is 0.
pub(crate) fn call(address: u64) -> Option<OpenCallRef> {
    const { assert!(size_of::<OpenCall>() as u64 == UNIT) };
    // SAFETY: addresses in a thread block's records point to other records of that block, which stay mapped. Only `OpenCallRef`
    // and the gates access open calls.
    unsafe { OpenCallRef::at(address) }
}
