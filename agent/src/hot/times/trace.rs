//! Writes the events of a trace (`gprofinject --trace`, [`gprofinject_abi::trace`]) outside of the gates.
//!
//! The gates write the events of most calls. This module writes those of the slow paths, and those that a gate finds to be at the
//! ring's limit: at the thread's first event, when a further part of the ring has to be committed, when the injector has not read
//! enough, and when a snapshot is due ([`snapshot`](crate::hot::times::snapshot)).

use crate::hot::times::area;
pub(crate) use crate::hot::times::ring::is_on;
use crate::hot::times::ring::{
    Event, deepest, defer_pause, has_room, is_late, keep, lose, put, take, write_deferred_pause,
    write_deferred_pause_at,
};
use crate::hot::times::snapshot::{
    is_due, is_reported, kind_of, number_of, of_call, open_calls, with_pauses, write_snapshot,
};
use crate::hot::times::values::{self, Values};
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, ChainRef, OpenCallRef};
use gprofinject_abi::times::{DEPTH_BIT, TRACED};
use gprofinject_abi::trace::{Kind, READY, data_slots};

/// Bits of [`gprofinject_abi::times::OpenCall::flags`] below the depth.
const FLAG_BITS: u32 = (1 << DEPTH_BIT) - 1;

/// Returns the flags that hold the depth of a call whose caller has the flags `outer`.
pub(crate) fn flags_below(agent: &Agent, outer: u32) -> u32 {
    let is_deepest = outer >> DEPTH_BIT == u32::MAX >> DEPTH_BIT;
    let deeper = if is_deepest { outer } else { outer + (1 << DEPTH_BIT) };
    if is_on(agent) { deeper & !FLAG_BITS } else { 0 }
}

/// Returns whether a call whose caller has the flags `outer` is too deep to be traced or measured.
pub(crate) fn is_too_deep(agent: &Agent, outer: u32) -> bool {
    is_on(agent) && u64::from(outer) >= deepest(agent)
}

/// Writes an event of one slot, after the pause and the snapshot that are due. `without` is the call whose beginning the event is, if any:
/// a snapshot omits it. Returns whether there was room.
fn write(agent: &Agent, block: BlockRef, event: Event, without: Option<OpenCallRef>, waits: bool) -> bool {
    write_deferred_pause(agent, block, waits);
    if is_due(block) && !write_snapshot(agent, block, without, waits) {
        lose(block.trace());
        return false;
    }
    match take(agent, block, 1, waits) {
        Some((number, _blocked)) => {
            put(block.trace(), number, if is_reported(without) { NOTHING } else { event });
            true
        }
        None => false,
    }
}

/// Writes an event and its encoded values. All slots are taken at once, so that no signal handler's events come between them. Returns
/// whether there was room.
fn write_with(
    agent: &Agent,
    block: BlockRef,
    event: Event,
    values: &Values,
    without: Option<OpenCallRef>,
) -> bool {
    let bytes = values.bytes();
    if bytes.is_empty() {
        return write(agent, block, event, without, true);
    }
    let trace = block.trace();
    write_deferred_pause(agent, block, true);
    if is_due(block) && !write_snapshot(agent, block, without, true) {
        lose(trace);
        return false;
    }
    let slots = 1 + data_slots(bytes.len() as u64);
    let Some((number, _blocked)) = take(agent, block, slots, true) else { return false };
    if is_reported(without) {
        (number..number + slots).for_each(|number| put(trace, number, NOTHING));
        return true;
    }
    put(trace, number, event);
    let word = |at: usize, len: usize| {
        let part = bytes.get(at..bytes.len().min(at + len)).unwrap_or_default();
        part.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte))
    };
    put(trace, number + 1, Event { kind: Kind::Data, function: bytes.len() as u32, time: word(0, 8) });
    for (number, at) in (number + 2..).zip((8..bytes.len()).step_by(12)) {
        put(trace, number, Event { kind: Kind::More, function: word(at + 8, 4) as u32, time: word(at, 8) });
    }
    true
}

/// Writes the beginning of an open call, with these arguments.
pub(crate) fn begun(agent: &Agent, block: BlockRef, call: OpenCallRef, arguments: &Values) {
    if is_on(agent) && !is_late(agent) {
        let flags = call.flags().load(Ordering::Relaxed);
        let event = of_call(block, call, kind_of(flags));
        if write_with(agent, block, event, arguments, Some(call)) {
            call.flags().fetch_or(values::traced_flags(event.function), Ordering::Relaxed);
        }
    }
}

