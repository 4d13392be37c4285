//! The slow paths of the gates: beginnings and ends of calls that the machine code does not handle itself.

use crate::hot::thread_blocks;
use crate::hot::times::chains::Place;
use crate::hot::times::open::{How, close, push};
use crate::hot::times::values::{Saved, Values};
use crate::hot::times::{area, calibration, chains, clock, forks, nodes, short, switches, threads, trace};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, OpenCallRef};
use gprofinject_abi::times::{ENDS_SLOWLY, HAS_RESULT, TAIL};

/// Returns the calling thread's block, or `None` in a forked child that still uses its parent's thread block.
fn measured(agent: &Agent) -> Option<BlockRef> {
    if forks::is_new_child(agent) { None } else { current(agent) }
}

/// Returns the calling thread's block, or `None` while it calibrates.
fn current(agent: &Agent) -> Option<BlockRef> {
    thread_blocks::current(agent).filter(|&block| !calibration::is_scratch(block))
}

/// Opens a call of function `number`, which begins in the frame with this CFA. `integers` and `vectors` are the addresses of the
/// saved registers: see [`Saved`].
pub(crate) extern "C" fn begin(number: u32, cfa: u64, integers: u64, vectors: u64) {
    let entered = clock::now();
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = current(agent)?;
        let times = block.times();
        if clock::is_forbidden() || forks::is_new_child(agent) {
            times.unmeasured().fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let now = clock::without_pauses(times, switches::note(agent, block, entered));
        threads::prepare(agent, block, cfa, now)?;
        let opened = open(agent, block, number, cfa, now);
        match opened {
            Opened::Call(call) => Some((agent, block, call, now)),
            Opened::TooDeep => None,
            Opened::NoRoom => {
                times.unmeasured().fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    });
    if let Some(Some((agent, block, call, now))) = opened {
        // The call starts when the slow path ends. Below, the duration of the slow path is added to `paused`, so on the clock without
        // pauses the slow path begins and ends at the same time.
        let last = block.times().last().load(Ordering::Relaxed);
        call.start().store(now.max(last), Ordering::Relaxed);
        failure::guarded(|| {
            if agent.orders.trace_args == 0 || agent.orders.tallies != 0 {
                trace::begun(agent, block, call, &Values::NONE);
            } else {
                begun_with_arguments(agent, block, call, number, Saved { integers, vectors }, cfa);
            }
        });
        pause(agent, block, now);
    }
}

/// Adds the duration of a slow path of the calling thread, since the time without pauses `since`, to its pauses. Since what is done here is in no
/// duration, this is where calls are calibrated.
fn pause(agent: &Agent, block: BlockRef, since: u64) {
    calibration::again(block.times(), clock::now());
    let took = switches::pause(agent, block, since);
    failure::guarded(|| trace::paused(agent, block, took));
}

/// Writes the event for which a gate has found no room in the ring: see [`trace::no_room`].
pub(crate) extern "C" fn no_room(number: u64, time: u64, is_entry: u64) {
    pausing(|agent, block| trace::no_room(agent, block, number, time, is_entry != 0));
}

/// Writes the events of a call that ends in the gate, and that has lasted for the minimum duration: see [`trace::late`].
pub(crate) extern "C" fn late(time: u64) {
    pausing(|agent, block| trace::late(agent, block, time));
}

/// Decides whether the calls of an arc are short. `call` is the one that is ending in the gate. See [`short::decide`].
pub(crate) extern "C" fn decide(arc: u64, call: u64) {
    pausing(|_, block| short::decide(block.times(), nodes::arc(arc)?, area::call(call)?));
}

/// Does a part of a gate's work, and adds its duration to the calling thread's pauses.
pub(crate) fn pausing(work: impl FnOnce(&Agent, BlockRef) -> Option<()>) {
    let entered = clock::now();
    let done = failure::guarded(|| {
        let agent = Agent::get();
        let block = current(agent)?;
        let since = clock::without_pauses(block.times(), entered);
        work(agent, block)?;
        Some((agent, block, since))
    });
    if let Some(Some((agent, block, since))) = done {
        pause(agent, block, since);
    }
}

/// Records in the trace that a call of function `number` begins in the frame with this CFA. The exit of this function is not hooked.
/// `event` is the number of the event for which the gate has found no room in the ring, or -1 if it has taken none.
pub(crate) extern "C" fn mark(number: u32, cfa: u64, event: u64) {
    let entered = clock::now();
    let marked = failure::guarded(|| {
        let agent = Agent::get();
        let block = measured(agent)?;
        let times = block.times();
        if event != u64::MAX {
            let since = clock::without_pauses(times, entered);
            trace::marked_at(agent, block, number, entered, event);
            return Some((agent, block, since));
        }
        if clock::is_forbidden() || clock::STOPPED_AT.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let noted = switches::note(agent, block, entered);
        let now = clock::without_pauses(times, noted);
        threads::prepare(agent, block, cfa, now)?;
        let top = area::call(times.top().load(Ordering::Relaxed))?;
        if !trace::is_too_deep(agent, top.flags().load(Ordering::Relaxed)) {
            trace::marked(agent, block, number, noted);
        }
        Some((agent, block, now))
    });
    if let Some(Some((agent, block, since))) = marked {
        pause(agent, block, since);
    }
}

/// Reads the arguments of a call that has begun, and writes its event. This is a function of its own so that calls without traced
/// arguments do not clear the buffer: `memset` is code that unwinders do not know.
#[inline(never)]
fn begun_with_arguments(
    agent: &Agent,
    block: BlockRef,
    call: OpenCallRef,
    number: u32,
    saved: Saved,
    cfa: u64,
) {
    trace::begun(agent, block, call, &Values::of_arguments(number, saved, cfa));
}

/// Reads the result of the innermost open call, and ends the call.
#[inline(never)]
fn close_with_result(
    block: BlockRef,
    call: OpenCallRef,
    now: u64,
    saved: Saved,
    cfa: u64,
) -> Option<OpenCallRef> {
    let number = nodes::arc(call.arc().load(Ordering::Relaxed))?.callee().load(Ordering::Relaxed);
    close(block, call, now, How::Returned(&Values::of_result(number, saved, cfa)))
}

/// The outcome of opening a call.
enum Opened {
    Call(OpenCallRef),
    /// The call is deeper than the maximum depth of the trace.
    TooDeep,
    /// The area is full, or memory is short.
    NoRoom,
}

/// Opens a call on the chain of its stack. `now` is the time without pauses.
fn open(agent: &Agent, block: BlockRef, number: u32, cfa: u64, now: u64) -> Opened {
    let times = block.times();
    let Some(place) = chains::switch_for_begin(agent, block, cfa, now) else { return Opened::NoRoom };
    let Some(top) = area::call(times.top().load(Ordering::Relaxed)) else { return Opened::NoRoom };
    if trace::is_too_deep(agent, top.flags().load(Ordering::Relaxed)) {
        if place == Place::SignalStack && chains::is_undetected_handler(agent, cfa) {
            chains::allow_any_stack(times);
        }
        return Opened::TooDeep;
    }
    // The outermost call on a signal stack ends in the slow path, which restricts the gates to the chain's own stack again.
    let flags = match place {
        Place::SignalStack => {
            let is_outermost = chains::is_on_current(times, top);
            chains::allow_any_stack(times);
            if is_outermost { ENDS_SLOWLY } else { 0 }
        }
        Place::Chain => 0,
    };
    open_below(agent, block, top, number, cfa, flags, now).map_or_else(
        || {
            chains::allow_current_stack(times);
            Opened::NoRoom
        },
        Opened::Call,
    )
}

/// Opens a call below `top`, the innermost open call so far, and returns the new call. `flags` are the call's flags unless it is a
/// tail call.
fn open_below(
    agent: &Agent,
    block: BlockRef,
    top: OpenCallRef,
    number: u32,
    cfa: u64,
    flags: u32,
    now: u64,
) -> Option<OpenCallRef> {
    // After a tail call, the called function uses its caller's frame.
    let is_tail = area::cfa(top) == cfa;
    let entry = nodes::of_call(agent, block, top, number)?;
    let outer = if is_tail { end_earlier(block, top, entry.arc, cfa, now) } else { top };
    let ends_slowly = outer.flags().load(Ordering::Relaxed) & ENDS_SLOWLY;
    let flags = if is_tail { TAIL | ends_slowly } else { flags };
    push(agent, block, outer, entry, cfa, flags)
}

/// Bounds the number of open calls in one frame: functions may call each other by tail calls any number of times. If the frame has
/// an open tail call of this arc already, ends that call and all calls inside it. Returns the caller of the new call.
fn end_earlier(block: BlockRef, top: OpenCallRef, arc: u64, cfa: u64, now: u64) -> OpenCallRef {
    let mut found = top;
    while area::cfa(found) == cfa && found.arc().load(Ordering::Relaxed) != arc {
        match area::call(found.outer().load(Ordering::Relaxed)) {
            Some(outer) => found = outer,
            None => return top,
        }
    }
    // The first call of a frame is not a tail call, and stays open.
    if area::cfa(found) != cfa || found.flags().load(Ordering::Relaxed) & TAIL == 0 {
        return top;
    }
    while let Some(inner) = area::call(block.times().top().load(Ordering::Relaxed)) {
        let outer = close(block, inner, now, How::Returned(&Values::NONE));
        if inner == found {
            return outer.unwrap_or(top);
        }
    }
    top
}

/// Ends the calls in the frame with this CFA. They ended at `now`, or at the present time if `now` is 0 or the clock is stopped.
/// `integers` and `vectors` are the addresses of the saved registers: see [`Saved`].
pub(crate) extern "C" fn end(cfa: u64, now: u64, integers: u64, vectors: u64) {
    end_with(cfa, now, Saved { integers, vectors }, |_, _| ());
}

/// The same. Does some work when the innermost open call is that of the frame, if it has one.
#[inline(never)]
pub(crate) fn end_with(cfa: u64, now: u64, saved: Saved, work: impl FnOnce(&Agent, BlockRef)) {
    let is_stopped = clock::STOPPED_AT.load(Ordering::Relaxed) != 0;
    let entered = clock::now();
    let read = if now == 0 || is_stopped { entered } else { now };
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = measured(agent)?;
        let times = block.times();
        // The gate may have read the clock before the thread left the processor.
        let noted = switches::note(agent, block, entered);
        // Or a signal handler has made calls since, and their slow paths are in `paused`.
        let is_late =
            noted != entered || clock::without_pauses(times, read) < times.last().load(Ordering::Relaxed);
        let now = clock::without_pauses(times, if is_late { noted } else { read });
        chains::switch_for_end(agent, block, cfa, now)?;
        work(agent, block);
        let mut inner = area::call(times.top().load(Ordering::Relaxed))?;
        // The innermost call of the frame has returned the result; the others in this frame ended in tail calls.
        if inner.flags().load(Ordering::Relaxed) & HAS_RESULT != 0 && area::cfa(inner) == cfa {
            inner = close_with_result(block, inner, now, saved, cfa)?;
        }
        while area::cfa(inner) == cfa {
            inner = close(block, inner, now, How::Returned(&Values::NONE))?;
        }
        chains::allow_current_stack(times);
        Some((agent, block, now))
    });
    if let Some(Some((agent, block, now))) = opened {
        pause(agent, block, now);
    }
}

