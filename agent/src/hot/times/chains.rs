//! The stacks on which a thread has open calls: its own, and those of coroutines. The open calls of each form a chain, one of
//! which is the current one. While a chain is not the current one, its calls do not run, and that time is not theirs. Nor is a
//! call within them that another chain makes meanwhile, so only those of the current one are counted as open.
//!
//! Which stack a frame is on follows from where the known frames are: the one that has called it is above it, and nearer than
//! those of other stacks. A stack may lie within another one, if a coroutine runs on an array of local variables.

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

/// Bytes by which a stack whose extent is not known is taken to continue below its lowest known address, and above its
/// highest one.
const GROWTH: u64 = 16 << 10;
/// The largest distance between two frames of a stack whose extent is not known. Stacks of coroutines are often larger, and
/// next to each other.
const FRAME: u64 = 32 << 10;

/// Returns the chain at an address that a thread block's records contain, or `None` if it is 0.
#[allow(unsafe_code, reason = "records are places in a thread block")]
fn chain(address: u64) -> Option<ChainRef> {
    // SAFETY: the addresses in a thread block's records are those of other records in it, which stay mapped and are accessed
    // only by these types and the gates.
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

/// Returns the extent of the thread's own stack if it contains an address.
fn own_stack(cfa: u64) -> Option<(u64, u64)> {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    (lo <= cfa && cfa < hi).then_some((lo, hi))
}

/// Makes a chain for the stack with a frame of this CFA, without open calls, and returns it. `is_base`: the frame is the
/// outermost one of its stack.
pub(crate) fn make(agent: &Agent, block: BlockRef, cfa: u64, is_base: bool) -> Option<ChainRef> {
    let times = block.times();
    let own = own_stack(cfa).filter(|_| !is_base);
    let (lo, hi) = own.unwrap_or((cfa.saturating_sub(GROWTH), cfa + 1));
    // One without open calls says nothing that is still needed, so a program with many coroutines, one after the other, needs
    // no more chains than there are at the same time.
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
    // No frame of this stack has a CFA so high, so the gates leave entries on other stacks above it to the slow path.
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

/// Makes a chain the current one when there is none.
pub(crate) fn enter(times: TimesRef, chain: ChainRef) {
    forget_depth();
    chain.since().store(0, Ordering::Relaxed);
    times.chain().store(chain.address(), Ordering::Relaxed);
    times.stack_lo().store(chain.lo().load(Ordering::Relaxed), Ordering::Relaxed);
    times.top().store(chain.top().load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Makes another chain the current one. What was not observed since the thread's last event belongs to the new one.
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

/// Returns the open calls from this one outwards, without the root.
fn open_calls(innermost: u64) -> impl Iterator<Item = OpenCallRef> {
    core::iter::successors(area::call(innermost), |c| area::call(c.outer().load(Ordering::Relaxed)))
        .filter(|c| c.outer().load(Ordering::Relaxed) != 0)
}

/// Returns whether an address is on the stack of a chain, as far as is known.
fn is_on(chain: ChainRef, cfa: u64) -> bool {
    let (lo, hi) = (chain.lo().load(Ordering::Relaxed), chain.hi().load(Ordering::Relaxed));
    lo <= cfa && cfa < hi
}

/// Returns the chain of the stack with a frame of this CFA, if there is one. The extent of the current one grows if the frame
/// is near its innermost one.
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
    // A jump that was not seen has left frames.
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
    // The innermost frame may be that of a handler, on a signal stack.
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

/// Returns whether the frame with this CFA may have been called by the one with the CFA `lowest`, if nothing is known but these.
fn is_below(cfa: u64, lowest: u64) -> bool {
    cfa < lowest && lowest - cfa < FRAME
}

/// Returns the return address of the frame with this CFA, which has just begun, or 0.
fn return_address(cfa: u64) -> u64 {
    cells::existing(cfa).map_or(0, |cell| cell.return_address().load(Ordering::Relaxed))
}

/// Returns whether the frame with this CFA is the outermost one of a coroutine's stack: its return address is that of
/// makecontext, or null, as the ABI has it for outermost frames.
fn is_base(agent: &Agent, cfa: u64) -> bool {
    cells::existing(cfa).is_some() && {
        let address = return_address(cfa);
        address == 0 || agent.is_start_of_context(address)
    }
}

/// Returns whether a frame on another stack is that of a signal handler which has interrupted the current one, or of a
/// function that the handler has called.
fn is_handler(agent: &Agent, times: TimesRef, cfa: u64) -> bool {
    let handler = top(times).filter(|&top| !is_on_current(times, top));
    agent.is_restorer(return_address(cfa))
        || handler.map(area::cfa).is_some_and(|handler| cfa == handler || is_below(cfa, handler))
        || !kernel::is_frozen() && task::is_on_signal_stack()
}

/// What a frame that begins is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The stack of the current chain.
    Chain,
    /// A stack that the kernel has changed to for a signal handler: its frames are below no other one, so nothing can be said of
    /// their order.
    SignalStack,
}

/// Returns whether the frame with this CFA is that of a signal handler which the kernel does not tell to be on a signal stack
/// (`SS_AUTODISARM`). Nothing but an open call of it shows then that a function that it calls is on no stack of a coroutine.
pub(crate) fn is_untold_handler(agent: &Agent, cfa: u64) -> bool {
    agent.is_restorer(return_address(cfa)) && (kernel::is_frozen() || !task::is_on_signal_stack())
}

/// Makes the chain of the stack with a frame of this CFA, which begins, the current one, and ends the calls that a jump has
/// left. `None` means that there is no room.
pub(crate) fn settle(agent: &Agent, block: BlockRef, cfa: u64, now: u64) -> Option<Place> {
    let times = block.times();
    let from = current(times)?;
    let is_base = is_base(agent, cfa);
    let known = match is_base {
        // The stack of a coroutine that has ended may be that of a new one.
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
    // The call that began in the same frame, if this is the first one of its stack, was not left by a tail call.
    close_below(block, to, if is_base { cfa + 1 } else { cfa }, now);
    Some(Place::Chain)
}

/// Returns whether an open call of the current chain is on the chain's stack, and not on a signal stack.
pub(crate) fn is_on_current(times: TimesRef, call: OpenCallRef) -> bool {
    let is_root = call.outer().load(Ordering::Relaxed) == 0;
    is_root || current(times).is_some_and(|chain| is_on(chain, area::cfa(call)))
}

/// Lets the gates open calls anywhere below the innermost one, whose frame is on a signal stack or about to be there. They cannot
/// tell such a frame from one of a coroutine, so this ends with the handler's outermost call: [`see_stack`].
pub(crate) fn see_signal_stack(times: TimesRef) {
    times.stack_lo().store(0, Ordering::Relaxed);
}

/// Lets the gates open calls on the current chain's stack only, unless the innermost one is that of a handler on a signal stack.
pub(crate) fn see_stack(times: TimesRef) {
    if let Some(chain) = current(times)
        && top(times).is_some_and(|top| is_on_current(times, top))
    {
        times.stack_lo().store(chain.lo().load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Ends the calls of the current chain whose frames are below an address of its stack. So are those of signal handlers on
/// stacks of their own.
fn close_below(block: BlockRef, chain: ChainRef, cfa: u64, now: u64) {
    while let Some(inner) = top(block.times()) {
        let at = area::cfa(inner);
        let is_root = inner.outer().load(Ordering::Relaxed) == 0;
        let stays = is_root || at >= cfa && is_on(chain, at);
        if stays || close(block, inner, now, How::Left).is_none() {
            break;
        }
    }
    see_stack(block.times());
}

/// Makes the call in the frame with this CFA, which ends, the innermost one. `None` means that no call has been measured there.
pub(crate) fn settle_for_end(agent: &Agent, block: BlockRef, cfa: u64, now: u64) -> Option<()> {
    let times = block.times();
    let from = current(times)?;
    let is_in = |chain: ChainRef, start: u64| {
        let open =
            core::iter::successors(area::call(start), |c| area::call(c.outer().load(Ordering::Relaxed)));
        let frames = open.map(area::cfa);
        // The frames of a stack are in order, except for those of signal handlers on stacks of their own.
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
            see_stack(times);
            return None;
        }
        close(block, inner, now, How::Left)?;
    }
    Some(())
}

/// A jump leads to this stack pointer: ends the calls whose frames it leaves, if it leads to a stack that is known.
pub(crate) fn leave(agent: &Agent, block: BlockRef, to: u64, now: u64) {
    let times = block.times();
    let Some(from) = current(times) else { return };
    let current = Some(from).filter(|&c| to == u64::MAX || is_on(c, to));
    let Some(chain) = current.or_else(|| all(times).find(|&c| is_on(c, to))) else { return };
    if chain != from {
        change(agent, block, from, chain, now);
    }
    // The frame that calls setjmp, or that has the landing pad, is above its stack pointer.
    close_below(block, chain, to.saturating_add(1), now);
}
