//! Beginnings and ends of calls that the gates cannot handle alone.

use crate::hot::thread_blocks;
use crate::hot::times::open::{close, push};
use crate::hot::times::{area, chains, clock, nodes, threads};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{ENDS_SLOWLY, TAIL};

/// A call of a function begins, in the frame with this CFA.
pub(crate) extern "C" fn begin(number: u32, cfa: u64) {
    let before = clock::now();
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        let times = block.times();
        if clock::is_forbidden() {
            times.unmeasured().fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let now = before.wrapping_sub(times.paused().load(Ordering::Relaxed));
        threads::prepare(agent, block, cfa, now)?;
        let opened = open(agent, block, number, cfa, now);
        if opened.is_none() {
            times.unmeasured().fetch_add(1, Ordering::Relaxed);
        }
        Some((times, opened?))
    });
    if let Some(Some((times, call))) = opened {
        let now = clock::now();
        let paused = times.paused().fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        // This is the time at which the slow path began, which the subtraction makes the present one.
        call.start().store(before.wrapping_sub(paused), Ordering::Relaxed);
    }
}

/// Makes an open call the innermost one, and returns it. `now` is the time without pauses.
fn open(agent: &Agent, block: BlockRef, number: u32, cfa: u64, now: u64) -> Option<OpenCallRef> {
    let times = block.times();
    chains::settle(agent, block, cfa, now)?;
    let top = area::call(times.top().load(Ordering::Relaxed))?;
    // A jump from one hooked function to another one: the first one's frame is the second one's, too.
    let is_tail = area::cfa(top) == cfa;
    let entry = nodes::of_call(agent, block, top, number)?;
    let outer = if is_tail { end_earlier(times, top, entry.arc, cfa, now) } else { top };
    let ends_slowly = outer.flags().load(Ordering::Relaxed) & ENDS_SLOWLY;
    let flags = if is_tail { TAIL | ends_slowly } else { 0 };
    push(agent, block, outer, entry, cfa, flags)
}

/// Functions that call each other by jumps may do so without end, in one frame. If one of its open calls is of this arc
/// already, it ends here, with those that came after it. Returns the call that makes the new one.
fn end_earlier(times: TimesRef, top: OpenCallRef, arc: u64, cfa: u64, now: u64) -> OpenCallRef {
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
    while let Some(inner) = area::call(times.top().load(Ordering::Relaxed)) {
        let outer = close(times, inner, now);
        if inner == found {
            return outer.unwrap_or(top);
        }
    }
    top
}

/// The call in the frame with this CFA has ended at `now`, or just now if that is 0 or the clock is stopped.
pub(crate) extern "C" fn end(cfa: u64, now: u64) {
    let is_stopped = clock::STOPPED_AT.load(Ordering::Relaxed) != 0;
    let now = if now == 0 || is_stopped { clock::now() } else { now };
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = thread_blocks::current(agent)?;
        let times = block.times();
        let now = now.wrapping_sub(times.paused().load(Ordering::Relaxed));
        chains::settle_for_end(block, cfa, now)?;
        let mut inner = area::call(times.top().load(Ordering::Relaxed))?;
        while area::cfa(inner) == cfa {
            inner = close(times, inner, now)?;
        }
        Some(times)
    });
    if let Some(Some(times)) = opened {
        let took = clock::now().wrapping_sub(now);
        times.paused().fetch_add(took, Ordering::Relaxed);
    }
}

/// Ends all calls of the calling thread that are open on its current stack.
pub(crate) fn leave_all() {
    leave(u64::MAX);
}

/// A jump leads to this stack pointer: ends the calls whose frames it leaves. `u64::MAX` is above all frames.
pub(crate) fn leave(to: u64) {
    let agent = Agent::get();
    let Some(block) = thread_blocks::current(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        let now = clock::now();
        chains::leave(block, to, now.wrapping_sub(times.paused().load(Ordering::Relaxed)));
        times.paused().fetch_add(clock::now().wrapping_sub(now), Ordering::Relaxed);
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
    let Some(block) = thread_blocks::current(agent).filter(|_| agent.orders.times_bytes != 0) else { return };
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        let paused = times.paused().load(Ordering::Relaxed);
        let since = before.max(times.first().load(Ordering::Relaxed).wrapping_add(paused));
        times.paused().fetch_add(clock::now().saturating_sub(since), Ordering::Relaxed);
    }
}

/// Lets the clock of all threads run again, without the time for which it stood still. All threads are stopped.
pub(crate) fn go_on() {
    let stood = clock::go_on();
    for block in thread_blocks::all(Agent::get()) {
        block.times().paused().fetch_add(stood, Ordering::Relaxed);
    }
}

/// The process is about to execute another program: its open calls end now. If the execution fails, later calls show that.
pub(crate) fn end_process() {
    let agent = Agent::get();
    // A child of vfork executes a program in its parent's memory.
    if agent.orders.times_bytes != 0 && !kernel::is_frozen() && task::getpid() == agent.pid {
        agent.region.clock_at_end().store(clock::now(), Ordering::Relaxed);
    }
}