/// Ends all calls of the calling thread that are open on its current stack.
pub(crate) fn leave_all() {
    leave(u64::MAX);
}

/// Ends the calls whose frames a non-local jump to this stack pointer leaves. `u64::MAX` is above all frames.
pub(crate) fn leave(to: u64) {
    let agent = Agent::get();
    let Some(block) = measured(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        let now = clock::without_pauses(times, switches::note(agent, block, clock::now()));
        chains::leave(agent, block, to, now);
        pause(agent, block, now);
    }
}

/// Does some work of the agent, and excludes its duration from the calling thread's measured time.
pub(crate) fn leave_out<T>(work: impl FnOnce() -> T) -> T {
    let agent = Agent::get();
    if agent.orders.times_bytes == 0 {
        return work();
    }
    let entered = clock::now();
    let is_measured = |block: &BlockRef| block.times().top().load(Ordering::Relaxed) != 0;
    let before = measured(agent).filter(is_measured);
    let since =
        before.map(|block| clock::without_pauses(block.times(), switches::note(agent, block, entered)));
    let result = work();
    if let Some(block) = measured(agent).filter(is_measured) {
        // If the thread was not measured before, the pauses begin with its first measurement.
        pause(agent, block, since.unwrap_or(0));
    }
    result
}

/// Excludes the agent's own work in a new process from the calling thread's measured time: everything since its first measurement.
pub(crate) fn leave_out_beginning() {
    let agent = Agent::get();
    let Some(block) = measured(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    if block.times().top().load(Ordering::Relaxed) != 0 {
        pause(agent, block, 0);
    }
}

/// Restarts the clock, and excludes the time for which it was stopped from the time of every thread. All threads are stopped.
pub(crate) fn go_on() {
    let stood = clock::go_on();
    let agent = Agent::get();
    for block in thread_blocks::all(agent) {
        block.times().paused().fetch_add(stood, Ordering::Relaxed);
        trace::paused_other(agent, block, stood);
    }
}

/// Records that the process is about to execute another program, so that its open calls end now.
pub(crate) fn end_process() {
    set_end(clock::now);
}

/// Records that the execution of another program has failed, so that the open calls continue.
pub(crate) fn execution_failed() {
    set_end(|| 0);
}

fn set_end(end: impl Fn() -> u64) {
    let agent = Agent::get();
    // A child of vfork calls this in its parent's memory; the parent's calls do not end then.
    if agent.orders.times_bytes != 0 && !kernel::is_frozen() && task::getpid() == agent.pid {
        agent.region.clock_at_end().store(end(), Ordering::Relaxed);
    }
}
