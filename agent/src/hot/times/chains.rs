//! The chains of a thread's open calls: one for the thread's own stack, and one for each coroutine's stack.
//!
//! One chain is the current one, on whose stack the thread runs. While a chain is not current, its calls do not run: the time that
//! passes is excluded from their durations, and calls that begin on other stacks are not counted as made within them. Therefore
//! arcs and functions count only the open calls of the current chain.
//!
//! The stack of a new frame is inferred from the CFAs of the open calls: the caller's frame is above the new one, and nearer than
//! frames of other stacks. One stack may lie inside another, if a coroutine's stack is an array in a local variable.

use crate::hot::cells;
use crate::hot::times::open::{How, close, forget_depth};
use crate::hot::times::{area, nodes, trace};
use crate::os::kernel;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::shared::{BlockRef, ChainRef, OpenCallRef, TimesRef};
use gprofinject_abi::times::{CONTEXT, Kind};

/// The number of bytes by which a stack of unknown extent is assumed to continue below its lowest known address and above its
/// highest one.
const GROWTH: u64 = 16 << 10;
/// The maximum distance between consecutive frames on a stack of unknown extent. Coroutines' stacks are often larger than this and
/// adjacent to each other, so a larger distance would confuse them.
const FRAME: u64 = 32 << 10;

/// Returns the chain at an address that a thread block's records contain, or `None` if it is 0.
#[allow(unsafe_code, reason = "records are places in a thread block")]
fn chain(address: u64) -> Option<ChainRef> {
    // SAFETY: addresses in a thread block's records point to other records of that block, which stay mapped and are accessed only
    // by these types and the gates.
    unsafe { ChainRef::at(address) }
}

/// Returns all chains of a thread.
pub(crate) fn all(times: TimesRef) -> impl Iterator<Item = ChainRef> {
    let first = chain(times.chains().load(Ordering::Relaxed));
    core::iter::successors(first, |c| chain(c.next().load(Ordering::Relaxed)))
}

/// Returns the current chain.
pub(crate) fn current(times: TimesRef) -> Option<ChainRef> {
    chain(times.chain().load(Ordering::Relaxed))
}

fn top(times: TimesRef) -> Option<OpenCallRef> {
    area::call(times.top().load(Ordering::Relaxed))
}

/// Returns the extent of the thread's own stack if this address lies in it.
fn own_stack(cfa: u64) -> Option<(u64, u64)> {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    (lo <= cfa && cfa < hi).then_some((lo, hi))
}

/// Returns a chain without open calls for the stack that contains the frame with this CFA. `is_base` is whether the frame is the
/// outermost one of a coroutine's stack.
pub(crate) fn make(agent: &Agent, block: BlockRef, cfa: u64, is_base: bool) -> Option<ChainRef> {
    let times = block.times();
    let own = own_stack(cfa).filter(|_| !is_base);
    let (lo, hi) = own.unwrap_or((cfa.saturating_sub(GROWTH), cfa + 1));
    // Chains without open calls are reused, so the number of chains is bounded by the number of coroutines that exist at the same
    // time.
    let is_unused = |c: &ChainRef| {
        let is_current = c.address() == times.chain().load(Ordering::Relaxed);
        !is_current && c.top().load(Ordering::Relaxed) == c.root().load(Ordering::Relaxed)
    };
    if let Some(unused) = all(times).find(is_unused) {
        area::call(unused.root().load(Ordering::Relaxed))?.cfa().store(hi, Ordering::Relaxed);
        unused.lo().store(lo, Ordering::Relaxed);
        unused.hi().store(hi, Ordering::Relaxed);
        return Some(unused);
    }
    let root_node = match agent.orders.nodes_max {
        0 => 0,
        _ => nodes::make_node(agent, block, None, NO_FUNCTION)?,
    };
    let made = chain(area::take(agent, block, Kind::Chain, 1)?)?;
    let root = area::take_call(agent, block)?;
    let context = nodes::node(root_node).map_or(NO_FUNCTION, |node| node.number().load(Ordering::Relaxed));
    // The root's CFA is above all frames of this stack, so the gates take the slow path for frames on stacks at higher addresses.
    root.cfa().store(hi, Ordering::Relaxed);
    root.arc().store(0, Ordering::Relaxed);
    root.outer().store(0, Ordering::Relaxed);
    root.children().store(0, Ordering::Relaxed);
    root.node().store(root_node, Ordering::Relaxed);
    root.context().store(context | CONTEXT, Ordering::Relaxed);
    made.root().store(root.address(), Ordering::Relaxed);
    made.top().store(root.address(), Ordering::Relaxed);
    made.lo().store(lo, Ordering::Relaxed);
    made.hi().store(hi, Ordering::Relaxed);
    made.next().store(times.chains().load(Ordering::Relaxed), Ordering::Relaxed);
    times.chains().store(made.address(), Ordering::Relaxed);
    Some(made)
}