/// Writes the end of the innermost open call. `time` is a time without pauses. `result` is the call's result, or `None` if the call did
/// not return.
pub(crate) fn ended(agent: &Agent, block: BlockRef, call: OpenCallRef, time: u64, result: Option<&Values>) {
    if !is_on(agent) {
        return;
    }
    let lasted = time.saturating_sub(call.start().load(Ordering::Relaxed));
    if is_late(agent)
        && lasted >= agent.orders.trace_least
        && call.flags().load(Ordering::Relaxed) & TRACED == 0
    {
        announce_all(agent, block);
    }
    if call.flags().load(Ordering::Relaxed) & TRACED != 0 {
        let kind = if result.is_some() { Kind::Exit } else { Kind::Left };
        let event = Event { time: with_pauses(block, time), ..of_call(block, call, kind) };
        write_with(agent, block, event, result.unwrap_or(&Values::NONE), None);
    }
}

/// The number of open calls that [`announce_all`] handles in one pass.
const CALLS: usize = 128;

/// Returns the addresses of the outermost open calls of the current chain that `is_wanted` accepts, up to [`CALLS`] of them, from
/// the outermost one inwards, and whether there are more.
fn outermost(
    block: BlockRef,
    list: &mut [u64; CALLS],
    is_wanted: impl Fn(OpenCallRef) -> bool,
) -> (&[u64], bool) {
    let wanted = || open_calls(block).filter(|&call| is_wanted(call));
    let count = wanted().count();
    let list = list.get_mut(..count.min(CALLS)).unwrap_or_default();
    // The iterator begins with the innermost call, and the list with the outermost one.
    let calls = wanted().skip(count.saturating_sub(CALLS));
    for (place, call) in list.iter_mut().rev().zip(calls) {
        *place = call.address();
    }
    (list, count > CALLS)
}

/// Writes the beginnings of all open calls of the current chain that are not in the trace yet, from the outermost call inwards.
fn announce_all(agent: &Agent, block: BlockRef) {
    loop {
        let mut list = [0; CALLS];
        let (calls, are_more) =
            outermost(block, &mut list, |call| call.flags().load(Ordering::Relaxed) & TRACED == 0);
        for call in calls.iter().filter_map(|&address| area::call(address)) {
            let flags = call.flags().load(Ordering::Relaxed);
            call.flags().store(flags | TRACED, Ordering::Relaxed);
            if !write(agent, block, of_call(block, call, kind_of(flags)), Some(call), true) {
                // The next snapshot lists the remaining calls.
                return;
            }
        }
        if !are_more {
            return;
        }
    }
}

/// Writes that the thread has run on another stack since `time`, a time without pauses.
pub(crate) fn changed(agent: &Agent, block: BlockRef, chain: ChainRef, time: u64) {
    if is_on(agent) {
        let function = number_of(block, chain.address());
        write(
            agent,
            block,
            Event { kind: Kind::Chain, function, time: with_pauses(block, time) },
            None,
            true,
        );
    }
}

/// Writes a pause: until now, the agent has taken `ticks` ticks, which the caller has added to `paused`.
pub(crate) fn paused(agent: &Agent, block: BlockRef, ticks: u64) {
    if is_on(agent) && ticks != 0 {
        write_pause(agent, block, Event { kind: Kind::Pause, function: 0, time: ticks }, true);
    }
}

/// Writes that until now, other threads had the processor for `ticks` ticks, which the caller has added to `paused`.
pub(crate) fn was_ready(agent: &Agent, block: BlockRef, ticks: u64) {
    if is_on(agent) && ticks != 0 {
        write_pause(agent, block, Event { kind: Kind::Pause, function: READY, time: ticks }, true);
    }
}

/// Writes a pause, or a snapshot instead if events were lost: the times of the calls in a snapshot include the pause already.
fn write_pause(agent: &Agent, block: BlockRef, pause: Event, waits: bool) {
    let trace = block.trace();
    if trace.unreported().load(Ordering::Relaxed) != 0 {
        write_snapshot(agent, block, None, waits);
    } else if !waits && !has_room(agent, block, trace.next().load(Ordering::Relaxed) + 1) {
        defer_pause(trace, pause.time);
    } else if let Some((number, _blocked)) = take(agent, block, 1, waits) {
        put(trace, number, pause);
    }
}

