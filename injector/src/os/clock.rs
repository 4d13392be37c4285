//! The clock that measures durations: the processor's time stamp counter, and how fast it runs.

use std::fs;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Returns whether the time stamp counter runs evenly, at the same rate in all sleep states, and in step on all processors.
/// The processor says the first two, and the kernel has checked all three if it uses the counter itself, or would permit it.
pub(crate) fn is_stable() -> bool {
    const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    let sources = fs::read_to_string(SOURCES).unwrap_or_default();
    // A virtual machine's own clock is based on the counter too; a kernel that has found it unstable takes it from the list.
    let is_used =
        sources.split_ascii_whitespace().any(|source| source.contains("tsc") || source == "kvm-clock");
    has("constant_tsc") && has("nonstop_tsc") && is_used
}

/// Returns the time stamp counter.
#[allow(unsafe_code, reason = "an instruction reads the counter")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds, which is not adjusted faster than 500 ppm.
pub(crate) fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64
}

/// Returns the CPU time that this process has used, in nanoseconds.
pub(crate) fn used() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64
}

/// A moment by all clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) date: SystemTime,
}

/// Returns the moment at which this function was first called: the beginning of the run.
pub(crate) fn beginning() -> Moment {
    static BEGINNING: OnceLock<Moment> = OnceLock::new();
    *BEGINNING.get_or_init(Moment::now)
}

/// How fast the time stamp counter runs: so many ticks took so many nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) ticks: u64,
    pub(crate) nanoseconds: u64,
}

impl Rate {
    /// Returns the ticks per nanosecond.
    pub(crate) fn per_nanosecond(self) -> f64 {
        if self.nanoseconds == 0 || self.ticks == 0 {
            1.0
        } else {
            self.ticks as f64 / self.nanoseconds as f64
        }
    }
}

/// The rate that everything uses once the program has ended.
static SETTLED: OnceLock<Rate> = OnceLock::new();

/// Measures the rate for the last time: what is written from now on, of one file as of another, is of the same rate.
pub(crate) fn settle_rate() {
    let _ = SETTLED.set(rate());
}

/// Returns the rate, measured from the beginning of the run up to now.
fn rate() -> Rate {
    /// The shortest time in which the rate can be measured to a ten-thousandth.
    const LEAST: Duration = Duration::from_millis(20);
    let beginning = beginning();
    let passed = Duration::from_nanos(nanoseconds().saturating_sub(beginning.nanoseconds));
    thread::sleep(LEAST.saturating_sub(passed));
    SETTLED.get().copied().unwrap_or_else(|| Moment::now().rate_since(beginning))
}

/// Returns the rate as far as it is known, or `None` if the run has begun less than a millisecond ago.
pub(crate) fn rate_so_far() -> Option<Rate> {
    const LEAST_NS: u64 = 1_000_000;
    let measured = || Some(Moment::now().rate_since(beginning())).filter(|rate| rate.nanoseconds >= LEAST_NS);
    SETTLED.get().copied().or_else(measured)
}

/// Returns the ticks of the time stamp counter per nanosecond, measured from the beginning of the run up to now.
pub(crate) fn ticks_per_nanosecond() -> f64 {
    rate().per_nanosecond()
}

impl Moment {
    /// Returns the present moment. Of several readings, the one counts that took the least time.
    pub(crate) fn now() -> Moment {
        const READINGS: usize = 8;
        let read = || {
            let before = ticks();
            let nanoseconds = nanoseconds();
            let after = ticks();
            let ticks = before.wrapping_add(after.wrapping_sub(before) / 2);
            (after.wrapping_sub(before), Moment { ticks, nanoseconds, date: SystemTime::now() })
        };
        (0..READINGS)
            .map(|_| read())
            .min_by_key(|(took, _)| *took)
            .map_or_else(|| read().1, |(_, moment)| moment)
    }

    /// Returns the moment that was at a time of CLOCK_MONOTONIC, shortly before this one.
    pub(crate) fn back_to(self, nanoseconds: u64) -> Moment {
        let passed = self.nanoseconds.saturating_sub(nanoseconds);
        let ticks = (passed as f64 * self.rate_since(beginning()).per_nanosecond()).round() as u64;
        let date = self.date.checked_sub(Duration::from_nanos(passed)).unwrap_or(self.date);
        Moment { ticks: self.ticks.saturating_sub(ticks), nanoseconds: self.nanoseconds - passed, date }
    }

    /// Returns the rate since an earlier moment, which must be some milliseconds ago.
    fn rate_since(self, earlier: Moment) -> Rate {
        Rate {
            ticks: self.ticks.saturating_sub(earlier.ticks),
            nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds),
        }
    }
}
