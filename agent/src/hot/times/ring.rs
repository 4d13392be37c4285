//! The slots of a thread's ring of events ([`gprofinject_abi::trace`]): taking them, waiting until there is room, writing them.
//!
//! A signal handler may take slots between any two instructions. They are taken by one instruction, and if there is no room for them
//! they are given back, unless a handler has taken others since: for these there was room, so there is for the first ones by now.
#![allow(unsafe_code, reason = "slots are places in a thread block")]

use crate::hot::thread_blocks;
use crate::hot::times::area;
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::full::Full;
use gprofinject_abi::shared::{BlockRef, TraceRef};
use gprofinject_abi::times::DEPTH_BIT;
use gprofinject_abi::trace::{Kind, SNAPSHOTS, Slot, mark};

const SLOT: u64 = size_of::<Slot>() as u64;
/// Bytes of the ring that are committed at first. Each further step doubles them.
const FIRST: u64 = 64 << 10;
/// How long a thread waits before it looks again whether the injector has read.
const NAP_NS: u64 = 50_000;
/// How often it looks without any progress before it gives up: after some two seconds.
const NAPS: u32 = 20_000;
/// The same where the thread may make no system calls, and only spins.
const SPINS: u32 = 1 << 22;
/// The part of that for which a thread waits when another one has waited in vain.
const HOPELESS: u32 = 64;
/// Whether a thread has waited in vain for the injector to read. Then the others wait for a short time only, until one sees that the
/// injector has read more: a program with many threads, one after the other, would wait so long for each of them otherwise.
static HAS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// From now on no thread waits long for room, until one sees that the injector has read. A child that cannot reach the injector calls
/// this; each child of a program would wait in vain otherwise.
pub(crate) fn expect_no_reader() {
    HAS_GIVEN_UP.store(true, Ordering::Relaxed);
}

/// Returns whether calls are traced.
pub(crate) fn is_on(agent: &Agent) -> bool {
    agent.orders.trace_bytes != 0
}

/// Returns whether calls are written when they end, if they have lasted long enough.
pub(super) fn is_late(agent: &Agent) -> bool {
    agent.orders.trace_least != 0
}

/// Returns whether the newest events take the places of the oldest ones.
pub(super) fn drops_old(agent: &Agent) -> bool {
    agent.orders.trace_full == Full::DropOld.code()
}

/// Returns the number of slots of a ring that is ready.
pub(super) fn slots(trace: TraceRef) -> u64 {
    trace.mask().load(Ordering::Relaxed) + 1
}

/// Returns the flags from which on a call's own calls are not traced: see [`TraceHeader::deepest`].
///
/// [`TraceHeader::deepest`]: gprofinject_abi::trace::TraceHeader::deepest
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
    let slots = agent.orders.trace_bytes / SLOT;
    trace.mask().store(slots.saturating_sub(1), Ordering::Relaxed);
    trace.deepest().store(deepest(agent), Ordering::Relaxed);
    trace.least().store(agent.orders.trace_least, Ordering::Relaxed);
    trace.due().store(if drops_old(agent) { slots / SNAPSHOTS } else { u64::MAX }, Ordering::Relaxed);
    let at = block.address() + area::offset(agent) + agent.orders.times_bytes;
    trace.ring().store(at, Ordering::Relaxed);
}

/// Returns the bytes of the ring that are used: all, or those that were committed when no more could be.
fn ring_bytes(trace: TraceRef) -> u64 {
    slots(trace) * SLOT
}

/// Commits the ring up to the slot before this number, if it has so many. If that fails, the ring becomes as small as it is now: then
/// events still come through, though the injector has less time to read them. Returns whether it has any slots.
fn commit(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    loop {
        let committed = trace.committed().load(Ordering::Relaxed);
        if committed >= ring_bytes(trace) || committed / SLOT >= end {
            return true;
        }
        // A power of two, as the ring's own length is.
        let step = if committed == 0 { FIRST } else { committed };
        let at = area::offset(agent) + agent.orders.times_bytes + committed;
        if thread_blocks::commit_times(agent, block, at, step) {
            trace.committed().fetch_max(committed + step, Ordering::Relaxed);
        } else if committed == 0 {
            return false;
        } else if trace.committed().load(Ordering::Relaxed) == committed {
            // No event is beyond, so each stays where it is.
            trace.mask().store(committed / SLOT - 1, Ordering::Relaxed);
        }
    }
}

/// Returns whether there is room for events up to this number, and raises the limit.
pub(super) fn has_room(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    prepare(agent, block, trace);
    if !commit(agent, block, end) {
        return false;
    }
    let committed = trace.committed().load(Ordering::Relaxed);
    let bytes = ring_bytes(trace);
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
    if trace.untold().load(Ordering::Relaxed) != 0 || trace.owed().load(Ordering::Relaxed) != 0 {
        close_gates(trace);
    }
    end <= limit
}

/// Leaves the next event to compiled code, whatever room there is.
fn close_gates(trace: TraceRef) {
    trace.limit().store(0, Ordering::Relaxed);
}

