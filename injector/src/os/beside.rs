//! Threads that work beside the one that forks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by the thread that works or forks.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until no thread works beside the calling one, and keeps others from it. A thread holds it for a piece of its work, and whoever forks a
/// process that goes on with this program's code holds it meanwhile: the process has no other threads, and would wait for ever for what they have
/// begun, as the value of a `OnceLock`.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
