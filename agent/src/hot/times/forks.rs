//! Forks: what a child does between the fork and the agent's first routine in it is not measured.
//!
//! Until then the child's thread block is its parent's, which is shared memory. The C library's `fork` makes calls on both sides
//! before it calls the handlers: it unlocks what it has locked, and returns from its inner functions. Two processes that change a
//! chain of open calls at the same time would destroy it, and take the same slots of a ring. So the gates leave all calls to compiled
//! code while any thread forks, and that asks which process it is in.

use crate::hot::times::clock::{SLOWLY, STOPPED};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;

/// The calling thread is about to fork.
pub(crate) fn prepare() {
    SLOWLY.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread has forked, or could not, and goes on in the parent.
pub(crate) fn go_on() {
    SLOWLY.fetch_sub(1, Ordering::Relaxed);
}

/// The agent has done what it does in a new child, whose other threads do not exist.
pub(crate) fn begun() {
    SLOWLY.fetch_and(STOPPED, Ordering::Relaxed);
}

/// Returns whether the calling thread is that of a child in which the agent has not done anything yet.
pub(crate) fn is_new_child(agent: &Agent) -> bool {
    let forking = SLOWLY.load(Ordering::Relaxed) & !STOPPED;
    forking != 0 && !kernel::is_frozen() && task::getpid() != agent.pid
}
