//! How many trials run side by side: always some, and more as long as a processor is idle, because many trials wait for
//! a time, for a process or for a terminal.

use std::fs;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time for which the processors are watched before another trial begins.
const WATCHED: Duration = Duration::from_millis(200);

/// A processor counts as idle if all of them together rest for at least this part of one processor's time.
const IDLE: f64 = 0.4;

/// The length of the unit of `/proc/stat` ([`proc_stat(5)`](https://man7.org/linux/man-pages/man5/proc_stat.5.html)).
const MS_PER_TICK: u64 = 10;

/// Permits to run.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// So many trials run in any case.
    always: usize,
    /// So many run while a processor is idle.
    at_most: usize,
    running: usize,
    /// When the processors' idle time was read last, and what it was.
    read: Option<(Instant, Duration)>,
}

impl Slots {
    /// Returns one slot. [`Slots::allow`] sets the number.
    pub(super) const fn new() -> Slots {
        let state = State { always: 1, at_most: 1, running: 0, read: None };
        Slots { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Lets so many trials run in any case, and so many while a processor is idle.
    pub(super) fn allow(&self, always: usize, at_most: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.always, state.at_most) = (always, at_most);
    }

    /// Waits for a slot, which is given back when the result is dropped.
    pub(super) fn take(&self) -> Slot<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.admits(Instant::now(), idle_time) {
            state = self.changed.wait_timeout(state, WATCHED).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.running += 1;
        Slot(self)
    }
}

/// A permit to run.
#[derive(Debug)]
pub(super) struct Slot<'a>(&'a Slots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
        self.0.changed.notify_one();
    }
}

impl State {
    /// Whether another trial may begin now. Each time that a processor was idle lets one begin.
    fn admits(&mut self, now: Instant, idle_time: impl Fn() -> Option<Duration>) -> bool {
        if self.running < self.always {
            return true;
        }
        if self.running >= self.at_most {
            // What was idle before one of them ends says nothing of the time after that.
            self.read = None;
            return false;
        }
        let passed = self.read.map(|(at, _)| now.duration_since(at));
        if passed.is_some_and(|passed| passed < WATCHED) {
            return false;
        }
        let before = std::mem::replace(&mut self.read, idle_time().map(|idle| (now, idle)));
        match (before, self.read, passed) {
            (Some((_, before)), Some((_, idle)), Some(passed)) => {
                idle.saturating_sub(before) >= passed.mul_f64(IDLE)
            }
            _ => false,
        }
    }
}

/// Returns the time for which the processors of this machine have had nothing to do, also while they waited for disks.
fn idle_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().skip(3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(MS_PER_TICK.saturating_mul(ticks()?.saturating_add(ticks()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_more_is_given_while_a_processor_is_idle() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut state = State { always: 1, at_most: 3, running: 0, read: None };
        let mut admits = |running, at: u64, idle: Option<u64>| {
            state.running = running;
            state.admits(after(at), || idle.map(Duration::from_millis))
        };
        assert!(admits(0, 0, None));
        // The first reading is compared with the next one, which comes a while later.
        assert!(!admits(1, 0, Some(5000)));
        assert!(!admits(1, 150, Some(5150)));
        assert!(admits(1, 200, Some(5080)));
        // Another one needs idle time of its own.
        assert!(!admits(2, 210, Some(5090)));
        assert!(!admits(2, 400, Some(5150)));
        assert!(admits(2, 700, Some(5350)));
        assert!(!admits(3, 1000, Some(6000)));
        // What was idle before does not count.
        assert!(!admits(2, 1001, Some(6000)));
        assert!(!admits(2, 1201, Some(6010)));
        // Where nothing is known, no more trials run.
        assert!(!admits(2, 1500, None));
        assert!(!admits(2, 1800, None));
    }

    #[test]
    fn the_machine_says_how_long_it_was_idle() {
        let before = idle_time();
        assert!(before.is_some() && idle_time() >= before);
    }
}
