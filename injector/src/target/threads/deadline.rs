//! The time limit of an order. What the injector examines in another process (its stacks, tables and files)
//! is as large as that process makes it, so every loop over it checks this limit.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os::sys;

/// The time after which an order gives up and undoes what it has begun.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The time after which a helper that has not even done that is killed.
pub(crate) const LAST: Duration = Duration::from_secs(40);

/// The end of the current order's time, in nanoseconds of CLOCK_MONOTONIC; 0 means no order. A process
/// carries out one order at a time.
static END: AtomicU64 = AtomicU64::new(0);

/// Begins the time of an order.
pub(crate) fn begin() {
    END.store(sys::monotonic_ns() + LIMIT.as_nanos() as u64, Ordering::Relaxed);
}

/// Whether the order's time is over.
pub(crate) fn has_passed() -> bool {
    let end = END.load(Ordering::Relaxed);
    end != 0 && sys::monotonic_ns() > end
}

/// Checks that the order's time is not over.
///
/// # Errors
/// The time is over.
pub(crate) fn check() -> io::Result<()> {
    match has_passed() {
        true => Err(io::Error::from_raw_os_error(libc::ETIME)),
        false => Ok(()),
    }
}
