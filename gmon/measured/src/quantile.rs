//! Quantiles of durations, from the histogram of powers of two.

use crate::model::FunctionTimes;

impl FunctionTimes {
    /// Estimates the duration in nanoseconds that the part `q` (0.5: half) of the closed calls does not exceed;
    /// `None` if no call was closed.
    ///
    /// The histogram has an interval for each power of two. Within one, durations are taken to be evenly
    /// distributed between its ends, or between the shortest and the longest duration where these lie within. So
    /// the estimate is exact if all calls took equally long, and is off by less than a factor of two otherwise.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let total: u128 = self.histogram.iter().map(|&calls| u128::from(calls)).sum();
        if total == 0 {
            return None;
        }
        let wanted = q.clamp(0.0, 1.0) * total as f64;
        let mut before = 0.0;
        let mut estimate = 0.0;
        for (index, &calls) in self.histogram.iter().enumerate().filter(|&(_, &calls)| calls > 0) {
            let (low, high) = self.interval(index);
            let within = ((wanted - before) / calls as f64).clamp(0.0, 1.0);
            estimate = low + within * (high - low);
            before += calls as f64;
            if before >= wanted {
                break;
            }
        }
        let estimate = estimate.round() as u64;
        Some(if self.min_ns <= self.max_ns { estimate.clamp(self.min_ns, self.max_ns) } else { estimate })
    }

    /// Returns the ends of an interval of the histogram, narrowed to the durations that occurred.
    fn interval(&self, index: usize) -> (f64, f64) {
        let low = if index == 0 { 0.0 } else { (index as f64).exp2() };
        let high = (index as f64 + 1.0).exp2();
        let (min, max) = (self.min_ns as f64, self.max_ns as f64);
        let narrowed = (low.max(min), high.min(max));
        if narrowed.0 <= narrowed.1 { narrowed } else { (low, high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: &[u64]) -> FunctionTimes {
        let mut row = FunctionTimes { calls: durations.len() as u64, ..FunctionTimes::default() };
        row.histogram = vec![0; 64];
        for &duration in durations {
            row.histogram[duration.max(1).ilog2() as usize] += 1;
        }
        row.min_ns = durations.iter().copied().min().unwrap_or(0);
        row.max_ns = durations.iter().copied().max().unwrap_or(0);
        row
    }

    #[test]
    fn by_hand() {
        assert_eq!(of(&[]).quantile_ns(0.5), None);
        assert_eq!(of(&[777]).quantile_ns(0.5), Some(777));
        assert_eq!(of(&[0, 0, 0]).quantile_ns(0.99), Some(0));
        // One interval, 64..128, narrowed to 70..110: the middle of it.
        assert_eq!(of(&[70, 80, 100, 110]).quantile_ns(0.5), Some(90));
        // Half of the calls are in 8..16, narrowed to 10..16, and the half ends there.
        assert_eq!(of(&[10, 10, 1000, 1000]).quantile_ns(0.5), Some(16));
        // 0.99 of two calls is 0.98 of the way through the interval 512..1000.
        assert_eq!(of(&[10, 1000]).quantile_ns(0.99), Some(990));
        assert_eq!(of(&[10, u64::MAX]).quantile_ns(1.0), Some(u64::MAX));
    }

    /// The estimate is in the same interval as the true quantile, or at its end.
    #[test]
    fn less_than_a_factor_of_two() {
        let mut durations: Vec<u64> = (1..2000_u64).map(|i| i * i % 7919 + 3).collect();
        let row = of(&durations);
        durations.sort_unstable();
        for percent in 1..100 {
            let exact = durations[(durations.len() * percent).div_ceil(100) - 1] as f64;
            let estimate = row.quantile_ns(percent as f64 / 100.0).expect("calls") as f64;
            assert!((0.5..=2.0).contains(&(estimate / exact)), "{percent} %: {estimate}, {exact}");
        }
    }

    /// What a file says may contradict itself.
    #[test]
    fn contradictions() {
        let row = FunctionTimes { min_ns: 9, max_ns: 3, histogram: vec![u64::MAX; 64], ..of(&[]) };
        assert!(row.quantile_ns(0.5).is_some() && row.quantile_ns(f64::NAN).is_some());
    }
}