/// Writes a pause of another thread, which is stopped. If that thread's ring is full, the thread itself writes the pause later.
pub(crate) fn paused_other(agent: &Agent, block: BlockRef, ticks: u64) {
    if is_on(agent) && ticks != 0 && block.times().top().load(Ordering::Relaxed) != 0 {
        write_pause(agent, block, Event { kind: Kind::Pause, function: 0, time: ticks }, false);
    }
}

/// Writes that the calling thread owns the thread block from now on, and runs on the stack of `chain`.
pub(crate) fn thread(agent: &Agent, block: BlockRef, chain: ChainRef, time: u64) {
    if is_on(agent) {
        let event = Event { kind: Kind::Thread, function: task::gettid(), time: with_pauses(block, time) };
        write(agent, block, event, None, true);
        changed(agent, block, chain, time);
    }
}

/// Writes the beginning of a call whose exit is not hooked. `time` is a time of the clock.
pub(crate) fn marked(agent: &Agent, block: BlockRef, function: u32, time: u64) {
    write(agent, block, Event { kind: Kind::Mark, function, time }, None, true);
}

/// Writes the beginning of a call whose exit is not hooked, for which a gate has taken slot `number` but has found no room.
pub(crate) fn marked_at(agent: &Agent, block: BlockRef, function: u32, time: u64, number: u64) {
    let before = Before::now(block);
    if let Some(_blocked) = keep(agent, block, number, 1, true) {
        let event = Event { kind: Kind::Mark, function, time };
        put_after(agent, block, number, event, None, before);
    }
}

/// The writes that were due before an event when a gate took a slot for the event.
#[derive(Clone, Copy)]
struct Before {
    /// Whether a pause was deferred ([`defer_pause`]). A pause that is deferred while the thread waits for room comes after the event.
    has_pause: bool,
    /// Whether a snapshot was due. If a signal handler writes the snapshot meanwhile, it is in later slots than the gate's, so the event
    /// has to go to a slot after it.
    is_due: bool,
}

impl Before {
    fn now(block: BlockRef) -> Before {
        Before {
            has_pause: block.trace().deferred_pause().load(Ordering::Relaxed) != 0,
            is_due: is_due(block),
        }
    }
}

/// An event without effect, for a slot that was taken and is not needed.
const NOTHING: Event = Event { kind: Kind::Pause, function: 0, time: 0 };

/// Writes an event to slot `number`, which has been taken, or to a later slot if something has to be written first. Returns whether
/// there was room.
fn put_after(
    agent: &Agent,
    block: BlockRef,
    number: u64,
    event: Event,
    without: Option<OpenCallRef>,
    before: Before,
) -> bool {
    let trace = block.trace();
    if is_reported(without) {
        put(trace, number, NOTHING);
        return true;
    }
    if before.is_due || is_due(block) {
        put(trace, number, NOTHING);
    } else if before.has_pause {
        write_deferred_pause_at(agent, block, number);
    } else {
        put(trace, number, event);
        return true;
    }
    write(agent, block, event, without, true)
}

/// Writes an event of the innermost open call for which a gate has taken slot `number` but has found no room. `is_entry` is nonzero for
/// the beginning of the call, and 0 for its end.
pub(crate) fn no_room(agent: &Agent, block: BlockRef, number: u64, time: u64, is_entry: bool) -> Option<()> {
    let call = area::call(block.times().top().load(Ordering::Relaxed))?;
    let flags = call.flags().load(Ordering::Relaxed);
    let kind = if is_entry { kind_of(flags) } else { Kind::Exit };
    let event = Event { time, ..of_call(block, call, kind) };
    let without = Some(call).filter(|_| is_entry);
    if is_entry {
        // Clear the flag before the event can be lost. A snapshot by a signal handler then lists the call and sets the flag, so that the
        // call's end is traced.
        call.flags().fetch_and(!TRACED, Ordering::Relaxed);
    }
    let first = Before::now(block);
    let is_written = keep(agent, block, number, 1, true)
        .is_some_and(|_blocked| put_after(agent, block, number, event, without, first));
    if is_written && is_entry {
        call.flags().fetch_or(TRACED, Ordering::Relaxed);
    }
    Some(())
}

/// Writes the events of a call that ends in the gate at `time`, a time of the clock, and that has lasted for the minimum duration.
pub(crate) fn late(agent: &Agent, block: BlockRef, time: u64) -> Option<()> {
    let times = block.times();
    let call = area::call(times.top().load(Ordering::Relaxed))?;
    let without_pauses = time.wrapping_sub(times.paused().load(Ordering::Relaxed));
    ended(agent, block, call, without_pauses, Some(&Values::NONE));
    Some(())
}