/// Makes a chain the current one, without changing the times of any calls.
pub(crate) fn enter(times: TimesRef, chain: ChainRef) {
    forget_depth();
    chain.since().store(0, Ordering::Relaxed);
    times.chain().store(chain.address(), Ordering::Relaxed);
    times.stack_lo().store(chain.lo().load(Ordering::Relaxed), Ordering::Relaxed);
    times.top().store(chain.top().load(Ordering::Relaxed), Ordering::Relaxed);
    forget_depth();
}

/// Makes `to` the current chain in place of `from`. The time since the last observed beginning or end of a call is charged to `to`,
/// because the thread may have switched stacks at any time since.
pub(crate) fn change(agent: &Agent, block: BlockRef, from: ChainRef, to: ChainRef, now: u64) {
    let times = block.times();
    let Some(top) = top(times) else { return };
    let last = times.last().load(Ordering::Relaxed).max(top.start().load(Ordering::Relaxed)).min(now);
    let begun = times.begun().load(Ordering::Relaxed);
    for open in open_calls(top.address()) {
        nodes::of_open(open, |count| count.fetch_sub(1, Ordering::Relaxed));
    }
    from.top().store(top.address(), Ordering::Relaxed);
    from.since().store(last, Ordering::Relaxed);
    from.begun().store(begun, Ordering::Relaxed);
    let since = to.since().load(Ordering::Relaxed);
    let stood = if since == 0 { 0 } else { last.saturating_sub(since) };
    let others = begun.wrapping_sub(to.begun().load(Ordering::Relaxed));
    for open in open_calls(to.top().load(Ordering::Relaxed)) {
        open.start().fetch_add(stood, Ordering::Relaxed);
        open.begun().fetch_add(others, Ordering::Relaxed);
        nodes::of_open(open, |count| count.fetch_add(1, Ordering::Relaxed));
    }
    enter(times, to);
    trace::changed(agent, block, to, last);
}

/// Returns the open calls from `innermost` outwards, without the root.
fn open_calls(innermost: u64) -> impl Iterator<Item = OpenCallRef> {
    core::iter::successors(area::call(innermost), |c| area::call(c.outer().load(Ordering::Relaxed)))
        .filter(|c| c.outer().load(Ordering::Relaxed) != 0)
}

/// Returns whether an address lies within the known extent of a chain's stack.
fn is_on(chain: ChainRef, cfa: u64) -> bool {
    let (lo, hi) = (chain.lo().load(Ordering::Relaxed), chain.hi().load(Ordering::Relaxed));
    lo <= cfa && cfa < hi
}

