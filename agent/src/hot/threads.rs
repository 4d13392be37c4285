//! The calling thread's thread block: assigned on its first hooked call, and reused by another thread after its end.

use crate::hot::counters;
use crate::hot::sharers;
use crate::hot::tally;
use crate::hot::thread_blocks;
use crate::hot::timer;
use crate::hot::times;
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(doc)]
use gprofinject_abi::region::BlockHeader;
use gprofinject_abi::shared::BlockRef;

/// The number of thread blocks that are checked for a dead owner each time a thread needs one.
const REUSE_LOOKS: u64 = 8;

/// Returns the calling thread's thread block; if it has none, makes or takes over one. Returns `None` if there is no
/// memory for one.
pub(crate) fn block(agent: &Agent) -> Option<BlockRef> {
    if let Some(block) = thread_blocks::current(agent) {
        return Some(block);
    }
    // While the thread's system calls are dispatched, it can get no thread block. Later it may.
    let is_dispatched = kernel::is_frozen() && !kernel::is_frozen_for_good();
    if is_dispatched || thread_blocks::address(agent) == agent.lost_block {
        return None;
    }
    // A thread that shares its words needs room in a table as well.
    let may_have_one = !kernel::is_frozen() && thread_blocks::set_address(agent.no_block);
    let found = if may_have_one { reuse(agent).or_else(|| thread_blocks::make(agent)) } else { None };
    match found {
        Some(block) => adopt(agent, block),
        None => {
            agent.region.lost_threads().fetch_add(1, Ordering::Relaxed);
            lose(agent);
        }
    }
    found
}

/// Returns a thread block whose thread has ended, or that was this thread's before the C library reset its words.
fn reuse(agent: &Agent) -> Option<BlockRef> {
    /// The number at which the next search begins. It orders nothing: each thread block states by itself whether it
    /// is free.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    /// The number of threads whose durations are kept apart.
    const MEASURED_APART: u64 = 256;
    let tid = task::gettid();
    let process = process(agent);
    let made = thread_blocks::made(agent);
    let is_apart = agent.orders.times_bytes != 0 && made < MEASURED_APART;
    for _ in 0..made.min(REUSE_LOOKS) {
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % made;
        let Some(block) = thread_blocks::numbered(agent, index) else { continue };
        let old = block.tid().load(Ordering::Acquire);
        let is_used = || task::thread_lives(agent.pid, old) || sharers::have(block.address());
        // What one process has counted is not to be taken for another one's.
        if old == 0
            || block.process().load(Ordering::Relaxed) != process
            || old != tid && (is_apart || is_used())
        {
            continue;
        }
        // Of several threads that saw the owner dead, one gets the thread block.
        if block.tid().compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(block);
        }
    }
    None
}

/// Returns the number of the calling thread's process if that is not the one to which the file belongs ([`BlockHeader::process`]), and
/// otherwise 0. A process that shares its parent's words counts in its parent's file, as a guest does; or as a thread of its parent's if other
/// processes are not followed.
fn process(agent: &Agent) -> u32 {
    let is_guest = || agent.orders.follow != 0 && thread_blocks::are_words_shared();
    let other = || Some(task::getpid()).filter(|&pid| pid != agent.pid);
    match agent.guest {
        true => agent.pid,
        false if is_guest() => other().unwrap_or(0),
        false => 0,
    }
}

/// Makes the thread block the calling thread's. A signal handler that interrupts this finds no thread block yet and
/// gets another one, which is used only for the handler's counts; this one then replaces it.
fn adopt(agent: &Agent, block: BlockRef) {
    times::threads::end(agent, block);
    tally::begin(block);
    let process = process(agent);
    if process != 0 && block.process().swap(process, Ordering::Relaxed) != process {
        agent.region.guests().fetch_add(1, Ordering::Relaxed);
    }
    block.owners().fetch_add(1, Ordering::Relaxed);
    timer::restart(agent, block);
    block.tid().store(task::gettid(), Ordering::Release);
    thread_blocks::set_address(block.address());
    counters::count_in(agent, block.address());
}

/// Makes the calling thread count nowhere from now on; its calls are counted as lost.
pub(crate) fn lose(agent: &Agent) {
    thread_blocks::set_address(agent.lost_block);
    counters::count_in(agent, agent.lost_block);
}

/// Prepares the thread words of the calling thread for a child that begins with them. Returns what [`sharers::born`] needs.
pub(crate) fn expect_sharer(agent: &Agent, is_divided: bool) -> u64 {
    // In a child of vfork, the words and the thread block are its parent's.
    let owner = thread_blocks::current(agent).map_or(0, |block| block.tid().load(Ordering::Acquire));
    let owner = if owner == 0 { task::gettid() } else { owner };
    sharers::expect(agent, owner, thread_blocks::address(agent), is_divided)
}

/// In a forked child, which has one thread: makes that thread's thread block, at the same address, a new thread block
/// of the file in which the parent counts. Returns `false` if there is none left.
pub(crate) fn begin_guest(parent: &Agent, child: &Agent) -> bool {
    let block = thread_blocks::current(parent);
    let index = if block.is_some() { parent.region.blocks().fetch_add(1, Ordering::Relaxed) } else { 0 };
    if index >= parent.orders.blocks_max {
        return false;
    }
    thread_blocks::forget_all(parent);
    let Some(block) = block else { return true };
    if !thread_blocks::begin_again(child, block, index) {
        return false;
    }
    times::inherited::begin_child(child, block);
    block.tid().store(task::gettid(), Ordering::Release);
    count_again(child, block);
    true
}

/// In a forked child, which has one thread: makes that thread's thread block, at the same address, a part of the
/// child's own region file, or zeros. `parent` and `child` differ in their region. Returns `false` if there is no
/// memory.
pub(crate) fn begin_child(parent: &Agent, child: &Agent) -> bool {
    child.region.blocks().store(thread_blocks::made(parent), Ordering::Relaxed);
    thread_blocks::forget_all(parent);
    let Some(block) = thread_blocks::current(parent) else { return true };
    let index = block.index().load(Ordering::Relaxed);
    if !thread_blocks::begin_again(child, block, index) {
        return false;
    }
    times::inherited::begin_child(child, block);
    timer::restart(child, block);
    block.tid().store(task::gettid(), Ordering::Release);
    count_again(child, block);
    true
}

/// In a forked child: makes the thread count basic blocks in its thread block, which leads to another file now.
#[cfg_attr(not(feature = "standalone"), allow(unused_variables))]
fn count_again(child: &Agent, block: BlockRef) {
    // Where gs leads to the thread block itself, there is nothing to do.
    #[cfg(feature = "standalone")]
    counters::count_in(child, block.address());
}
