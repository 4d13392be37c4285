//! The ring of a thread's events ([`gprofinject_abi::trace`]): the room in it, and its slots.
//!
//! A signal handler may write events between any two instructions. An event's slots are taken by one instruction, and if there is
//! no room for them they are given back, unless a handler has taken others since: for these there was room, so there is for the
//! first ones by now.
#![allow(unsafe_code, reason = "slots are places in a thread block")]

use crate::hot::thread_blocks;
use crate::hot::times::area;
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::full::Full;
use gprofinject_abi::shared::{BlockRef, TraceRef};
use gprofinject_abi::times::DEPTH_BIT;
use gprofinject_abi::trace::{Kind, SNAPSHOTS, Slot, mark};

const SLOT: u64 = size_of::<Slot>() as u64;
/// Bytes of the ring that are committed at first, and then the most that are committed at once.
const FIRST: u64 = 64 << 10;
const MOST: u64 = 1 << 20;
/// How long a thread waits before it looks again whether the injector has read.
const NAP_NS: u64 = 50_000;
/// How often it looks without any progress before it gives up: after some two seconds.
const NAPS: u32 = 20_000;
/// The same where the thread may make no system calls, and only spins.
const SPINS: u32 = 1 << 22;
/// Returns whether calls are traced.
pub(crate) fn is_on(agent: &Agent) -> bool {
    agent.orders.trace_bytes != 0
}

/// Returns whether the newest events take the places of the oldest ones.
pub(super) fn drops_old(agent: &Agent) -> bool {
    agent.orders.trace_full == Full::DropOld.code()
}

/// Returns the number of slots.
pub(super) fn slots(agent: &Agent) -> u64 {
    agent.orders.trace_bytes / SLOT
}

/// Returns the flags from which on the calls of a call are too deep to be traced.
pub(super) fn deepest(agent: &Agent) -> u64 {
    match agent.orders.trace_depth {
        0 => u64::MAX,
        depth => u64::from(depth) << DEPTH_BIT,
    }
}

/// An event whose fields are those of a [`Slot`].
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) kind: Kind,
    pub(super) function: u32,
    pub(super) time: u64,
}

/// Makes the ring ready for the thread's first event.
fn prepare(agent: &Agent, block: BlockRef, trace: TraceRef) {
    if trace.ring().load(Ordering::Relaxed) != 0 {
        return;
    }
    let slots = slots(agent);
    trace.mask().store(slots.saturating_sub(1), Ordering::Relaxed);
    trace.deepest().store(deepest(agent), Ordering::Relaxed);
    trace.least().store(agent.orders.trace_least, Ordering::Relaxed);
    trace.due().store(if drops_old(agent) { slots / SNAPSHOTS } else { u64::MAX }, Ordering::Relaxed);
    let at = block.address() + area::offset(agent) + agent.orders.times_bytes;
    trace.ring().store(at, Ordering::Relaxed);
}

/// Returns whether there is room for events up to this number, and raises the limit.
pub(super) fn has_room(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    prepare(agent, block, trace);
    let bytes = agent.orders.trace_bytes;
    // The ring is committed from its start on, in steps that become larger.
    loop {
        let committed = trace.committed().load(Ordering::Relaxed);
        if committed >= bytes || committed / SLOT >= end {
            break;
        }
        let step = committed.clamp(FIRST, MOST).min(bytes - committed);
        let at = area::offset(agent) + agent.orders.times_bytes + committed;
        if !thread_blocks::commit_times(agent, block, at, step) {
            return false;
        }
        trace.committed().fetch_max(committed + step, Ordering::Relaxed);
    }
    let committed = trace.committed().load(Ordering::Relaxed);
    let limit = if committed < bytes {
        committed / SLOT
    } else if drops_old(agent) {
        u64::MAX
    } else {
        // The injector never says that it has read more than there was.
        let drained = trace.drained().load(Ordering::Acquire).min(trace.next().load(Ordering::Relaxed));
        drained + bytes / SLOT
    };
    // Where the open calls are to be told of, the gates leave an event to compiled code too.
    trace.limit().store(limit.min(trace.due().load(Ordering::Relaxed)), Ordering::Relaxed);
    end <= limit
}

/// Waits until there is room for events up to this number, if that is wanted. Returns whether there is.
fn wait_for_room(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    if has_room(agent, block, end) {
        return true;
    }
    let is_whole = trace.committed().load(Ordering::Relaxed) >= agent.orders.trace_bytes;
    if agent.orders.trace_full != Full::Wait.code()
        || !is_whole
        || trace.hopeless().load(Ordering::Relaxed) != 0
    {
        return false;
    }
    let is_frozen = kernel::is_frozen();
    let (mut drained, mut looks) = (trace.drained().load(Ordering::Relaxed), 0);
    loop {
        if is_frozen {
            core::hint::spin_loop()
        } else {
            task::nap(NAP_NS)
        }
        if has_room(agent, block, end) {
            return true;
        }
        let now = trace.drained().load(Ordering::Relaxed);
        looks = if now == drained { looks + 1 } else { 0 };
        drained = now;
        if looks > if is_frozen { SPINS } else { NAPS } {
            trace.hopeless().store(1, Ordering::Relaxed);
            return false;
        }
    }
}

/// Takes the slots for an event. Returns the number of the first one, or `None` if there is no room. `waits`: whether the
/// calling thread may wait for room.
pub(super) fn take(agent: &Agent, block: BlockRef, slots: u64, waits: bool) -> Option<u64> {
    let trace = block.trace();
    let number = trace.next().fetch_add(slots, Ordering::Relaxed);
    keep(agent, block, number, slots, waits).then_some(number)
}

/// Makes room for slots that have been taken, or gives them back. Returns whether there is room.
pub(super) fn keep(agent: &Agent, block: BlockRef, number: u64, slots: u64, waits: bool) -> bool {
    let trace = block.trace();
    let end = number + slots;
    if end <= trace.limit().load(Ordering::Relaxed)
        || if waits { wait_for_room(agent, block, end) } else { has_room(agent, block, end) }
    {
        return true;
    }
    let is_back = trace.next().compare_exchange(end, number, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // A handler's events have found room behind these slots.
    if !is_back && has_room(agent, block, end) {
        return true;
    }
    trace.lost().fetch_add(1, Ordering::Relaxed);
    trace.untold().fetch_add(1, Ordering::Relaxed);
    false
}

/// Writes one slot, for which there is room.
pub(super) fn put(trace: TraceRef, number: u64, event: Event) {
    let at = trace.ring().load(Ordering::Relaxed) + (number & trace.mask().load(Ordering::Relaxed)) * SLOT;
    // SAFETY: the ring is a part of the thread block, which stays mapped, and slots are accessed only here, by the gates, and by
    // the injector, which relies on nothing.
    let (time, function, marked) = unsafe {
        (
            AtomicU64::from_ptr(at as *mut u64),
            AtomicU32::from_ptr((at + core::mem::offset_of!(Slot, function) as u64) as *mut u32),
            AtomicU32::from_ptr((at + core::mem::offset_of!(Slot, mark) as u64) as *mut u32),
        )
    };
    time.store(event.time, Ordering::Relaxed);
    function.store(event.function, Ordering::Relaxed);
    marked.store(mark(event.kind, number), Ordering::Release);
}
