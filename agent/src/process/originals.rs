//! The C library's functions in whose place this layer defines its own: `prctl`, `syscall`, and those of limits.

use crate::os::lookup;
use core::sync::atomic::{AtomicU64, Ordering};

/// Their addresses. Stored once, before the first hook is in place.
pub(crate) static PRCTL: AtomicU64 = AtomicU64::new(0);
pub(crate) static SYSCALL: AtomicU64 = AtomicU64::new(0);
pub(crate) static SETRLIMIT: AtomicU64 = AtomicU64::new(0);
pub(crate) static GETRLIMIT: AtomicU64 = AtomicU64::new(0);
pub(crate) static PRLIMIT: AtomicU64 = AtomicU64::new(0);

/// Finds them.
pub(crate) fn prepare(dynamic_linker: u64) {
    for (place, name) in [
        (&PRCTL, &b"prctl"[..]),
        (&SYSCALL, b"syscall"),
        (&SETRLIMIT, b"setrlimit"),
        (&GETRLIMIT, b"getrlimit"),
        (&PRLIMIT, b"prlimit"),
    ] {
        place.store(lookup::function(dynamic_linker, name), Ordering::Relaxed);
    }
}