/// Returns the chain of the stack that contains the frame with this CFA, if the stack is known. If the frame is near the innermost
/// frame of the current chain, the known extent of that chain's stack grows.
fn with(times: TimesRef, cfa: u64) -> Option<ChainRef> {
    let current = current(times)?;
    let innermost = |c: ChainRef| {
        let top = if c == current { times.top() } else { c.top() }.load(Ordering::Relaxed);
        area::call(top).map_or(0, area::cfa)
    };
    let above = |c: &ChainRef| is_on(*c, cfa) && innermost(*c) >= cfa;
    if let Some(nearest) = all(times).filter(above).min_by_key(|&c| (innermost(c), c != current)) {
        return Some(nearest);
    }
    // No chain has an innermost frame above this one: a non-local jump that was not observed has left frames.
    if is_on(current, cfa) {
        return Some(current);
    }
    if let Some(found) = all(times).find(|&c| is_on(c, cfa)) {
        return Some(found);
    }
    if own_stack(cfa).is_some() {
        return None;
    }
    let lowest = innermost(current);
    let (least, hi) = (current.lo().load(Ordering::Relaxed), current.hi().load(Ordering::Relaxed));
    // If the innermost frame is a signal handler's on a signal stack, it is not in the chain's extent and shows nothing.
    if (least..=hi).contains(&lowest) && is_below(cfa, lowest) {
        let lo = cfa.saturating_sub(GROWTH);
        current.lo().store(lo, Ordering::Relaxed);
        times.stack_lo().store(lo, Ordering::Relaxed);
        return Some(current);
    }
    if cfa >= hi && cfa - hi < GROWTH {
        current.hi().store(cfa + 1, Ordering::Relaxed);
        let root = area::call(current.root().load(Ordering::Relaxed))?;
        root.cfa().store(cfa + 1, Ordering::Relaxed);
        return Some(current);
    }
    None
}

/// Returns whether, judging by the CFAs alone, the frame with the CFA `lowest` may have called the frame with this CFA.
fn is_below(cfa: u64, lowest: u64) -> bool {
    cfa < lowest && lowest - cfa < FRAME
}

/// Returns the return address of a frame that has just begun from its shadow stack cell, or 0 if there is none.
fn return_address(cfa: u64) -> u64 {
    cells::existing(cfa).map_or(0, |cell| cell.return_address().load(Ordering::Relaxed))
}

/// Returns whether the frame with this CFA is the outermost one of a coroutine's stack: its return address is that of makecontext, or
/// zero, by which the ABI marks outermost frames.
fn is_base(agent: &Agent, cfa: u64) -> bool {
    cells::existing(cfa).is_some() && {
        let address = return_address(cfa);
        address == 0 || agent.is_start_of_context(address)
    }
}

/// Returns whether a frame outside of the known stacks belongs to a signal handler that has interrupted the current chain, or to a
/// function that such a handler has called.
fn is_handler(agent: &Agent, times: TimesRef, cfa: u64) -> bool {
    let handler = top(times).filter(|&top| !is_on_current(times, top));
    agent.is_restorer(return_address(cfa))
        || handler.map(area::cfa).is_some_and(|handler| cfa == handler || is_below(cfa, handler))
        || !kernel::is_frozen() && task::is_on_signal_stack()
}

/// The kind of stack on which a new frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The stack of the current chain.
    Chain,
    /// The alternate signal stack of a handler. The addresses of its frames are unrelated to those of the interrupted stack, so the
    /// order of addresses does not show which frame is the outer one.
    SignalStack,
}

/// Returns whether the frame with this CFA belongs to a signal handler on a signal stack that the kernel does not report as such
/// (`SS_AUTODISARM`, or no system call can be made). Without an open call for the handler, a function that it calls would seem to be
/// on a coroutine's stack.
pub(crate) fn is_undetected_handler(agent: &Agent, cfa: u64) -> bool {
    agent.is_restorer(return_address(cfa)) && (kernel::is_frozen() || !task::is_on_signal_stack())
}

/// Prepares the chains for a call that begins in the frame with this CFA: makes the chain of its stack the current one, and ends the
/// calls that a non-local jump has left. Returns `None` if there is no room for a new chain.
pub(crate) fn switch_for_begin(agent: &Agent, block: BlockRef, cfa: u64, now: u64) -> Option<Place> {
    let times = block.times();
    let from = current(times)?;
    let is_base = is_base(agent, cfa);
    let known = match is_base {
        // A new coroutine may reuse the stack of one that has ended.
        true => all(times).find(|c| c.hi().load(Ordering::Relaxed) == cfa + 1),
        false => with(times, cfa),
    };
    let to = match known {
        Some(to) => to,
        None if is_handler(agent, times, cfa) => return Some(Place::SignalStack),
        None => make(agent, block, cfa, is_base)?,
    };
    if to != from {
        change(agent, block, from, to, now);
    }
    // An open call in this very frame is the caller of a tail call, and stays open; but if the frame is a coroutine's outermost one,
    // the open call is that of an earlier coroutine on the same stack, and ends.
    close_below(block, to, if is_base { cfa + 1 } else { cfa }, now);
    Some(Place::Chain)
}

