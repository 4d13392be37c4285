//! The clocks of processes: when they are compared with the time of day, and what the trace says of that.

use std::time::{Duration, Instant, UNIX_EPOCH};

use gmon_trace::Chunk;

use crate::os::clock::{self, Moment, Rate};

/// How often the clocks are compared, and how soon after a process has begun. If nothing more is written than the beginning, because
/// this process is killed, that is known well enough.
const COMPARED: Duration = Duration::from_secs(1);
const COMPARED_SOON: Duration = Duration::from_millis(20);

/// When the clocks are compared.
pub(crate) struct Clocks {
    next: Instant,
    /// The rate of the time stamp counter that the trace has.
    rate: Option<Rate>,
}

impl Clocks {
    pub(crate) fn new(now: Instant) -> Clocks {
        Clocks { next: now + COMPARED, rate: None }
    }

    /// Whether it is time to compare them; it is not again for a while then.
    pub(crate) fn is_time(&mut self) -> bool {
        let now = Instant::now();
        let is_time = now >= self.next;
        if is_time {
            self.next = now + COMPARED;
        }
        is_time
    }

    /// Has them compared soon, because a process has begun.
    pub(crate) fn soon(&mut self) {
        self.next = self.next.min(Instant::now() + COMPARED_SOON);
    }

    /// Returns how fast the time stamp counter runs, if the trace does not have that yet.
    pub(crate) fn new_rate(&mut self) -> Option<Chunk> {
        let rate = clock::rate_so_far().filter(|rate| self.rate != Some(*rate))?;
        self.rate = Some(rate);
        let Rate { ticks, nanoseconds } = rate;
        Some(Chunk::Rate { ticks, nanoseconds })
    }
}

/// Returns what time the clock of a process has at a moment.
pub(crate) fn pair(process: u32, is_tsc: bool, moment: Moment) -> Chunk {
    let since = moment.date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Chunk::Clock { process, ticks: by_clock(is_tsc, moment), unix_ns: since.as_nanos() as u64 }
}

pub(crate) fn by_clock(is_tsc: bool, moment: Moment) -> u64 {
    if is_tsc { moment.ticks } else { moment.nanoseconds }
}
