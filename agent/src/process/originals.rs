//! The C library's functions in whose place this layer defines its own `prctl` and `syscall`.

use crate::os::lookup;
use core::sync::atomic::{AtomicU64, Ordering};

/// Their addresses. Stored once, before the first hook is in place.
pub(crate) static PRCTL: AtomicU64 = AtomicU64::new(0);
pub(crate) static SYSCALL: AtomicU64 = AtomicU64::new(0);

/// Finds them.
pub(crate) fn prepare(dynamic_linker: u64) {
    PRCTL.store(lookup::function(dynamic_linker, b"prctl"), Ordering::Relaxed);
    SYSCALL.store(lookup::function(dynamic_linker, b"syscall"), Ordering::Relaxed);
}
