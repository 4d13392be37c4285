//! The clock that measures the durations of calls.

use crate::coded::coded;

coded! {
    /// The source of time.
    pub enum ClockKind as ClockCode(u32) {
        /// No clock: durations are not measured.
        None = 0,
        /// The processor's time stamp counter.
        Tsc = 1,
        /// clock_gettime with CLOCK_MONOTONIC, in nanoseconds.
        Gettime = 2,
    }
}
