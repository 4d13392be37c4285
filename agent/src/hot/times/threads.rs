//! Starts and ends the measurements of a thread.

use crate::hot::thread_blocks;
use crate::hot::times::{area, chains, clock, open, short, switches, table, trace};
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::BlockRef;

/// Starts to measure the calling thread's calls, if this has not been done yet. The frame of the first call has this CFA, and `now` is
/// the time without pauses. Returns `None` if there is no room for the thread's records.
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
    let short_256 = agent.region.short_256().load(Ordering::Relaxed);
    times.short_cost().store((short_256 + 128) >> 8, Ordering::Relaxed);
    times.short_taken().store((short_256 * short::TAKEN.0 / short::TAKEN.1) >> 8, Ordering::Relaxed);
    times.short_below().store(agent.orders.short_below, Ordering::Relaxed);
    times.judged().store(0, Ordering::Relaxed);
    times.calibrated_at().store(clock::now(), Ordering::Relaxed);
    times.base().store(block.address(), Ordering::Relaxed);
    times.first().store(now, Ordering::Relaxed);
    times.last().store(now, Ordering::Relaxed);
    switches::begin(block);
    let chain = chains::make(agent, block, cfa, false)?;
    chains::enter(times, chain);
    trace::thread(agent, block, chain, now);
    Some(())
}

/// Ends the calls of a thread that has ended, before another thread takes over its thread block. The calls end at the time of the
/// last observed end of a call, because the agent does not see the end of the thread.
pub(crate) fn end(agent: &Agent, block: BlockRef) {
    let times = block.times();
    if times.top().load(Ordering::Relaxed) == 0 {
        return;
    }
    let last = times.last().load(Ordering::Relaxed);
    for chain in chains::all(times) {
        // The calls of a chain that was not current ended when the thread left that chain's stack.
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
    open::forget_depth();
}
