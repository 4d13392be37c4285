//! Adds open calls at the inner end of the current chain, and removes them from there when they end.

use crate::hot::thread_blocks;
use crate::hot::times::table::Entry;
use crate::hot::times::values::Values;
use crate::hot::times::{area, nodes, short, trace};
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
#[cfg(doc)]
use gprofinject_abi::plan::ThreadWords;
use gprofinject_abi::shared::{ArcTimesRef, BlockRef, OpenCallRef};
#[cfg(doc)]
use gprofinject_abi::times::OpenCall;
use gprofinject_abi::times::{CONTEXT, ENDS_SLOWLY, FunctionTimes, INHERITED, bucket};

/// Opens a call that `outer` makes, with these [`OpenCall::flags`], and returns it. The caller stores the call's start time.
pub(crate) fn push(
    agent: &Agent,
    block: BlockRef,
    outer: OpenCallRef,
    entry: Entry,
    cfa: u64,
    flags: u32,
) -> Option<OpenCallRef> {
    let times = block.times();
    let call = area::take_call(agent, block)?;
    let record = nodes::arc(entry.arc)?;
    let context = match nodes::node(entry.node) {
        Some(node) => node.number().load(Ordering::Relaxed),
        None => record.callee().load(Ordering::Relaxed),
    };
    call.children().store(0, Ordering::Relaxed);
    call.cfa().store(cfa - u64::from(flags & ENDS_SLOWLY != 0), Ordering::Relaxed);
    call.arc().store(entry.arc, Ordering::Relaxed);
    call.outer().store(outer.address(), Ordering::Relaxed);
    call.node().store(entry.node, Ordering::Relaxed);
    call.context().store(context | CONTEXT, Ordering::Relaxed);
    let depth = trace::flags_below(agent, outer.flags().load(Ordering::Relaxed));
    call.flags().store(flags | depth | short::flags(agent, record), Ordering::Relaxed);
    let begun = times.begun().fetch_add(1, Ordering::Relaxed) + 1;
    call.begun().store(begun, Ordering::Relaxed);
    call.start().store(outer.start().load(Ordering::Relaxed), Ordering::Relaxed);
    record.open().fetch_add(1, Ordering::Relaxed);
    if let Some(function) = nodes::function(record.function().load(Ordering::Relaxed)) {
        function.open().fetch_add(1, Ordering::Relaxed);
    }
    times.top().store(call.address(), Ordering::Relaxed);
    if agent.orders.short_below != 0 {
        forget_depth();
    }
    let is_deepest = trace::is_too_deep(agent, call.flags().load(Ordering::Relaxed));
    // The words may be those of other threads as well, whose calls are not within this one.
    if is_deepest && !thread_blocks::are_words_shared() {
        let words = words::get();
        words.deep_from().store(times.stack_lo().load(Ordering::Relaxed), Ordering::Relaxed);
        words.deep().store(cfa - 8, Ordering::Relaxed);
    }
    Some(call)
}

/// How a call ends.
#[derive(Clone, Copy)]
pub(crate) enum How<'v> {
    /// The call returns. The values are its result if results of the function are traced, and empty otherwise.
    Returned(&'v Values),
    /// A non-local jump, an exception or the end of the thread leaves the call.
    Left,
}

/// Ends `call`, the innermost open call, at `now`, the time without pauses. Returns its caller, which is then the innermost open call.
/// The gates do the same in machine code.
pub(crate) fn close(block: BlockRef, call: OpenCallRef, now: u64, how: How<'_>) -> Option<OpenCallRef> {
    let times = block.times();
    let result = match how {
        How::Returned(result) => Some(result),
        How::Left => None,
    };
    trace::ended(Agent::get(), block, call, now, result);
    let load = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
    let outer = area::call(load(call.outer()))?;
    let lasted = now.saturating_sub(load(call.start()));
    let within = load(times.begun()).wrapping_sub(load(call.begun()));
    let own = lasted.wrapping_sub(load(call.children()));
    if let Some(node) = nodes::node(load(call.node())) {
        node.own().fetch_add(own, Ordering::Relaxed);
    }
    // An inherited call takes time in this process, but only the parent process counts it.
    let is_own = call.flags().load(Ordering::Relaxed) & INHERITED == 0;
    if let Some(arc) = nodes::arc(load(call.arc())) {
        let function = nodes::function(load(arc.function()));
        arc.own().fetch_add(own, Ordering::Relaxed);
        let is_outermost = arc.open().fetch_sub(1, Ordering::Relaxed) == 1;
        let is_nested = function.is_some_and(|function| function.open().fetch_sub(1, Ordering::Relaxed) != 1);
        if is_outermost {
            arc.inclusive().fetch_add(lasted, Ordering::Relaxed);
            arc.within().fetch_add(within, Ordering::Relaxed);
        } else if is_own {
            arc.nested().fetch_add(1, Ordering::Relaxed);
        }
        if let Some(function) = function.filter(|_| is_nested && is_outermost) {
            function.nested_inclusive().fetch_add(lasted, Ordering::Relaxed);
            function.nested_within().fetch_add(within, Ordering::Relaxed);
            if is_own {
                function.nested().fetch_add(1, Ordering::Relaxed);
            }
        }
        if is_own {
            // The two counts change in close succession, because a thread may be cancelled at any instruction.
            arc.calls().fetch_add(1, Ordering::Relaxed);
            if let Some(node) = nodes::node(load(call.node())) {
                node.calls().fetch_add(1, Ordering::Relaxed);
            }
            let overhead = within.wrapping_mul(load(times.overhead())).saturating_add(load(times.inside()));
            note_duration(arc, lasted.saturating_sub(overhead));
            if short::is_due(arc) {
                short::decide(times, arc, call);
            }
        }
    }
    outer.children().fetch_add(lasted.wrapping_add(load(times.outside())), Ordering::Relaxed);
    times.last().store(now, Ordering::Relaxed);
    forget_depth();
    times.top().store(outer.address(), Ordering::Relaxed);
    area::give_back(times, call);
    Some(outer)
}

/// Resets [`ThreadWords::deep`], because another call is about to become the innermost one, or has become it, or the extent of its stack
/// has changed. Until a gate sets the word again, thunks call the gates for every call. In a trace only the beginning of a call at the
/// maximum depth sets it: a signal handler that runs just before the call is removed must not do so. Where short calls are only counted,
/// the gates set it with each beginning and end, so it is reset after the change as well; that of a call further in does no harm.
pub(crate) fn forget_depth() {
    words::get().deep().store(0, Ordering::Relaxed);
}

/// Adds a duration to the minimum and maximum of an arc and to the histogram of its function.
#[allow(unsafe_code, reason = "a bucket is a place in a record")]
fn note_duration(arc: ArcTimesRef, duration: u64) {
    arc.min().fetch_min(duration, Ordering::Relaxed);
    arc.max().fetch_max(duration, Ordering::Relaxed);
    let Some(function) = nodes::function(arc.function().load(Ordering::Relaxed)) else { return };
    let before = function.pending().swap(duration | 1, Ordering::Relaxed);
    let place = function.address()
        + core::mem::offset_of!(FunctionTimes, histogram) as u64
        + 8 * bucket(before) as u64;
    // SAFETY: the address is that of a bucket of the record, which stays mapped and is accessed only by atomics and the gates.
    let count = unsafe { core::sync::atomic::AtomicU64::from_ptr(place as *mut u64) };
    count.fetch_add(1, Ordering::Relaxed);
}