/// Counts an event that is lost. Until it is told that events are lost, and which calls are open, the gates write none: a reader that
/// has not been told takes the calls whose ends are lost for open ones. A handler may lose events between any two instructions of
/// [`has_room`], so both change the limit in the order in which the last one of them closes the gates.
pub(super) fn lose(trace: TraceRef) {
    trace.lost().fetch_add(1, Ordering::Relaxed);
    trace.untold().fetch_add(1, Ordering::Relaxed);
    close_gates(trace);
}

/// Notes a pause for which there is no room, of a thread that is stopped. The thread writes it before its next event.
pub(super) fn owe(trace: TraceRef, ticks: u64) {
    trace.owed().fetch_add(ticks, Ordering::Relaxed);
    close_gates(trace);
}

/// Writes the pause that another thread has noted.
pub(super) fn pay(agent: &Agent, block: BlockRef, waits: bool) {
    let trace = block.trace();
    if trace.owed().load(Ordering::Relaxed) == 0 {
        return;
    }
    if trace.untold().load(Ordering::Relaxed) != 0 {
        // The times of open calls, which are told of next, have it already.
        trace.owed().store(0, Ordering::Relaxed);
    } else if let Some((number, _blocked)) = take(agent, block, 1, waits) {
        pay_in(agent, block, number);
    }
}

/// The same in a slot that has been taken.
pub(super) fn pay_in(agent: &Agent, block: BlockRef, number: u64) {
    let time = block.trace().owed().swap(0, Ordering::Relaxed);
    put(block.trace(), number, Event { kind: Kind::Pause, function: 0, time });
    has_room(agent, block, number + 1);
}

/// Signals that are blocked while this lives.
///
/// A handler that leaves a thread by a jump while it waits for room would leave slots that are never written, and one that comes a
/// hundred times meanwhile, a hundred of them. So the thread waits with signals blocked, until it has written the slots.
pub(super) struct Blocked(Option<u64>);

impl Blocked {
    fn none() -> Blocked {
        Blocked(None)
    }

    fn all() -> Blocked {
        Blocked(task::block_signals().ok())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(mask) = self.0 {
            let _ = task::set_blocked_signals(mask);
        }
    }
}

/// Waits until there is room for events up to this number, if that is wanted. Returns `None` if there is none.
fn wait_for_room(agent: &Agent, block: BlockRef, end: u64) -> Option<Blocked> {
    let trace = block.trace();
    let has_room_now = has_room(agent, block, end);
    let gave_up_at = trace.hopeless().load(Ordering::Relaxed);
    if gave_up_at != 0 && gave_up_at != trace.drained().load(Ordering::Relaxed) + 1 {
        // The injector reads again.
        trace.hopeless().store(0, Ordering::Relaxed);
        HAS_GIVEN_UP.store(false, Ordering::Relaxed);
    }
    if has_room_now {
        return Some(Blocked::none());
    }
    let is_whole = trace.committed().load(Ordering::Relaxed) >= ring_bytes(trace);
    if agent.orders.trace_full != Full::Wait.code() || !is_whole {
        return None;
    }
    if trace.hopeless().load(Ordering::Relaxed) == 0 {
        let blocked = Blocked::all();
        if wait(agent, block, end) {
            HAS_GIVEN_UP.store(false, Ordering::Relaxed);
            return Some(blocked);
        }
        HAS_GIVEN_UP.store(true, Ordering::Relaxed);
    }
    trace.hopeless().store(trace.drained().load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    None
}

/// Waits until there is room for events up to this number. Returns `false` if the injector has read nothing for two
/// seconds, or for a short time when another thread has waited in vain.
fn wait(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    let is_frozen = kernel::is_frozen();
    let (mut drained, mut looks) = (trace.drained().load(Ordering::Relaxed), 0);
    let most = if is_frozen { SPINS } else { NAPS };
    while looks <= if HAS_GIVEN_UP.load(Ordering::Relaxed) { most / HOPELESS } else { most } {
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
    }
    false
}

/// Takes the slots for an event. Returns the number of the first one, and what is to live until they are written, or `None` if there
/// is no room. `waits`: whether the calling thread may wait for room.
pub(super) fn take(agent: &Agent, block: BlockRef, slots: u64, waits: bool) -> Option<(u64, Blocked)> {
    let trace = block.trace();
    let number = trace.next().fetch_add(slots, Ordering::Relaxed);
    Some((number, keep(agent, block, number, slots, waits)?))
}

/// Makes room for slots that have been taken, or gives them back. Returns what is to live until they are written, or `None` if there
/// is no room.
pub(super) fn keep(agent: &Agent, block: BlockRef, number: u64, slots: u64, waits: bool) -> Option<Blocked> {
    let trace = block.trace();
    let end = number + slots;
    if end <= trace.limit().load(Ordering::Relaxed) || !waits && has_room(agent, block, end) {
        return Some(Blocked::none());
    }
    if waits && let Some(blocked) = wait_for_room(agent, block, end) {
        return Some(blocked);
    }
    let is_back = trace.next().compare_exchange(end, number, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // A handler's events have found room behind these slots.
    if !is_back && has_room(agent, block, end) {
        return Some(Blocked::none());
    }
    lose(trace);
    None
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