/// Returns whether the frame of an open call of the current chain is on the chain's own stack rather than on a signal stack.
pub(crate) fn is_on_current(times: TimesRef, call: OpenCallRef) -> bool {
    let is_root = call.outer().load(Ordering::Relaxed) == 0;
    is_root || current(times).is_some_and(|chain| is_on(chain, area::cfa(call)))
}

/// Lets the gates open calls at any address below the innermost frame, because a signal handler runs on a signal stack. The gates
/// cannot distinguish its frames from those of a coroutine, so [`allow_current_stack`] restores the limit when the handler's
/// outermost call ends.
pub(crate) fn allow_any_stack(times: TimesRef) {
    times.stack_lo().store(0, Ordering::Relaxed);
}

/// Restricts the gates to calls on the current chain's stack, unless the innermost open call is on a signal stack.
pub(crate) fn allow_current_stack(times: TimesRef) {
    if let Some(chain) = current(times)
        && top(times).is_some_and(|top| is_on_current(times, top))
    {
        times.stack_lo().store(chain.lo().load(Ordering::Relaxed), Ordering::Relaxed);
        // The thunks may have the lower limit.
        if times.short_below().load(Ordering::Relaxed) != 0 {
            forget_depth();
        }
    }
}

/// Ends the calls of `chain`, which is current, whose frames are below `cfa`, and those of signal handlers on signal stacks.
fn close_below(block: BlockRef, chain: ChainRef, cfa: u64, now: u64) {
    while let Some(inner) = top(block.times()) {
        let at = area::cfa(inner);
        let is_root = inner.outer().load(Ordering::Relaxed) == 0;
        let stays = is_root || at >= cfa && is_on(chain, at);
        if stays || close(block, inner, now, How::Left).is_none() {
            break;
        }
    }
    allow_current_stack(block.times());
}

/// Prepares the chains for the end of the call in the frame with this CFA: makes its chain the current one, and ends the calls inside
/// it. Returns `None` if no open call has this frame.
pub(crate) fn switch_for_end(agent: &Agent, block: BlockRef, cfa: u64, now: u64) -> Option<()> {
    let times = block.times();
    let from = current(times)?;
    let is_in = |chain: ChainRef, start: u64| {
        let open =
            core::iter::successors(area::call(start), |c| area::call(c.outer().load(Ordering::Relaxed)));
        let frames = open.map(area::cfa);
        // The CFAs of outer frames are higher, except for frames of signal handlers on signal stacks.
        let mut frames = frames.take_while(|&at| at <= cfa || !is_on(chain, at) || !is_on(chain, cfa));
        frames.any(|at| at == cfa)
    };
    if !is_in(from, times.top().load(Ordering::Relaxed)) {
        let is_there =
            |chain: &ChainRef| *chain != from && is_in(*chain, chain.top().load(Ordering::Relaxed));
        let to = all(times).filter(|&c| is_on(c, cfa)).find(is_there)?;
        change(agent, block, from, to, now);
    }
    while let Some(inner) = top(times).filter(|inner| area::cfa(*inner) != cfa) {
        if inner.outer().load(Ordering::Relaxed) == 0 {
            allow_current_stack(times);
            return None;
        }
        close(block, inner, now, How::Left)?;
    }
    Some(())
}

/// Ends the calls whose frames a non-local jump to the stack pointer `to` leaves. Does nothing if that stack is not known.
pub(crate) fn leave(agent: &Agent, block: BlockRef, to: u64, now: u64) {
    let times = block.times();
    let Some(from) = current(times) else { return };
    let current = Some(from).filter(|&c| to == u64::MAX || is_on(c, to));
    let Some(chain) = current.or_else(|| all(times).find(|&c| is_on(c, to))) else { return };
    if chain != from {
        change(agent, block, from, chain, now);
    }
    // The CFA of the frame that called setjmp, or that has the landing pad, is above the stack pointer `to`.
    close_below(block, chain, to.saturating_add(1), now);
}
