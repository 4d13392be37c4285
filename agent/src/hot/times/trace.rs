//! A thread's events: `gprofinject --trace` ([`gprofinject_abi::trace`]).
//!
//! The gates write the events of most calls. What is here writes all others: those of slow paths, and those for which a gate
//! finds no room. There is none when a further part of the ring is to be committed, when the injector has not read enough,
//! when the open calls are to be told of, and at the thread's first event.

use crate::hot::thread_blocks;
pub(crate) use crate::hot::times::ring::is_on;
use crate::hot::times::ring::{Event, deepest, has_room, is_late, keep, lose, owe, pay, pay_in, put, take};
use crate::hot::times::told::{is_due, is_told, kind_of, number_of, of_call, open_calls, tell, with_pauses};
use crate::hot::times::values::{self, Values};
use crate::hot::times::{area, clock};
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, ChainRef, OpenCallRef};
use gprofinject_abi::times::{DEPTH_BIT, TRACED};
use gprofinject_abi::trace::{Kind, data_slots};

/// Bits of [`gprofinject_abi::times::OpenCall::flags`] below the depth.
const FLAG_BITS: u32 = (1 << DEPTH_BIT) - 1;

/// Returns the flags of a call that is made by one with these flags: its depth.
pub(crate) fn flags_below(agent: &Agent, outer: u32) -> u32 {
    let is_deepest = outer >> DEPTH_BIT == u32::MAX >> DEPTH_BIT;
    let deeper = if is_deepest { outer } else { outer + (1 << DEPTH_BIT) };
    if is_on(agent) { deeper & !FLAG_BITS } else { 0 }
}

/// Returns whether a call that is made by one with these flags is too deep to be traced or measured.
pub(crate) fn is_too_deep(agent: &Agent, outer: u32) -> bool {
    is_on(agent) && u64::from(outer) >= deepest(agent)
}

/// Writes an event of one slot. If events before it were lost, it says so first, and which calls are open. `without`: a call that
/// has not been told of yet. Returns whether there was room.
fn write(agent: &Agent, block: BlockRef, event: Event, without: Option<OpenCallRef>, waits: bool) -> bool {
    pay(agent, block, waits);
    if is_due(block) && !tell(agent, block, without, waits) {
        lose(block.trace());
        return false;
    }
    match take(agent, block, 1, waits) {
        Some((number, _blocked)) => {
            put(block.trace(), number, if is_told(without) { NOTHING } else { event });
            true
        }
        None => false,
    }
}

/// Writes an event, and the bytes that belong to it. A handler's events do not come in between, because all slots are taken at
/// once. Returns whether there was room.
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
    pay(agent, block, true);
    if is_due(block) && !tell(agent, block, without, true) {
        lose(trace);
        return false;
    }
    let slots = 1 + data_slots(bytes.len() as u64);
    let Some((number, _blocked)) = take(agent, block, slots, true) else { return false };
    if is_told(without) {
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

/// A call has begun, whose record is complete, with these arguments.
pub(crate) fn begun(agent: &Agent, block: BlockRef, call: OpenCallRef, arguments: &Values) {
    if is_on(agent) && !is_late(agent) {
        let flags = call.flags().load(Ordering::Relaxed);
        let event = of_call(block, call, kind_of(flags));
        if write_with(agent, block, event, arguments, Some(call)) {
            call.flags().fetch_or(values::traced_flags(event.function), Ordering::Relaxed);
        }
    }
}

/// The innermost open call ends at a time without pauses. `result` is what it returns; `None` means that it was left otherwise.
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

/// The number of open calls that are looked at together.
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
    // The innermost one comes first here and last there.
    let calls = wanted().skip(count.saturating_sub(CALLS));
    for (place, call) in list.iter_mut().rev().zip(calls) {
        *place = call.address();
    }
    (list, count > CALLS)
}

/// Writes the beginnings of all open calls of the current chain whose are not written yet, from the outermost one inwards.
fn announce_all(agent: &Agent, block: BlockRef) {
    loop {
        let mut list = [0; CALLS];
        let (calls, are_more) =
            outermost(block, &mut list, |call| call.flags().load(Ordering::Relaxed) & TRACED == 0);
        for call in calls.iter().filter_map(|&address| area::call(address)) {
            let flags = call.flags().load(Ordering::Relaxed);
            call.flags().store(flags | TRACED, Ordering::Relaxed);
            if !write(agent, block, of_call(block, call, kind_of(flags)), Some(call), true) {
                // What is lost now is told of as open later.
                return;
            }
        }
        if !are_more {
            return;
        }
    }
}

/// The thread goes on on another stack, since a time without pauses.
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

/// The agent has taken so many ticks until now, which have been added to the pauses.
pub(crate) fn paused(agent: &Agent, block: BlockRef, ticks: u64) {
    if is_on(agent) && ticks != 0 {
        write_pause(agent, block, ticks, true);
    }
}

