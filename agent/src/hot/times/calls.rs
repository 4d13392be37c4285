//! Beginnings and ends of calls that the gates cannot handle alone.

use crate::hot::thread_blocks;
use crate::hot::times::chains::Place;
use crate::hot::times::open::{How, close, push};
use crate::hot::times::values::{Saved, Values};
use crate::hot::times::{area, chains, clock, forks, nodes, threads, trace};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, OpenCallRef};
use gprofinject_abi::times::{ENDS_SLOWLY, HAS_RESULT, TAIL};

/// Returns the calling thread's block, unless it is that of the process that the thread has come from by a fork.
fn measured(agent: &Agent) -> Option<BlockRef> {
    if forks::is_new_child(agent) { None } else { thread_blocks::current(agent) }
}

/// A call of a function begins, in the frame with this CFA. `integers` and `vectors` are the addresses of its registers: see
/// [`Saved`].
pub(crate) extern "C" fn begin(number: u32, cfa: u64, integers: u64, vectors: u64) {
    let before = clock::now();
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        let times = block.times();
        if clock::is_forbidden() || forks::is_new_child(agent) {
            times.unmeasured().fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let now = before.wrapping_sub(times.paused().load(Ordering::Relaxed));
        threads::prepare(agent, block, cfa, now)?;
        let opened = open(agent, block, number, cfa, now);
        match opened {
            Opened::Call(call) => Some((agent, block, call)),
            Opened::TooDeep => None,
            Opened::NoRoom => {
                times.unmeasured().fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    });
    if let Some(Some((agent, block, call))) = opened {
        let times = block.times();
        // This is the time at which the slow path began, which the addition to the pauses below makes the present one.
        let paused = times.paused().load(Ordering::Relaxed);
        call.start().store(before.wrapping_sub(paused), Ordering::Relaxed);
        failure::guarded(|| {
            if agent.orders.trace_args == 0 {
                trace::begun(agent, block, call, &Values::NONE);
            } else {
                begun_with_arguments(agent, block, call, number, Saved { integers, vectors }, cfa);
            }
        });
        let took = clock::now().wrapping_sub(before);
        times.paused().fetch_add(took, Ordering::Relaxed);
        failure::guarded(|| trace::paused(agent, block, took));
    }
}

/// A call of a function begins, in the frame with this CFA, whose end is not seen. `event` is the number of the event that the
/// gate has taken for it and for which it has found no room, or -1.
pub(crate) extern "C" fn mark(number: u32, cfa: u64, event: u64) {
    let before = clock::now();
    let marked = failure::guarded(|| {
        let agent = Agent::get();
        let block = measured(agent)?;
        let times = block.times();
        if event != u64::MAX {
            trace::marked_at(agent, block, number, before, event);
            return Some((agent, block));
        }
        if clock::is_forbidden() || clock::STOPPED_AT.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let now = before.wrapping_sub(times.paused().load(Ordering::Relaxed));
        threads::prepare(agent, block, cfa, now)?;
        let top = area::call(times.top().load(Ordering::Relaxed))?;
        if !trace::is_too_deep(agent, top.flags().load(Ordering::Relaxed)) {
            trace::marked(agent, block, number, before);
        }
        Some((agent, block))
    });
    if let Some(Some((agent, block))) = marked {
        let took = clock::now().wrapping_sub(before);
        block.times().paused().fetch_add(took, Ordering::Relaxed);
        failure::guarded(|| trace::paused(agent, block, took));
    }
}

/// A call has begun, whose arguments are traced. Where none are, no memory is filled for them: that takes code that unwinders do not
/// know.
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

/// The innermost open call ends, whose result is traced.
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

/// What has become of the beginning of a call.
enum Opened {
    Call(OpenCallRef),
    /// More calls are open on the stack than are traced.
    TooDeep,
    /// The area is full, or memory is short.
    NoRoom,
}

/// Makes an open call the innermost one. `now` is the time without pauses.
fn open(agent: &Agent, block: BlockRef, number: u32, cfa: u64, now: u64) -> Opened {
    let times = block.times();
    let Some(place) = chains::settle(agent, block, cfa, now) else { return Opened::NoRoom };
    let Some(top) = area::call(times.top().load(Ordering::Relaxed)) else { return Opened::NoRoom };
    if trace::is_too_deep(agent, top.flags().load(Ordering::Relaxed)) {
        if place == Place::SignalStack && chains::is_untold_handler(agent, cfa) {
            chains::see_signal_stack(times);
        }
        return Opened::TooDeep;
    }
    // The outermost call on a signal stack ends slowly: the gates have to know then that the thread leaves that stack.
    let flags = match place {
        Place::SignalStack => {
            let is_outermost = chains::is_on_current(times, top);
            chains::see_signal_stack(times);
            if is_outermost { ENDS_SLOWLY } else { 0 }
        }
        Place::Chain => 0,
    };
    open_below(agent, block, top, number, cfa, flags, now).map_or_else(
        || {
            chains::see_stack(times);
            Opened::NoRoom
        },
        Opened::Call,
    )
}

/// Makes an open call the innermost one, which `top` was until now, and returns it. `flags` are those of a call that is no tail
/// call.
fn open_below(
    agent: &Agent,
    block: BlockRef,
    top: OpenCallRef,
    number: u32,
    cfa: u64,
    flags: u32,
    now: u64,
) -> Option<OpenCallRef> {
    // A jump from one hooked function to another one: the first one's frame is the second one's, too.
    let is_tail = area::cfa(top) == cfa;
    let entry = nodes::of_call(agent, block, top, number)?;
    let outer = if is_tail { end_earlier(block, top, entry.arc, cfa, now) } else { top };
    let ends_slowly = outer.flags().load(Ordering::Relaxed) & ENDS_SLOWLY;
    let flags = if is_tail { TAIL | ends_slowly } else { flags };
    push(agent, block, outer, entry, cfa, flags)
}

/// Functions that call each other by jumps may do so without end, in one frame. If one of its open calls is of this arc
/// already, it ends here, with those that came after it. Returns the call that makes the new one.
fn end_earlier(block: BlockRef, top: OpenCallRef, arc: u64, cfa: u64, now: u64) -> OpenCallRef {
    let mut found = top;
    while area::cfa(found) == cfa && found.arc().load(Ordering::Relaxed) != arc {
        match area::call(found.outer().load(Ordering::Relaxed)) {
            Some(outer) => found = outer,
            None => return top,
        }
    }
    // The first call of a frame is no tail call, and stays.
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

/// The call in the frame with this CFA has ended at `now`, or just now if that is 0 or the clock is stopped. `integers` and
/// `vectors` are the addresses of its registers: see [`Saved`].
pub(crate) extern "C" fn end(cfa: u64, now: u64, integers: u64, vectors: u64) {
    let is_stopped = clock::STOPPED_AT.load(Ordering::Relaxed) != 0;
    let now = if now == 0 || is_stopped { clock::now() } else { now };
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = measured(agent)?;
        let times = block.times();
        let now = now.wrapping_sub(times.paused().load(Ordering::Relaxed));
        chains::settle_for_end(agent, block, cfa, now)?;
        let mut inner = area::call(times.top().load(Ordering::Relaxed))?;
        // The innermost one has returned the result, and the others have jumped to it.
        if inner.flags().load(Ordering::Relaxed) & HAS_RESULT != 0 && area::cfa(inner) == cfa {
            inner = close_with_result(block, inner, now, Saved { integers, vectors }, cfa)?;
        }
        while area::cfa(inner) == cfa {
            inner = close(block, inner, now, How::Returned(&Values::NONE))?;
        }
        chains::see_stack(times);
        Some((agent, block))
    });
    if let Some(Some((agent, block))) = opened {
        let took = clock::now().wrapping_sub(now);
        block.times().paused().fetch_add(took, Ordering::Relaxed);
        failure::guarded(|| trace::paused(agent, block, took));
    }
}

