//! Compares the clocks of processes with the time of day, and makes the chunks with the results.

use std::time::{Duration, Instant, UNIX_EPOCH};

use gmon_trace::Chunk;

use crate::os::clock::{self, Moment, Rate};

/// The interval between comparisons.
const COMPARED: Duration = Duration::from_secs(1);
/// The maximum time from the start of a process to the next comparison. It is short so that the trace has two comparisons that are far
/// enough apart even if gprofinject is killed soon.
const COMPARED_SOON: Duration = Duration::from_millis(20);

/// The schedule of comparisons.
pub(crate) struct Clocks {
    next: Instant,
    /// The rate of the time stamp counter that has been written to the trace.
    rate: Option<Rate>,
}

impl Clocks {
    pub(crate) fn new(now: Instant) -> Clocks {
        Clocks { next: now + COMPARED, rate: None }
    }

    /// Returns whether a comparison is due. If so, schedules the next one.
    pub(crate) fn is_time(&mut self) -> bool {
        let now = Instant::now();
        let is_time = now >= self.next;
        if is_time {
            self.next = now + COMPARED;
        }
        is_time
    }

    /// Schedules an early comparison, because a process has started.
    pub(crate) fn soon(&mut self) {
        self.next = self.next.min(Instant::now() + COMPARED_SOON);
    }

    /// Returns a chunk with the rate of the time stamp counter, unless the trace has this rate already.
    pub(crate) fn new_rate(&mut self) -> Option<Chunk> {
        let rate = clock::rate_so_far().filter(|rate| self.rate != Some(*rate))?;
        self.rate = Some(rate);
        let Rate { ticks, nanoseconds } = rate;
        Some(Chunk::Rate { ticks, nanoseconds })
    }
}

/// Returns a chunk with the time of a process's clock at a moment.
pub(crate) fn pair(process: u32, is_tsc: bool, moment: Moment) -> Chunk {
    let since = moment.date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Chunk::Clock { process, ticks: by_clock(is_tsc, moment), unix_ns: since.as_nanos() as u64 }
}

pub(crate) fn by_clock(is_tsc: bool, moment: Moment) -> u64 {
    if is_tsc { moment.ticks } else { moment.nanoseconds }
}
