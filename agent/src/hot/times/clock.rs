//! The clock that measures calls.

use crate::os::task;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Whether the time stamp counter measures; otherwise clock_gettime does. Stored once, before the first hook is in place.
static IS_TSC: AtomicBool = AtomicBool::new(false);

/// The time at which the hooks were paused, or 0 while they are not. Until they are resumed, this is the time: nothing takes
/// any. Written while all threads are stopped, or by [`forbid`].
pub(crate) static STOPPED_AT: AtomicU64 = AtomicU64::new(0);

/// Nonzero while the gates leave all calls to compiled code: [`STOPPED`] while the clock is stopped, and below that bit the number of
/// threads that fork ([`forks`](crate::hot::times::forks)).
pub(crate) static SLOWLY: AtomicU32 = AtomicU32::new(0);
pub(crate) const STOPPED: u32 = 1 << 31;

/// Whether the process has forbidden the time stamp counter to itself. The clock then stands still for good.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Chooses the clock.
pub(crate) fn choose(is_tsc: bool) {
    IS_TSC.store(is_tsc, Ordering::Relaxed);
}

/// Returns whether the time stamp counter measures.
pub(crate) fn is_tsc() -> bool {
    IS_TSC.load(Ordering::Relaxed)
}

/// Stops the clock, while all threads are stopped.
pub(crate) fn stop() {
    let _ = STOPPED_AT.compare_exchange(0, running(), Ordering::Relaxed, Ordering::Relaxed);
    SLOWLY.fetch_or(STOPPED, Ordering::Relaxed);
}

/// Stops the clock for good: reading it would end the process from now on.
pub(crate) fn forbid() {
    stop();
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns whether the clock stands still for good.
pub(crate) fn is_forbidden() -> bool {
    IS_FORBIDDEN.load(Ordering::Relaxed)
}

/// Lets the clock run again, while all threads are stopped. Returns how long it stood still.
pub(crate) fn go_on() -> u64 {
    if is_forbidden() {
        return 0;
    }
    SLOWLY.fetch_and(!STOPPED, Ordering::Relaxed);
    let stopped_at = STOPPED_AT.swap(0, Ordering::Relaxed);
    if stopped_at == 0 { 0 } else { running().saturating_sub(stopped_at) }
}

/// Returns the time in ticks.
pub(crate) fn now() -> u64 {
    match STOPPED_AT.load(Ordering::Relaxed) {
        0 => running(),
        stopped_at => stopped_at,
    }
}

/// Returns the time that the clock has if it is not stopped.
#[allow(unsafe_code, reason = "an instruction reads the counter")]
fn running() -> u64 {
    if !is_tsc() {
        return task::now();
    }
    // SAFETY: every x86-64 processor has the instruction. A process that has forbidden it to itself (PR_SET_TSC) is not
    // measured by it: see `crate::process::seccomp`.
    unsafe { core::arch::x86_64::_rdtsc() }
}
