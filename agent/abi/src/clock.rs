//! The clock that measures calls.

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
        /// The instructions that the calling thread has executed in functions that count them
        /// ([`TimesHeader::executed`](crate::times::TimesHeader::executed)). The clock stands still in all other code.
        Instructions = 3,
    }
}
