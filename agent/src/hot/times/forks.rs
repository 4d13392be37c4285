//! Forks: calls of a child are not measured until the agent's first code runs in the child.
//!
//! Until then, the child uses its parent's thread block, which is shared memory. After the system call and before the fork handlers,
//! the C library's `fork` makes calls in both processes: it releases its locks and returns from its inner functions. If both
//! processes changed the chain of open calls at the same time, they would corrupt it, and write to the same slots of the ring.
//! Therefore the gates take the slow path for every call while any thread forks, and the slow path checks the process ID.

use crate::hot::sharers;
use crate::hot::times::clock::{SLOWLY, STOPPED};
use crate::os::kernel;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;

/// Notes that the calling thread is about to fork.
pub(crate) fn prepare() {
    SLOWLY.fetch_add(1, Ordering::Relaxed);
}

/// Notes that the fork by the calling thread has completed or failed. Called in the parent.
pub(crate) fn go_on() {
    SLOWLY.fetch_sub(1, Ordering::Relaxed);
}

/// Notes that the agent is set up in a new child. The parent's other threads do not exist there, so no thread forks any more.
pub(crate) fn begun() {
    SLOWLY.fetch_and(STOPPED, Ordering::Relaxed);
}

/// Returns whether the calling thread runs in a child in which the agent is not set up yet.
pub(crate) fn is_new_child(agent: &Agent) -> bool {
    let forking = SLOWLY.load(Ordering::Relaxed) & !STOPPED;
    forking != 0 && !kernel::is_frozen() && task::getpid() != agent.pid && !sharers::has_calling_thread()
}
