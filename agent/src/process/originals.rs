//! The C library's functions in whose place this layer defines its own: `prctl`, `syscall`, and those of limits.

use crate::os::lookup;
use core::sync::atomic::AtomicU64;

/// Their addresses. Stored once, before the first hook is in place.
pub(crate) static PRCTL: AtomicU64 = AtomicU64::new(0);
pub(crate) static SYSCALL: AtomicU64 = AtomicU64::new(0);
pub(crate) static SETRLIMIT: AtomicU64 = AtomicU64::new(0);
pub(crate) static GETRLIMIT: AtomicU64 = AtomicU64::new(0);
pub(crate) static PRLIMIT: AtomicU64 = AtomicU64::new(0);

/// Finds them.
pub(crate) fn prepare(dynamic_linker: u64) {
    let functions: [(_, &[u8]); 5] = [
        (&PRCTL, b"prctl"),
        (&SYSCALL, b"syscall"),
        (&SETRLIMIT, b"setrlimit"),
        (&GETRLIMIT, b"getrlimit"),
        (&PRLIMIT, b"prlimit"),
    ];
    lookup::store(dynamic_linker, &functions);
}
