//! The clock that measures calls.

use crate::os::task;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the time stamp counter measures; otherwise clock_gettime does. Stored once, before the first hook is in place.
static IS_TSC: AtomicBool = AtomicBool::new(false);

/// Chooses the clock.
pub(crate) fn choose(is_tsc: bool) {
    IS_TSC.store(is_tsc, Ordering::Relaxed);
}

/// Returns whether the time stamp counter measures.
pub(crate) fn is_tsc() -> bool {
    IS_TSC.load(Ordering::Relaxed)
}

/// Returns the time in ticks.
#[allow(unsafe_code, reason = "an instruction reads the counter")]
pub(crate) fn now() -> u64 {
    if !is_tsc() {
        return task::now();
    }
    // SAFETY: every x86-64 processor has the instruction. A process that has forbidden it to itself (PR_SET_TSC) is not
    // measured by it: see `crate::process::seccomp`.
    unsafe { core::arch::x86_64::_rdtsc() }
}
