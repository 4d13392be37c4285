//! The beginning and the end of a thread's measurements.

use crate::hot::thread_blocks;
use crate::hot::times::values::Values;
use crate::hot::times::{area, chains, clock, nodes, open, table, trace};
use crate::os::memory;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::{BlockRef, TimesRef};
use gprofinject_abi::times::{ENDS_SLOWLY, INHERITED, TAIL};

/// Begins to measure the calling thread's calls, of which the first one's frame has this CFA, unless that has been done.
/// `now` is the time without pauses. `None` means that there is no room.
pub(crate) fn prepare(agent: &Agent, block: BlockRef, cfa: u64, now: u64) -> Option<()> {
    let times = block.times();
    if times.top().load(Ordering::Relaxed) != 0 {
        return Some(());
    }
    if agent.orders.times_bytes == 0 || !thread_blocks::touch_recent(block) || !table::prepare(times) {
        return None;
    }
    let whole = |part_256: u64| part_256.saturating_add(128) >> 8;
    let inside = whole(agent.region.inside_256().load(Ordering::Relaxed));
    let outside = whole(agent.region.outside_256().load(Ordering::Relaxed));
    times.inside().store(inside, Ordering::Relaxed);
    times.outside().store(outside, Ordering::Relaxed);
    times.overhead().store(inside + outside, Ordering::Relaxed);
    times.base().store(block.address(), Ordering::Relaxed);
    times.first().store(now, Ordering::Relaxed);
    times.last().store(now, Ordering::Relaxed);
    let chain = chains::make(agent, block, cfa, false)?;
    chains::enter(times, chain);
    trace::thread(agent, block, chain, now);
    Some(())
}

/// A thread block gets another owner: ends the calls of the last one, which has ended, when its last call did.
pub(crate) fn end(agent: &Agent, block: BlockRef) {
    let times = block.times();
    if times.top().load(Ordering::Relaxed) == 0 {
        return;
    }
    let last = times.last().load(Ordering::Relaxed);
    for chain in chains::all(times) {
        // Its calls ended when it ceased to run.
        if let Some(from) = chains::current(times).filter(|&from| from != chain) {
            chains::change(agent, block, from, chain, last);
        }
        while let Some(inner) = area::call(times.top().load(Ordering::Relaxed)) {
            if inner.outer().load(Ordering::Relaxed) == 0
                || open::close(block, inner, last, open::How::Left).is_none()
            {
                break;
            }
        }
    }
    times.last().store(last, Ordering::Relaxed);
    let life = last.saturating_sub(times.first().load(Ordering::Relaxed));
    times.earlier().fetch_add(life, Ordering::Relaxed);
    times.chains().store(0, Ordering::Relaxed);
    times.chain().store(0, Ordering::Relaxed);
    times.top().store(0, Ordering::Relaxed);
}

/// The open calls of a thread at a fork, from the outermost one inwards.
pub(crate) struct Inherited {
    /// Pairs of a CFA and a function's number, in a mapping of their own; bit 32 of the number is set for a tail call.
    list: u64,
    count: u64,
}

impl Inherited {
    /// Returns what [`from_parts`](Inherited::from_parts) takes.
    pub(super) fn into_parts(self) -> (u64, u64) {
        let parts = (self.list, self.count);
        core::mem::forget(self);
        parts
    }

    /// Returns the calls of which `into_parts` has returned the parts.
    ///
    /// # Safety
    /// The parts are used once.
    #[allow(unsafe_code, reason = "the list is in memory of its own")]
    pub(super) unsafe fn from_parts(list: u64, count: u64) -> Inherited {
        Inherited { list, count }
    }
}

impl Drop for Inherited {
    #[allow(unsafe_code, reason = "the list is in memory of its own")]
    fn drop(&mut self) {
        // SAFETY: the mapping is the list's alone.
        let _ = unsafe { memory::munmap(self.list, len_of(self.count)) };
    }
}

const PAIR: u64 = 16;
const IS_TAIL: u64 = 1 << 32;

/// Returns the open calls of the current chain, so that a child can begin with them. `None` means that there are none, or
/// that there is no memory.
#[allow(unsafe_code, reason = "the list is in memory of its own")]
pub(crate) fn inherit(block: BlockRef) -> Option<Inherited> {
    let times = block.times();
    let all = || {
        let top = area::call(times.top().load(Ordering::Relaxed));
        core::iter::successors(top, |c| area::call(c.outer().load(Ordering::Relaxed)))
            .filter(|c| c.outer().load(Ordering::Relaxed) != 0)
    };
    let count = all().count() as u64;
    if count == 0 {
        return None;
    }
    let list = memory::map_zeros(len_of(count), memory::PROT_READ | memory::PROT_WRITE).ok()?;
    for (call, n) in all().zip((0..count).rev()) {
        let number = nodes::arc(call.arc().load(Ordering::Relaxed))
            .map_or(0, |arc| arc.callee().load(Ordering::Relaxed));
        let tail = if call.flags().load(Ordering::Relaxed) & TAIL != 0 { IS_TAIL } else { 0 };
        let pair = (list + n * PAIR) as *mut [u64; 2];
        // SAFETY: the mapping has room for `count` pairs, and no other code knows of it.
        unsafe { pair.write([area::cfa(call), u64::from(number) | tail]) };
    }
    Some(Inherited { list, count })
}

fn len_of(count: u64) -> u64 {
    (count * PAIR).next_multiple_of(4096)
}

/// In a forked child whose thread block is empty again: begins with the open calls that were made before the fork. They are
/// the parent's calls.
#[allow(unsafe_code, reason = "the list is in memory of its own")]
pub(crate) fn begin_child(child: &Agent, block: BlockRef, inherited: Option<Inherited>) {
    let Some(inherited) = inherited else { return };
    let (list, count) = (inherited.list, inherited.count);
    let times = block.times();
    for n in 0..count {
        // SAFETY: `inherit` has written `count` pairs there.
        let [cfa, number] = unsafe { ((list + n * PAIR) as *const [u64; 2]).read() };
        if reopen(child, block, times, cfa, number as u32, number & IS_TAIL != 0).is_none() {
            break;
        }
    }
}

fn reopen(
    child: &Agent,
    block: BlockRef,
    times: TimesRef,
    cfa: u64,
    number: u32,
    is_tail: bool,
) -> Option<()> {
    prepare(child, block, cfa, clock::now())?;
    let top = area::call(times.top().load(Ordering::Relaxed))?;
    let entry = nodes::of_call(child, block, top, number)?;
    let flags = INHERITED | ENDS_SLOWLY | if is_tail { TAIL } else { 0 };
    let call = open::push(child, block, top, entry, cfa, flags)?;
    call.start().store(times.first().load(Ordering::Relaxed), Ordering::Relaxed);
    trace::begun(child, block, call, &Values::NONE);
    Some(())
}
