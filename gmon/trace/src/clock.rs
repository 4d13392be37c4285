//! Converts ticks of a process's clock to nanoseconds.

use crate::chunk::ClockKind;

/// A simultaneous reading of a process's clock and the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) ticks: u64,
    pub(crate) unix_ns: u64,
}

/// The earliest and the latest of some readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    ends: Option<(Pair, Pair)>,
}

impl Span {
    /// Adds a reading.
    pub(crate) fn add(&mut self, pair: Pair) {
        let (first, last) = self.ends.unwrap_or((pair, pair));
        let first = if pair.ticks < first.ticks { pair } else { first };
        let last = if pair.ticks > last.ticks { pair } else { last };
        self.ends = Some((first, last));
    }

    /// Adds the readings of another span.
    pub(crate) fn join(&mut self, other: Span) {
        if let Some((first, last)) = other.ends {
            self.add(first);
            self.add(last);
        }
    }

    /// Returns the earliest and the latest reading.
    pub(crate) fn ends(&self) -> Option<(Pair, Pair)> {
        self.ends
    }
}

/// The relation between the ticks of a clock and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// A reading to which times are relative.
    at: Pair,
    ticks_per_ns: f64,
    /// Whether the length of a tick is known. Otherwise it is assumed to be a nanosecond.
    is_known: bool,
}

impl Clock {
    /// Returns a clock of this kind that has shown these readings. `rate` is the rate of the time stamp counter in ticks per nanosecond,
    /// if the trace has it; otherwise, the rate is computed from the readings.
    pub(crate) fn new(kind: ClockKind, span: Span, rate: Option<f64>) -> Clock {
        /// The minimum interval in nanoseconds for the computation of a rate. Readings are accurate to some hundred nanoseconds.
        const LEAST: u64 = 100_000;
        let measured = span.ends().and_then(|(first, last)| {
            let (ticks, ns) = (last.ticks - first.ticks, last.unix_ns.saturating_sub(first.unix_ns));
            (ticks > 0 && ns >= LEAST).then_some(ticks as f64 / ns as f64)
        });
        let (ticks_per_ns, is_known) = match (kind, rate.or(measured)) {
            (ClockKind::Nanoseconds, _) => (1.0, true),
            (ClockKind::Tsc, Some(rate)) => (rate, true),
            (ClockKind::Tsc, None) => (1.0, false),
        };
        let at = span.ends().map_or(Pair { ticks: 0, unix_ns: 0 }, |(first, _)| first);
        Clock { at, ticks_per_ns, is_known }
    }

    /// Returns whether the length of a tick is known. Otherwise it is assumed to be a nanosecond.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns the number of ticks per nanosecond.
    pub fn ticks_per_ns(&self) -> f64 {
        self.ticks_per_ns
    }

    /// Converts a duration to nanoseconds.
    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 / self.ticks_per_ns).round() as u64
    }

    /// Converts a time of this clock to nanoseconds since a time of day. Earlier times yield 0.
    pub fn since(&self, unix_ns: u64, ticks: u64) -> u64 {
        let later = ticks.wrapping_sub(self.at.ticks) as i64;
        let offset = i128::from(self.at.unix_ns) - i128::from(unix_ns);
        let since = offset + (later as f64 / self.ticks_per_ns).round() as i128;
        since.clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Converts a time in nanoseconds since a time of day to a time of this clock.
    pub fn tick(&self, unix_ns: u64, since: u64) -> u64 {
        let later = i128::from(unix_ns) + i128::from(since) - i128::from(self.at.unix_ns);
        let ticks = i128::from(self.at.ticks) + (later as f64 * self.ticks_per_ns).round() as i128;
        ticks.clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        let mut span = Span::default();
        // Two ticks are five nanoseconds.
        for (ticks, unix_ns) in [(2_000_000, 10_000_000), (1_000_000, 7_500_000), (1_400_000, 8_500_000)] {
            span.add(Pair { ticks, unix_ns });
        }
        let clock = Clock::new(ClockKind::Tsc, span, None);
        assert!(clock.is_known() && clock.ticks_per_ns() == 0.4);
        assert_eq!(clock.ns(3), 8);
        assert_eq!(clock.since(7_500_000, 1_000_100), 250);
        assert_eq!(clock.since(7_000_000, 1_000_000), 500_000);
        // Times before the first reading, and before the given time of day.
        assert_eq!(clock.since(7_000_000, 900_000), 250_000);
        assert_eq!(clock.since(7_500_000, 900_000), 0);
        assert_eq!(clock.tick(7_000_000, 250_000), 900_000);
        assert_eq!(clock.tick(7_500_000, 2_500_000), 2_000_000);
    }

    #[test]
    fn with_a_rate() {
        let mut span = Span::default();
        span.add(Pair { ticks: 100, unix_ns: 5000 });
        let clock = Clock::new(ClockKind::Tsc, span, Some(2.5));
        assert!(clock.is_known());
        assert_eq!((clock.ns(1000), clock.since(5000, 600), clock.tick(5000, 200)), (400, 200, 600));
        // A rate from the trace takes precedence over the readings, because the time of day may be set between two readings.
        span.add(Pair { ticks: 25_000_100, unix_ns: 11_005_000 });
        assert_eq!(Clock::new(ClockKind::Tsc, span, Some(2.5)).ns(1000), 400);
        assert_eq!(Clock::new(ClockKind::Tsc, span, None).ns(1000), 440);
    }

    #[test]
    fn without_a_second_moment() {
        let mut span = Span::default();
        span.add(Pair { ticks: 100, unix_ns: 5000 });
        assert!(!Clock::new(ClockKind::Tsc, span, None).is_known());
        let clock = Clock::new(ClockKind::Nanoseconds, span, Some(4.0));
        assert!(clock.is_known());
        assert_eq!(clock.since(5000, 130), 30);
        let huge = Clock::new(ClockKind::Tsc, Span::default(), None);
        assert_eq!(huge.since(u64::MAX, 5), 0);
        assert_eq!(huge.tick(u64::MAX, u64::MAX), u64::MAX);
    }
}
