//! Until when an order may take. What is looked at in another process (its stacks, its tables, its files) is as large as
//! that process wants, so every loop over it asks here whether there is time left.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os::sys;

/// An order that takes longer gives up, and puts back what it has begun.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// When a helper that has not even done that is killed.
pub(crate) const LAST: Duration = Duration::from_secs(40);

/// Nanoseconds of CLOCK_MONOTONIC; 0: none. One order at a time is carried out by a process.
static END: AtomicU64 = AtomicU64::new(0);

/// An order begins.
pub(crate) fn begin() {
    END.store(sys::monotonic_ns() + LIMIT.as_nanos() as u64, Ordering::Relaxed);
}

pub(crate) fn has_passed() -> bool {
    let end = END.load(Ordering::Relaxed);
    end != 0 && sys::monotonic_ns() > end
}

/// An error when it has.
pub(crate) fn check() -> io::Result<()> {
    match has_passed() {
        true => Err(io::Error::from_raw_os_error(libc::ETIME)),
        false => Ok(()),
    }
}
