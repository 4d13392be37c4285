//! Beginnings and ends of calls that the gates cannot handle alone.

use crate::hot::threads as blocks;
use crate::hot::times::{area, chains, clock, nodes, threads};
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{ArcTimes, BUCKETS, CONTEXT};

/// A call of a function begins, in the frame with this CFA.
pub(crate) extern "C" fn begin(number: u32, cfa: u64) {
    let before = clock::now();
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = blocks::existing(agent)?;
        let times = block.times();
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
    let is_tail = top.cfa().load(Ordering::Relaxed) == cfa;
    let entry = nodes::of_call(agent, block, top, number)?;
    let outer = if is_tail { end_earlier(times, top, entry.arc, cfa, now) } else { top };
    push(agent, block, outer, entry.arc, entry.node, cfa, is_tail)
}

/// Makes an open call below `outer`. Its start is still to be stored.
pub(crate) fn push(
    agent: &Agent,
    block: BlockRef,
    outer: OpenCallRef,
    arc: u64,
    node: u64,
    cfa: u64,
    is_tail: bool,
) -> Option<OpenCallRef> {
    let times = block.times();
    let call = area::take_call(agent, block)?;
    let record = nodes::arc(arc)?;
    let context = match nodes::node(node) {
        Some(node) => node.number().load(Ordering::Relaxed),
        None => record.callee().load(Ordering::Relaxed),
    };
    call.children().store(0, Ordering::Relaxed);
    call.cfa().store(cfa, Ordering::Relaxed);
    call.arc().store(arc, Ordering::Relaxed);
    call.outer().store(outer.address(), Ordering::Relaxed);
    call.node().store(node, Ordering::Relaxed);
    call.context().store(context | CONTEXT, Ordering::Relaxed);
    call.is_tail().store(is_tail.into(), Ordering::Relaxed);
    let begun = times.begun().fetch_add(1, Ordering::Relaxed) + 1;
    call.begun().store(begun, Ordering::Relaxed);
    call.start().store(outer.start().load(Ordering::Relaxed), Ordering::Relaxed);
    record.open().fetch_add(1, Ordering::Relaxed);
    if let Some(function) = nodes::function(record.function().load(Ordering::Relaxed)) {
        function.open().fetch_add(1, Ordering::Relaxed);
    }
    times.top().store(call.address(), Ordering::Relaxed);
    Some(call)
}

/// Functions that call each other by jumps may do so without end, in one frame. If one of its open calls is of this arc
/// already, it ends here, with those that came after it. Returns the call that makes the new one.
fn end_earlier(times: TimesRef, top: OpenCallRef, arc: u64, cfa: u64, now: u64) -> OpenCallRef {
    let mut found = top;
    while found.cfa().load(Ordering::Relaxed) == cfa && found.arc().load(Ordering::Relaxed) != arc {
        match area::call(found.outer().load(Ordering::Relaxed)) {
            Some(outer) => found = outer,
            None => return top,
        }
    }
    // The first call of a frame is no tail call, and stays.
    if found.cfa().load(Ordering::Relaxed) != cfa || found.is_tail().load(Ordering::Relaxed) == 0 {
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

/// The call in the frame with this CFA has ended at `now`, or just now if that is 0.
pub(crate) extern "C" fn end(cfa: u64, now: u64) {
    let now = if now == 0 { clock::now() } else { now };
    let opened = failure::guarded(|| {
        let agent = Agent::get();
        let block = blocks::existing(agent)?;
        let times = block.times();
        let now = now.wrapping_sub(times.paused().load(Ordering::Relaxed));
        chains::settle_for_end(block, cfa, now)?;
        let mut inner = area::call(times.top().load(Ordering::Relaxed))?;
        while inner.cfa().load(Ordering::Relaxed) == cfa {
            inner = close(times, inner, now)?;
        }
        Some(times)
    });
    if let Some(Some(times)) = opened {
        let took = clock::now().wrapping_sub(now);
        times.paused().fetch_add(took, Ordering::Relaxed);
    }
}

/// Ends the innermost open call at `now`, the time without pauses. Returns the one that had made it, which is the innermost
/// one from now on. The gates do the same.
pub(crate) fn close(times: TimesRef, call: OpenCallRef, now: u64) -> Option<OpenCallRef> {
    let load = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
    let outer = area::call(load(call.outer()))?;
    let lasted = now.saturating_sub(load(call.start()));
    let within = load(times.begun()).wrapping_sub(load(call.begun()));
    let own = lasted.wrapping_sub(load(call.children()));
    if let Some(node) = nodes::node(load(call.node())) {
        node.calls().fetch_add(1, Ordering::Relaxed);
        node.own().fetch_add(own, Ordering::Relaxed);
    }
    if let Some(arc) = nodes::arc(load(call.arc())) {
        arc.own().fetch_add(own, Ordering::Relaxed);
        arc.calls().fetch_add(1, Ordering::Relaxed);
        if arc.open().fetch_sub(1, Ordering::Relaxed) == 1 {
            arc.inclusive().fetch_add(lasted, Ordering::Relaxed);
            arc.within().fetch_add(within, Ordering::Relaxed);
            arc.outermost().fetch_add(1, Ordering::Relaxed);
        }
        if let Some(function) = nodes::function(load(arc.function()))
            && function.open().fetch_sub(1, Ordering::Relaxed) == 1
        {
            function.inclusive().fetch_add(lasted, Ordering::Relaxed);
            function.within().fetch_add(within, Ordering::Relaxed);
            function.primitive().fetch_add(1, Ordering::Relaxed);
        }
        let overhead = within.wrapping_mul(load(times.overhead())).saturating_add(load(times.inside()));
        note_duration(arc.address(), lasted.saturating_sub(overhead));
    }
    outer.children().fetch_add(lasted.wrapping_add(load(times.outside())), Ordering::Relaxed);
    times.last().store(now, Ordering::Relaxed);
    times.top().store(outer.address(), Ordering::Relaxed);
    area::give_back(times, call);
    Some(outer)
}

/// Adds a duration to the extremes and the histogram of an arc.
#[allow(unsafe_code, reason = "a bucket is a place in a record")]
fn note_duration(arc: u64, duration: u64) {
    let Some(record) = nodes::arc(arc) else { return };
    record.min().fetch_min(duration, Ordering::Relaxed);
    record.max().fetch_max(duration, Ordering::Relaxed);
    let bucket = (duration | 1).ilog2().min(BUCKETS as u32 - 1);
    let place = arc + core::mem::offset_of!(ArcTimes, histogram) as u64 + 8 * u64::from(bucket);
    // SAFETY: the place is one of the buckets of the record, which stays mapped and is accessed by atomics and the gates.
    let count = unsafe { core::sync::atomic::AtomicU64::from_ptr(place as *mut u64) };
    count.fetch_add(1, Ordering::Relaxed);
}