/// Writes a pause, unless events before it were lost: the times of open calls, which are told of then, have the pause already.
fn write_pause(agent: &Agent, block: BlockRef, ticks: u64, waits: bool) {
    let trace = block.trace();
    if trace.untold().load(Ordering::Relaxed) != 0 {
        tell(agent, block, None, waits);
    } else if !waits && !has_room(agent, block, trace.next().load(Ordering::Relaxed) + 1) {
        owe(trace, ticks);
    } else if let Some((number, _blocked)) = take(agent, block, 1, waits) {
        put(trace, number, Event { kind: Kind::Pause, function: 0, time: ticks });
    }
}

/// The same for another thread, which is stopped. If its ring is full, the thread itself writes it later.
pub(crate) fn paused_other(agent: &Agent, block: BlockRef, ticks: u64) {
    if is_on(agent) && ticks != 0 && block.times().top().load(Ordering::Relaxed) != 0 {
        write_pause(agent, block, ticks, false);
    }
}

/// The calling thread begins on a stack.
pub(crate) fn thread(agent: &Agent, block: BlockRef, chain: ChainRef, time: u64) {
    if is_on(agent) {
        let event = Event { kind: Kind::Thread, function: task::gettid(), time: with_pauses(block, time) };
        write(agent, block, event, None, true);
        changed(agent, block, chain, time);
    }
}

/// A call begins whose end is not seen, at a time of the clock.
pub(crate) fn marked(agent: &Agent, block: BlockRef, function: u32, time: u64) {
    write(agent, block, Event { kind: Kind::Mark, function, time }, None, true);
}

/// The same where a gate has taken the slot with this number, and has found no room.
pub(crate) fn marked_at(agent: &Agent, block: BlockRef, function: u32, time: u64, number: u64) {
    let before = Before::now(block);
    if let Some(_blocked) = keep(agent, block, number, 1, true) {
        let event = Event { kind: Kind::Mark, function, time };
        put_after(agent, block, number, event, None, before);
    }
}

/// What is to be written before an event for which a gate has taken a slot.
#[derive(Clone, Copy)]
struct Before {
    /// A pause that another thread has noted. One that comes while the thread waits for room is after the event.
    owes: bool,
    /// Which calls are open. If a signal handler tells of them meanwhile, in slots behind this one, the event is after that.
    is_due: bool,
}

impl Before {
    fn now(block: BlockRef) -> Before {
        Before { owes: block.trace().owed().load(Ordering::Relaxed) != 0, is_due: is_due(block) }
    }
}

/// An event that says nothing, in a slot that was taken for another one.
const NOTHING: Event = Event { kind: Kind::Pause, function: 0, time: 0 };

/// Writes an event into a slot that has been taken, or in another one if something is to be written first. Returns whether there was
/// room.
fn put_after(
    agent: &Agent,
    block: BlockRef,
    number: u64,
    event: Event,
    without: Option<OpenCallRef>,
    before: Before,
) -> bool {
    let trace = block.trace();
    if is_told(without) {
        put(trace, number, NOTHING);
        return true;
    }
    if before.is_due || is_due(block) {
        put(trace, number, NOTHING);
    } else if before.owes {
        pay_in(agent, block, number);
    } else {
        put(trace, number, event);
        return true;
    }
    write(agent, block, event, without, true)
}

/// A gate has taken the slot with this number for an event of the innermost open call and has found no room. `is_entry`: whether
/// it is the call's beginning.
pub(crate) extern "C" fn no_room(number: u64, time: u64, is_entry: u64) {
    let before = clock::now();
    let block = failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        let call = area::call(block.times().top().load(Ordering::Relaxed))?;
        let flags = call.flags().load(Ordering::Relaxed);
        let kind = if is_entry != 0 { kind_of(flags) } else { Kind::Exit };
        let event = Event { time, ..of_call(block, call, kind) };
        let without = Some(call).filter(|_| is_entry != 0);
        if is_entry != 0 {
            // Before the event may be lost: if a handler tells then that this call is open, its end is to be written.
            call.flags().fetch_and(!TRACED, Ordering::Relaxed);
        }
        let first = Before::now(block);
        let is_written = keep(agent, block, number, 1, true)
            .is_some_and(|_blocked| put_after(agent, block, number, event, without, first));
        if is_written && is_entry != 0 {
            call.flags().fetch_or(TRACED, Ordering::Relaxed);
        }
        Some(block)
    });
    if let Some(Some(block)) = block {
        pause_since(block, before);
    }
}

/// A call ends whose beginning is not written, in the gate, and has lasted long enough. `time` is that of the clock.
pub(crate) extern "C" fn late(time: u64) {
    let before = clock::now();
    let block = failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        let times = block.times();
        let call = area::call(times.top().load(Ordering::Relaxed))?;
        let without_pauses = time.wrapping_sub(times.paused().load(Ordering::Relaxed));
        ended(agent, block, call, without_pauses, Some(&Values::NONE));
        Some(block)
    });
    if let Some(Some(block)) = block {
        pause_since(block, before);
    }
}

/// Takes out the time since `before`.
fn pause_since(block: BlockRef, before: u64) {
    let took = clock::now().wrapping_sub(before);
    block.times().paused().fetch_add(took, Ordering::Relaxed);
    paused(Agent::get(), block, took);
}
