//! Quantiles of durations, from the numbers of calls in intervals of durations.

use crate::intervals::Intervals;
use crate::model::FunctionTimes;

impl FunctionTimes {
    /// Estimates the duration in nanoseconds that the part `q` (0.5: half) of the closed calls does not exceed;
    /// `None` if no call was closed. `intervals` are those of the histogram.
    ///
    /// Within an interval, durations are taken to be evenly distributed between its ends, or between the shortest and the longest
    /// duration where these lie within. So the estimate is exact if all calls took equally long, and is in the interval of the
    /// true quantile, or at its end, otherwise.
    pub fn quantile_ns(&self, intervals: &Intervals, q: f64) -> Option<u64> {
        let total: u128 = self.histogram.iter().map(|&calls| u128::from(calls)).sum();
        if total == 0 {
            return None;
        }
        let wanted = q.clamp(0.0, 1.0) * total as f64;
        let mut before = 0.0;
        let mut estimate = 0.0;
        for (index, &calls) in self.histogram.iter().enumerate().filter(|&(_, &calls)| calls > 0) {
            let (low, high) = self.ends(intervals, index);
            let within = ((wanted - before) / calls as f64).clamp(0.0, 1.0);
            estimate = low + within * (high - low);
            before += calls as f64;
            if before >= wanted {
                break;
            }
        }
        let estimate = estimate.round() as u64;
        let (min, max) = (self.min_ns, self.max_ns);
        Some(if min <= max { estimate.clamp(min, max) } else { estimate })
    }

    /// Returns the ends of an interval, narrowed to the durations that occurred.
    fn ends(&self, intervals: &Intervals, index: usize) -> (f64, f64) {
        let starts = intervals.starts();
        let last = starts.last().copied().unwrap_or(0.0);
        let (min, max) = (self.min_ns as f64, self.max_ns as f64);
        let low = starts.get(index).copied().unwrap_or(last);
        let high = starts.get(index + 1).copied().unwrap_or(low.max(max));
        let narrowed = (low.max(min), high.min(max));
        if narrowed.0 <= narrowed.1 { narrowed } else { (low, high) }
    }

    /// Returns the histogram, which has the intervals `from`, with the intervals `to`. Calls in one that lies in several of these are
    /// divided as [`quantile_ns`](FunctionTimes::quantile_ns) takes them to be distributed. Their number stays.
    pub(crate) fn converted(&self, from: &Intervals, to: &Intervals) -> Vec<u64> {
        let starts = to.starts();
        let mut histogram = vec![0_u64; starts.len()];
        for (index, &calls) in self.histogram.iter().enumerate().filter(|&(_, &calls)| calls > 0) {
            let (low, high) = self.ends(from, index);
            let first = starts.partition_point(|&start| start <= low).saturating_sub(1);
            let mut given = 0_u64;
            for (at, count) in histogram.iter_mut().enumerate().skip(first) {
                let end = starts.get(at + 1).copied().filter(|&end| end < high);
                // All calls up to the end of this interval, or all that there are.
                let up_to =
                    end.map_or(calls, |end| (calls as f64 * (end - low) / (high - low)) as u64).min(calls);
                *count = count.saturating_add(up_to.saturating_sub(given));
                given = given.max(up_to);
                if end.is_none() {
                    break;
                }
            }
        }
        let len = histogram.iter().rposition(|&calls| calls > 0).map_or(0, |last| last + 1);
        histogram.truncate(len);
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: &[u64], intervals: &Intervals) -> FunctionTimes {
        let mut row = FunctionTimes { calls: durations.len() as u64, ..FunctionTimes::default() };
        row.histogram = vec![0; intervals.starts().len()];
        for &duration in durations {
            row.histogram[intervals.starts().partition_point(|&start| start <= duration as f64) - 1] += 1;
        }
        row.min_ns = durations.iter().copied().min().unwrap_or(0);
        row.max_ns = durations.iter().copied().max().unwrap_or(0);
        row
    }

