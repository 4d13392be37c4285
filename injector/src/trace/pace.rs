//! How long the thread that reads the rings sleeps between two visits of them.

use std::time::Duration;

/// The minimum time for which the thread sleeps.
const SHORTEST: Duration = Duration::from_micros(200);
/// The maximum time, which is reached while no events are written.
const LONGEST: Duration = Duration::from_millis(10);
/// The fill level of a ring from which on the thread does not sleep.
const BUSY: f64 = 1.0 / 8.0;

/// The present pace.
pub(crate) struct Pace {
    pause: Duration,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { pause: LONGEST }
    }

    /// Returns how long to sleep after a visit. `fullest` was the fill level of the fullest ring.
    pub(crate) fn after(&mut self, fullest: f64) -> Duration {
        self.pause = if fullest >= BUSY {
            Duration::ZERO
        } else if fullest > 0.0 {
            (self.pause / 2).max(SHORTEST)
        } else {
            (self.pause * 2).clamp(SHORTEST, LONGEST)
        };
        self.pause
    }
}
