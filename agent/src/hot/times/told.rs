//! What is told of the open calls of a thread where a reader does not know them: after events that were lost, and now and then in a
//! ring in which the newest events take the places of the oldest ones.

use crate::hot::times::ring::{self, Event, has_room, put, take};
use crate::hot::times::{area, nodes, values};
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::full::Full;
use gprofinject_abi::shared::{BlockRef, OpenCallRef};
use gprofinject_abi::times::{INHERITED, TAIL, TOLD, TRACED, UNIT};
use gprofinject_abi::trace::{Kind, SNAPSHOTS, TOLD_MOST};

/// Returns whether the open calls are to be told of before the next event.
pub(super) fn is_due(block: BlockRef) -> bool {
    let trace = block.trace();
    trace.untold().load(Ordering::Relaxed) != 0
        || trace.next().load(Ordering::Relaxed) >= trace.due().load(Ordering::Relaxed)
}

/// Says how many events were lost, if any were, and which calls are open now: the outermost ones up to [`TOLD_MOST`]. `without`: a
/// call that has not been told of yet. Returns `false` if events were lost and there is no room to say so.
pub(super) fn tell(agent: &Agent, block: BlockRef, without: Option<OpenCallRef>, waits: bool) -> bool {
    let trace = block.trace();
    let slots = ring::slots(trace);
    let untold = trace.untold().load(Ordering::Relaxed);
    let give_up = || {
        // It is tried again later.
        let next = trace.next().load(Ordering::Relaxed);
        trace.due().fetch_max(next + slots / SNAPSHOTS, Ordering::Relaxed);
        untold == 0
    };
    // A thread that loses what is new goes on only when there is room for much more than what is told, so that most of what is
    // read are events.
    let next = trace.next().load(Ordering::Relaxed);
    if agent.orders.trace_full == Full::DropNew.code() && !has_room(agent, block, next + slots / SNAPSHOTS) {
        return give_up();
    }
    let is_wanted = |call: OpenCallRef| Some(call) != without && is_in_trace(agent, call);
    let count = open_calls(block).filter(|&call| is_wanted(call)).count() as u64;
    let told = count.min(TOLD_MOST).min(slots / SNAPSHOTS);
    let Some((first, _blocked)) = take(agent, block, 2 + told, waits) else {
        // `take` has counted one more.
        trace.untold().fetch_sub(1, Ordering::Relaxed);
        trace.lost().fetch_sub(1, Ordering::Relaxed);
        return give_up();
    };
    // Not earlier: a handler might leave the thread by a jump before this is told. If one has told it, nothing is left to tell here.
    let head = match trace.untold().swap(0, Ordering::Relaxed) {
        0 => Event { kind: Kind::Snapshot, function: block.tid().load(Ordering::Relaxed), time: 1 + told },
        untold => Event { kind: Kind::Lost, function: 0, time: untold },
    };
    put(trace, first, head);
    put(trace, first + 1, Event { kind: Kind::Chain, function: chain_now(block), time: now(block) });
    // The innermost one comes first here and last there.
    let mut calls = open_calls(block).filter(|&call| is_wanted(call));
    let has_lost = head.kind == Kind::Lost;
    for call in calls.by_ref().take((count - told) as usize).filter(|_| has_lost) {
        // Its end would be taken for that of one that is told of.
        call.flags().fetch_and(!TRACED, Ordering::Relaxed);
    }
    for number in (first + 2..first + 2 + told).rev() {
        let nothing = Event { kind: Kind::Pause, function: 0, time: 0 };
        put(trace, number, calls.next().map_or(nothing, |call| told_call(block, call, has_lost)));
    }
    let end = first + 2 + told;
    if ring::drops_old(agent) {
        // To walk a very deep stack takes long, so that is done less often.
        trace.due().store(end + (slots / SNAPSHOTS).max(2 * count), Ordering::Relaxed);
    }
    // The gates write again.
    has_room(agent, block, end);
    true
}

/// Returns whether an open call is in the trace, or would be if its beginning had not been lost.
fn is_in_trace(agent: &Agent, call: OpenCallRef) -> bool {
    if call.flags().load(Ordering::Relaxed) & TRACED != 0 {
        return true;
    }
    // The beginnings of others are written when one of them ends that has lasted long enough.
    let outer = area::call(call.outer().load(Ordering::Relaxed));
    !ring::is_late(agent)
        && outer.is_some_and(|outer| u64::from(outer.flags().load(Ordering::Relaxed)) < ring::deepest(agent))
}

/// Returns whether the call whose beginning is to be written has been told of as an open one meanwhile, by a signal handler.
pub(super) fn is_told(call: Option<OpenCallRef>) -> bool {
    call.is_some_and(|call| call.flags().load(Ordering::Relaxed) & TOLD != 0)
}

/// Returns the event that tells of an open call. Its end is written too from now on.
fn told_call(block: BlockRef, call: OpenCallRef, has_lost: bool) -> Event {
    let event = of_call(block, call, Kind::Open);
    if has_lost {
        call.flags().fetch_or(TOLD, Ordering::Relaxed);
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
        // The last record is not a call.
        (outer != 0).then_some(call)
    })
}

/// Returns the time of the clock that an event has which happens at a time without pauses.
pub(super) fn with_pauses(block: BlockRef, time: u64) -> u64 {
    time.wrapping_add(block.times().paused().load(Ordering::Relaxed))
}

fn now(block: BlockRef) -> u64 {
    let times = block.times();
    let last = times.last().load(Ordering::Relaxed);
    with_pauses(block, last)
}

pub(super) fn number_of(block: BlockRef, chain: u64) -> u32 {
    (chain.wrapping_sub(block.address()) / UNIT) as u32
}

fn chain_now(block: BlockRef) -> u32 {
    number_of(block, block.times().chain().load(Ordering::Relaxed))
}

/// Returns the event of an open call's beginning.
pub(super) fn of_call(block: BlockRef, call: OpenCallRef, kind: Kind) -> Event {
    let function =
        nodes::arc(call.arc().load(Ordering::Relaxed)).map_or(0, |arc| arc.callee().load(Ordering::Relaxed));
    Event { kind, function, time: with_pauses(block, call.start().load(Ordering::Relaxed)) }
}

pub(super) fn kind_of(flags: u32) -> Kind {
    if flags & INHERITED != 0 {
        Kind::Inherited
    } else if flags & TAIL != 0 {
        Kind::Jump
    } else {
        Kind::Enter
    }
}
