//! The clock that measures calls.

use crate::hot::thread_blocks;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::clock::{ClockCode, ClockKind};
use gprofinject_abi::shared::TimesRef;

/// The clock: a [`ClockKind`]. Stored once, before the first hook is in place.
static KIND: AtomicU32 = AtomicU32::new(ClockKind::None as u32);

/// The time at which the clock was stopped because the hooks were paused, or 0 while it runs. [`now`] returns this time until the hooks
/// are resumed, so nothing takes any time. Written while all threads are stopped, or by [`forbid`].
pub(crate) static STOPPED_AT: AtomicU64 = AtomicU64::new(0);

/// Nonzero while the gates take the slow path for every call. The bit [`STOPPED`] is set while the clock is stopped; the lower bits are
/// the number of threads that fork ([`forks`](crate::hot::times::forks)).
pub(crate) static SLOWLY: AtomicU32 = AtomicU32::new(0);
/// The bit of [`SLOWLY`] for a stopped clock.
pub(crate) const STOPPED: u32 = 1 << 31;

/// Whether the process has disabled the time stamp counter for itself (`PR_SET_TSC`). The clock is then stopped permanently.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Chooses the clock.
pub(crate) fn choose(kind: ClockKind) {
    KIND.store(kind as u32, Ordering::Relaxed);
}

/// Returns the clock.
pub(crate) fn kind() -> ClockKind {
    ClockCode(KIND.load(Ordering::Relaxed)).get().unwrap_or(ClockKind::None)
}

/// Stops the clock, while all threads are stopped. That of instructions is never stopped: copies of functions cannot be paused.
pub(crate) fn stop() {
    let _ = STOPPED_AT.compare_exchange(0, running(), Ordering::Relaxed, Ordering::Relaxed);
    SLOWLY.fetch_or(STOPPED, Ordering::Relaxed);
}

/// Stops the clock permanently: from now on, a read of the time stamp counter would raise SIGSEGV.
pub(crate) fn forbid() {
    stop();
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns whether the clock is stopped permanently.
pub(crate) fn is_forbidden() -> bool {
    IS_FORBIDDEN.load(Ordering::Relaxed)
}

/// Restarts the clock, while all threads are stopped. Returns the number of ticks for which it was stopped.
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

/// Returns the time of the clock `now` without the pauses of a thread.
pub(crate) fn without_pauses(times: TimesRef, now: u64) -> u64 {
    now.wrapping_sub(times.paused().load(Ordering::Relaxed))
}

/// Adds what has passed since `since`, a time without pauses, to the pauses of a thread: its time without pauses at `now` is `since`
/// again, or that of the last end of a call if a signal handler has made calls meanwhile. Returns how much is added. What others have
/// added to the pauses meanwhile is not added again.
pub(crate) fn pause(times: TimesRef, since: u64, now: u64) -> u64 {
    let since = since.max(times.last().load(Ordering::Relaxed));
    let took = without_pauses(times, now).saturating_sub(since);
    times.paused().fetch_add(took, Ordering::Relaxed);
    took
}

/// Reads the clock, whether it is stopped or not.
#[allow(unsafe_code, reason = "an instruction reads the counter")]
fn running() -> u64 {
    match kind() {
        ClockKind::Tsc => {}
        ClockKind::None | ClockKind::Gettime => return task::now(),
        // A thread without a thread block has executed no function that advances it.
        ClockKind::Instructions => {
            let block = thread_blocks::current(Agent::get());
            return block.map_or(0, |block| block.times().executed().load(Ordering::Relaxed));
        }
    }
    // SAFETY: every x86-64 processor has the instruction. When a process disables it (PR_SET_TSC), the agent stops the clock first:
    // see `crate::process::seccomp`.
    unsafe { core::arch::x86_64::_rdtsc() }
}
