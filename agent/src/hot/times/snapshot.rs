//! Snapshots: lists of a thread's open calls in its ring, from which a reader can resume.
//!
//! A thread writes a snapshot after events were lost. In a ring in which new events overwrite the oldest ones, it also writes one at
//! regular intervals.

use crate::hot::times::ring::{self, Event, has_room, put, take};
use crate::hot::times::{area, nodes, values};
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::full::Full;
use gprofinject_abi::shared::{BlockRef, OpenCallRef};
use gprofinject_abi::times::{INHERITED, REPORTED, TAIL, TRACED, UNIT};
use gprofinject_abi::trace::{Kind, SNAPSHOT_MAX, SNAPSHOTS};

/// Returns whether a snapshot is to be written before the next event.
pub(super) fn is_due(block: BlockRef) -> bool {
    let trace = block.trace();
    trace.unreported().load(Ordering::Relaxed) != 0
        || trace.next().load(Ordering::Relaxed) >= trace.due().load(Ordering::Relaxed)
}

/// Writes how many events were lost, if any, and the open calls, of which only the outermost [`SNAPSHOT_MAX`] are listed. `without` is
/// an open call whose beginning is yet to be written, so the snapshot omits it. Returns `false` if events were lost and there is no
/// room to report that.
pub(super) fn write_snapshot(
    agent: &Agent,
    block: BlockRef,
    without: Option<OpenCallRef>,
    waits: bool,
) -> bool {
    let trace = block.trace();
    let slots = ring::slots(trace);
    let unreported = trace.unreported().load(Ordering::Relaxed);
    let give_up = || {
        // A later event tries again.
        let next = trace.next().load(Ordering::Relaxed);
        trace.due().fetch_max(next + slots / SNAPSHOTS, Ordering::Relaxed);
        unreported == 0
    };
    // If new events are dropped when the ring is full, the thread resumes only when there is room for many events after the
    // snapshot. Otherwise, most of the ring would be snapshots.
    let next = trace.next().load(Ordering::Relaxed);
    if agent.orders.trace_full == Full::DropNew.code() && !has_room(agent, block, next + slots / SNAPSHOTS) {
        return give_up();
    }
    let is_wanted = |call: OpenCallRef| Some(call) != without && is_in_trace(agent, call);
    let count = open_calls(block).filter(|&call| is_wanted(call)).count() as u64;
    let listed = count.min(SNAPSHOT_MAX).min(slots / SNAPSHOTS);
    let Some((first, _blocked)) = take(agent, block, 2 + listed, waits) else {
        // `take` has counted the snapshot itself as a lost event.
        trace.unreported().fetch_sub(1, Ordering::Relaxed);
        trace.lost().fetch_sub(1, Ordering::Relaxed);
        return give_up();
    };
    // Reset the count only now that the slots are taken: a signal handler may leave this function by a non-local jump before. A
    // handler may also have reported the loss; then the count is 0.
    let head = match trace.unreported().swap(0, Ordering::Relaxed) {
        0 => Event { kind: Kind::Snapshot, function: block.tid().load(Ordering::Relaxed), time: 1 + listed },
        unreported => Event { kind: Kind::Lost, function: 0, time: unreported },
    };
    put(trace, first, head);
    put(trace, first + 1, Event { kind: Kind::Chain, function: chain_now(block), time: now(block) });
    // The iterator begins with the innermost call, and the snapshot with the outermost one.
    let mut calls = open_calls(block).filter(|&call| is_wanted(call));
    let has_lost = head.kind == Kind::Lost;
    for call in calls.by_ref().take((count - listed) as usize).filter(|_| has_lost) {
        // A reader would take the end of an omitted call for that of a listed one.
        call.flags().fetch_and(!TRACED, Ordering::Relaxed);
    }
    for number in (first + 2..first + 2 + listed).rev() {
        let nothing = Event { kind: Kind::Pause, function: 0, time: 0 };
        put(trace, number, calls.next().map_or(nothing, |call| open_event(block, call, has_lost)));
    }
    let end = first + 2 + listed;
    if ring::drops_old(agent) {
        // Snapshots of very deep stacks take long, so they are less frequent.
        trace.due().store(end + (slots / SNAPSHOTS).max(2 * count), Ordering::Relaxed);
    }
    // Let the gates write events again.
    has_room(agent, block, end);
    true
}

/// Returns whether an open call is in the trace, or would be if its beginning had not been lost.
fn is_in_trace(agent: &Agent, call: OpenCallRef) -> bool {
    if call.flags().load(Ordering::Relaxed) & TRACED != 0 {
        return true;
    }
    // With a minimum duration, the beginning of a call is not lost but deferred until a call that is long enough ends.
    let outer = area::call(call.outer().load(Ordering::Relaxed));
    !ring::is_late(agent)
        && outer.is_some_and(|outer| u64::from(outer.flags().load(Ordering::Relaxed)) < ring::deepest(agent))
}

/// Returns whether a signal handler has reported this call in a snapshot, so that the event of its beginning is not needed.
pub(super) fn is_reported(call: Option<OpenCallRef>) -> bool {
    call.is_some_and(|call| call.flags().load(Ordering::Relaxed) & REPORTED != 0)
}

/// Returns the event that lists an open call in a snapshot. From now on, the call's end is traced too.
fn open_event(block: BlockRef, call: OpenCallRef, has_lost: bool) -> Event {
    let event = of_call(block, call, Kind::Open);
    if has_lost {
        call.flags().fetch_or(REPORTED, Ordering::Relaxed);
    }
    if call.flags().load(Ordering::Relaxed) & TRACED == 0 {
        call.flags().fetch_or(values::traced_flags(event.function), Ordering::Relaxed);
    }
    event
}

/// Returns the open calls of the current chain, from the innermost one outwards.
pub(super) fn open_calls(block: BlockRef) -> impl Iterator<Item = OpenCallRef> {
    let mut next = area::call(block.times().top().load(Ordering::Relaxed));
    core::iter::from_fn(move || {
        let call = next?;
        let outer = call.outer().load(Ordering::Relaxed);
        next = area::call(outer);
        // The outermost record is the root, which is not a call.
        (outer != 0).then_some(call)
    })
}

/// Converts a time without pauses to a time of the clock.
pub(super) fn with_pauses(block: BlockRef, time: u64) -> u64 {
    time.wrapping_add(block.times().paused().load(Ordering::Relaxed))
}

/// Returns the time of the clock at which the thread's last call ended.
fn now(block: BlockRef) -> u64 {
    let times = block.times();
    let last = times.last().load(Ordering::Relaxed);
    with_pauses(block, last)
}

/// Returns the number of a chain in events.
pub(super) fn number_of(block: BlockRef, chain: u64) -> u32 {
    (chain.wrapping_sub(block.address()) / UNIT) as u32
}

fn chain_now(block: BlockRef) -> u32 {
    number_of(block, block.times().chain().load(Ordering::Relaxed))
}

/// Returns an event of this kind for an open call, with the time at which the call began.
pub(super) fn of_call(block: BlockRef, call: OpenCallRef, kind: Kind) -> Event {
    let function =
        nodes::arc(call.arc().load(Ordering::Relaxed)).map_or(0, |arc| arc.callee().load(Ordering::Relaxed));
    Event { kind, function, time: with_pauses(block, call.start().load(Ordering::Relaxed)) }
}

/// Returns the kind of event with which a call with these flags begins.
pub(super) fn kind_of(flags: u32) -> Kind {
    if flags & INHERITED != 0 {
        Kind::Inherited
    } else if flags & TAIL != 0 {
        Kind::Jump
    } else {
        Kind::Enter
    }
}
