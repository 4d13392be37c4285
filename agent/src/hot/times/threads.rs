//! The beginning and the end of a thread's measurements.

use crate::hot::thread_blocks;
use crate::hot::times::{area, chains, open, table, trace};
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::shared::BlockRef;

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
