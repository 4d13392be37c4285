//! A thread's ring of events ([`gprofinject_abi::trace`]): takes slots, waits until there is room for them, and writes them.
//!
//! A signal handler may take slots between any two instructions, so a single instruction takes slots. If there is no room for
//! them, the thread gives them back, unless a handler has taken later slots in the meantime. The handler has found room for those,
//! so there is room for the earlier ones as well.
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
/// The number of bytes of the ring that the first commit covers. Each further commit doubles the committed part.
const FIRST: u64 = 64 << 10;
/// The time for which a waiting thread sleeps between two checks whether the injector has read events.
const NAP_NS: u64 = 50_000;
/// The number of consecutive checks without progress after which a thread gives up. They take about two seconds.
const NAPS: u32 = 20_000;
/// The number of such checks for a thread that must not make system calls and therefore spins instead of sleeping.
const SPINS: u32 = 1 << 22;
/// The divisor of [`NAPS`] and [`SPINS`] while [`HAS_GIVEN_UP`] is set.
const AFTER_GIVING_UP: u32 = 64;
/// Whether a thread has given up waiting for the injector. Until a thread sees that the injector has read more, other threads wait only
/// briefly. Otherwise, a program that starts many threads in succession would wait for two seconds in each of them.
static HAS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Makes threads wait only briefly for room until one sees that the injector has read events. A child that cannot reach the injector
/// calls this.
pub(crate) fn expect_no_reader() {
    HAS_GIVEN_UP.store(true, Ordering::Relaxed);
}

/// Returns whether calls are traced.
pub(crate) fn is_on(agent: &Agent) -> bool {
    agent.orders.trace_bytes != 0
}

/// Returns whether only calls of a minimum duration are traced, so that a call's events are written when it ends.
pub(super) fn is_late(agent: &Agent) -> bool {
    agent.orders.trace_least != 0
}

/// Returns whether new events overwrite the oldest ones when the ring is full.
pub(super) fn drops_old(agent: &Agent) -> bool {
    agent.orders.trace_full == Full::DropOld.code()
}

/// Returns the number of slots of a ring that [`prepare`] has set up.
pub(super) fn slots(trace: TraceRef) -> u64 {
    trace.mask().load(Ordering::Relaxed) + 1
}

/// Returns the lowest flags of a call whose callees are too deep to be traced: see [`TraceHeader::deepest`].
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

/// Sets up the ring, if this has not been done yet.
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

/// Returns the size of the ring in bytes. It is smaller than ordered if a commit has failed.
fn ring_bytes(trace: TraceRef) -> u64 {
    slots(trace) * SLOT
}

/// Commits the ring for all events before number `end`, up to the ring's size. If a commit fails, the ring shrinks to its committed
/// part: events are still recorded, but the injector has less time to read them. Returns whether any part of the ring is committed.
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
            // No event has been written beyond the committed part, so all events keep their slots.
            trace.mask().store(committed / SLOT - 1, Ordering::Relaxed);
        }
    }
}

/// Returns whether there is room for all events before number `end`, and updates the limit up to which the gates write events.
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
        // A valid `drained` never exceeds `next`.
        let drained = trace.drained().load(Ordering::Acquire).min(trace.next().load(Ordering::Relaxed));
        drained + bytes / SLOT
    };
    // At the event before which a snapshot is due, the gates take the slow path as well.
    trace.limit().store(limit.min(trace.due().load(Ordering::Relaxed)), Ordering::Relaxed);
    if trace.unreported().load(Ordering::Relaxed) != 0 || trace.deferred_pause().load(Ordering::Relaxed) != 0
    {
        close_gates(trace);
    }
    end <= limit
}

/// Makes the gates take the slow path for the next event, even if there is room.
fn close_gates(trace: TraceRef) {
    trace.limit().store(0, Ordering::Relaxed);
}

/// Counts a lost event. The gates write no further events until a snapshot reports the loss and the open calls, because a reader would
/// take calls whose ends were lost for open ones. A signal handler may lose events between any two instructions of [`has_room`], so
/// both functions set the limit to 0 as their last step while a loss is unreported.
pub(super) fn lose(trace: TraceRef) {
    trace.lost().fetch_add(1, Ordering::Relaxed);
    trace.unreported().fetch_add(1, Ordering::Relaxed);
    close_gates(trace);
}

/// Notes a pause of a stopped thread in whose ring there is no room. The thread writes the pause before its next event.
pub(super) fn defer_pause(trace: TraceRef, ticks: u64) {
    trace.deferred_pause().fetch_add(ticks, Ordering::Relaxed);
    close_gates(trace);
}