    #[test]
    fn by_hand() {
        let powers = Intervals::default();
        let quantile = |durations: &[u64], q| of(durations, &powers).quantile_ns(&powers, q);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[777], 0.5), Some(777));
        assert_eq!(quantile(&[0, 0, 0], 0.99), Some(0));
        // One interval, 64..128, narrowed to 70..110: the middle of it.
        assert_eq!(quantile(&[70, 80, 100, 110], 0.5), Some(90));
        // Half of the calls are in 8..16, narrowed to 10..16, and the half ends there.
        assert_eq!(quantile(&[10, 10, 1000, 1000], 0.5), Some(16));
        // 0.99 of two calls is 0.98 of the way through the interval 512..1000.
        assert_eq!(quantile(&[10, 1000], 0.99), Some(990));
        assert_eq!(quantile(&[10, u64::MAX], 1.0), Some(u64::MAX));
    }

    /// The estimate is in the same interval as the true quantile, or at its end: with powers of two, and with four intervals for
    /// each of them.
    #[test]
    fn in_the_interval_of_the_true_quantile() {
        let quarters =
            (0..40_i32).flat_map(|n| (4..8).map(move |part| f64::from(part) * 2_f64.powi(n) / 3.0));
        let quarters = Intervals::new(std::iter::once(0.0).chain(quarters).collect()).expect("in order");
        let mut durations: Vec<u64> = (1..2000_u64).map(|i| i * i % 7919 + 3).collect();
        durations.sort_unstable();
        for (intervals, factor) in [(Intervals::default(), 2.0), (quarters, 1.25)] {
            let row = of(&durations, &intervals);
            for percent in 1..100 {
                let exact = durations[(durations.len() * percent).div_ceil(100) - 1] as f64;
                let estimate = row.quantile_ns(&intervals, percent as f64 / 100.0).expect("calls") as f64;
                let ratio = estimate / exact;
                assert!((1.0 / factor..=factor).contains(&ratio), "{percent} %: {estimate}, {exact}");
            }
        }
    }

    #[test]
    fn conversion_keeps_calls_and_their_places() {
        let powers = Intervals::default();
        let other = Intervals::new(vec![0.0, 10.0, 15.0, 100.0]).expect("in order");
        let row = of(&[11, 12, 13, 14, 200, 300], &other);
        // 10..15 is narrowed to 11..15, which lies in 8..16, and 100.. to 100..300: 28 of 200 ns in 64..128, 128 in 128..256.
        assert_eq!(row.converted(&other, &powers), [0, 0, 0, 4, 0, 0, 0, 1, 1]);
        assert_eq!(row.converted(&other, &other), [0, 4, 0, 2][..].to_vec());
        let many = of(&(0..1000).collect::<Vec<_>>(), &powers);
        let converted = many.converted(&powers, &other);
        assert_eq!(converted.iter().sum::<u64>(), 1000);
        assert!(converted.iter().zip([10_u64, 5, 85, 900]).all(|(a, b)| a.abs_diff(b) <= 1), "{converted:?}");
    }

    /// What a file says may contradict itself.
    #[test]
    fn contradictions() {
        let powers = Intervals::default();
        let row =
            FunctionTimes { min_ns: 9, max_ns: 3, histogram: vec![u64::MAX; 64], ..FunctionTimes::default() };
        assert!(row.quantile_ns(&powers, 0.5).is_some() && row.quantile_ns(&powers, f64::NAN).is_some());
        assert_eq!(row.converted(&powers, &powers).len(), 64);
        let long = FunctionTimes { histogram: vec![1; 64], ..FunctionTimes::default() };
        let few = Intervals::new(vec![5.0]).expect("one");
        assert!(long.quantile_ns(&few, 0.9).is_some());
        assert_eq!(long.converted(&few, &powers).iter().sum::<u64>(), 64);
    }
}
