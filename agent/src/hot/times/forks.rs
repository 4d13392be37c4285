//! Forks: what a child does between the fork and the agent's first routine in it is not measured.
//!
//! Until then the child's thread block is its parent's, which is shared memory. The C library's `fork` makes calls on both sides
//! before it calls the handlers: it unlocks what it has locked, and returns from its inner functions. Two processes that change a
//! chain of open calls at the same time would destroy it, and take the same slots of a ring. So the gates leave all calls to compiled
//! code while any thread forks, and that asks which process it is in.
//!
//! For the same reason a child cannot read from its parent's thread block which calls were open at the fork: the parent goes on. The
//! thread notes them before it forks, in memory of its own.
#![allow(unsafe_code, reason = "the noted calls become the child's")]

use crate::hot::thread_blocks;
use crate::hot::times::clock::{SLOWLY, STOPPED};
use crate::hot::times::threads::{Inherited, inherit};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::shared::BlockRef;

/// The thread block of the thread whose open calls are noted, 1 while that is being done, or 0. Of several threads that fork at the
/// same time, one notes its calls.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// The calls that are noted: see [`Inherited`].
static LIST: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The calling thread is about to fork.
pub(crate) extern "C" fn prepare() {
    SLOWLY.fetch_add(1, Ordering::Relaxed);
    let agent = Agent::get();
    if !agent.is_set_up || agent.orders.times_bytes == 0 {
        return;
    }
    failure::guarded(|| {
        let block = thread_blocks::current(agent)?;
        OWNER.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let (list, count) = inherit(block).map_or((0, 0), Inherited::into_parts);
        LIST.store(list, Ordering::Relaxed);
        COUNT.store(count, Ordering::Relaxed);
        OWNER.store(block.address(), Ordering::Relaxed);
        Some(())
    });
}

/// The calling thread has forked, or could not, and goes on in the parent.
pub(crate) extern "C" fn go_on() {
    SLOWLY.fetch_sub(1, Ordering::Relaxed);
    let agent = Agent::get();
    if agent.is_set_up && agent.orders.times_bytes != 0 {
        failure::guarded(|| drop(thread_blocks::current(agent).and_then(take)));
    }
}

/// The agent has done what it does in a new child.
pub(crate) fn begun() {
    SLOWLY.fetch_and(STOPPED, Ordering::Relaxed);
    OWNER.store(0, Ordering::Relaxed);
}

/// Returns the calls that were open when the thread with this thread block forked, in the child. `None` means that there were none.
pub(crate) fn inherited(block: BlockRef) -> Option<Inherited> {
    if OWNER.load(Ordering::Relaxed) == block.address() {
        return take(block);
    }
    // The thread has forked in a way that calls no handlers before.
    inherit(block)
}

/// Takes the calls that were noted of the thread with this thread block.
fn take(block: BlockRef) -> Option<Inherited> {
    if OWNER.load(Ordering::Relaxed) != block.address() {
        return None;
    }
    let (list, count) = (LIST.load(Ordering::Relaxed), COUNT.load(Ordering::Relaxed));
    OWNER.store(0, Ordering::Relaxed);
    // SAFETY: `prepare` has noted them, and whoever takes them finds that there is no owner any more.
    (count != 0).then(|| unsafe { Inherited::from_parts(list, count) })
}

/// Returns whether the calling thread is that of a child in which the agent has not done anything yet.
pub(crate) fn is_new_child(agent: &Agent) -> bool {
    let forking = SLOWLY.load(Ordering::Relaxed) & !STOPPED;
    forking != 0 && !kernel::is_frozen() && task::getpid() != agent.pid
}