/// Writes the pause that [`defer_pause`] has noted, if any.
pub(super) fn write_deferred_pause(agent: &Agent, block: BlockRef, waits: bool) {
    let trace = block.trace();
    if trace.deferred_pause().load(Ordering::Relaxed) == 0 {
        return;
    }
    if trace.unreported().load(Ordering::Relaxed) != 0 {
        // The next snapshot has the times of the open calls, which include the pause already.
        trace.deferred_pause().store(0, Ordering::Relaxed);
    } else if let Some((number, _blocked)) = take(agent, block, 1, waits) {
        write_deferred_pause_at(agent, block, number);
    }
}

/// Writes the deferred pause to slot `number`, which has been taken.
pub(super) fn write_deferred_pause_at(agent: &Agent, block: BlockRef, number: u64) {
    let time = block.trace().deferred_pause().swap(0, Ordering::Relaxed);
    put(block.trace(), number, Event { kind: Kind::Pause, function: 0, time });
    has_room(agent, block, number + 1);
}

/// A guard that restores the signal mask when it is dropped.
///
/// A thread that waits for room blocks all signals until it has written the slots that it has taken. Otherwise, a handler that leaves
/// by a non-local jump would abandon slots, which are then never written, and a repeated signal would make the thread take more and
/// more of them.
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

/// Waits until there is room for all events before number `end`, if the user chose that for full rings. Returns `None` if there is no
/// room.
fn wait_for_room(agent: &Agent, block: BlockRef, end: u64) -> Option<Blocked> {
    let trace = block.trace();
    let has_room_now = has_room(agent, block, end);
    let gave_up_at = trace.gave_up_at().load(Ordering::Relaxed);
    if gave_up_at != 0 && gave_up_at != trace.drained().load(Ordering::Relaxed) + 1 {
        // The injector has read events since this thread gave up.
        trace.gave_up_at().store(0, Ordering::Relaxed);
        HAS_GIVEN_UP.store(false, Ordering::Relaxed);
    }
    if has_room_now {
        return Some(Blocked::none());
    }
    let is_whole = trace.committed().load(Ordering::Relaxed) >= ring_bytes(trace);
    if agent.orders.trace_full != Full::Wait.code() || !is_whole {
        return None;
    }
    if trace.gave_up_at().load(Ordering::Relaxed) == 0 {
        let blocked = Blocked::all();
        if wait(agent, block, end) {
            HAS_GIVEN_UP.store(false, Ordering::Relaxed);
            return Some(blocked);
        }
        HAS_GIVEN_UP.store(true, Ordering::Relaxed);
    }
    trace.gave_up_at().store(trace.drained().load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    None
}

/// Waits until there is room for all events before number `end`. Returns `false` if the injector has read nothing for two seconds, or
/// for a fraction of that while [`HAS_GIVEN_UP`] is set.
fn wait(agent: &Agent, block: BlockRef, end: u64) -> bool {
    let trace = block.trace();
    let is_frozen = kernel::is_frozen();
    let (mut drained, mut looks) = (trace.drained().load(Ordering::Relaxed), 0);
    let most = if is_frozen { SPINS } else { NAPS };
    while looks <= if HAS_GIVEN_UP.load(Ordering::Relaxed) { most / AFTER_GIVING_UP } else { most } {
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

/// Takes `slots` slots for an event. Returns the number of the first slot and a guard that the caller drops after writing the slots, or
/// `None` if there is no room. `waits` is whether the thread may wait for room.
pub(super) fn take(agent: &Agent, block: BlockRef, slots: u64, waits: bool) -> Option<(u64, Blocked)> {
    let trace = block.trace();
    let number = trace.next().fetch_add(slots, Ordering::Relaxed);
    Some((number, keep(agent, block, number, slots, waits)?))
}

/// Makes room for slots that have been taken, or gives them back. Returns a guard that the caller drops after writing the slots, or
/// `None` if there is no room.
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
    // If a signal handler has taken later slots, the slots cannot be given back, but there may be room for them now.
    if !is_back && has_room(agent, block, end) {
        return Some(Blocked::none());
    }
    lose(trace);
    None
}

/// Writes an event to slot `number`, for which there is room.
pub(super) fn put(trace: TraceRef, number: u64, event: Event) {
    let at = trace.ring().load(Ordering::Relaxed) + (number & trace.mask().load(Ordering::Relaxed)) * SLOT;
    // SAFETY: the ring is a part of the thread block, which stays mapped. Within the process, only this function and the gates access
    // slots; the injector checks what it reads.
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