/// Ends all calls of the calling thread that are open on its current stack.
pub(crate) fn leave_all() {
    leave(u64::MAX);
}

/// A jump leads to this stack pointer: ends the calls whose frames it leaves. `u64::MAX` is above all frames.
pub(crate) fn leave(to: u64) {
    let agent = Agent::get();
    let Some(block) = measured(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        let now = clock::now();
        chains::leave(agent, block, to, now.wrapping_sub(times.paused().load(Ordering::Relaxed)));
        let took = clock::now().wrapping_sub(now);
        times.paused().fetch_add(took, Ordering::Relaxed);
        trace::paused(agent, block, took);
    }
}

/// Does some of the agent's work, which takes no time by the measured thread's clock.
pub(crate) fn leave_out<T>(work: impl FnOnce() -> T) -> T {
    if Agent::get().orders.times_bytes == 0 {
        return work();
    }
    let before = clock::now();
    let result = work();
    leave_out_since(before);
    result
}

/// Leaves out what has passed since a time by the clock, or since the thread began to be measured if that was later, because
/// it was the agent's.
pub(crate) fn leave_out_since(before: u64) {
    let agent = Agent::get();
    let Some(block) = measured(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        let paused = times.paused().load(Ordering::Relaxed);
        let since = before.max(times.first().load(Ordering::Relaxed).wrapping_add(paused));
        let took = clock::now().saturating_sub(since);
        times.paused().fetch_add(took, Ordering::Relaxed);
        trace::paused(agent, block, took);
    }
}

/// Lets the clock of all threads run again, without the time for which it stood still. All threads are stopped.
pub(crate) fn go_on() {
    let stood = clock::go_on();
    let agent = Agent::get();
    for block in thread_blocks::all(agent) {
        block.times().paused().fetch_add(stood, Ordering::Relaxed);
        trace::paused_other(agent, block, stood);
    }
}

/// The process is about to execute another program: its open calls end now.
pub(crate) fn end_process() {
    set_end(clock::now);
}

/// The execution of another program has failed, so the open calls of the process go on.
pub(crate) fn execution_failed() {
    set_end(|| 0);
}

fn set_end(end: impl Fn() -> u64) {
    let agent = Agent::get();
    // A child of vfork executes a program in its parent's memory.
    if agent.orders.times_bytes != 0 && !kernel::is_frozen() && task::getpid() == agent.pid {
        agent.region.clock_at_end().store(end(), Ordering::Relaxed);
    }
}
