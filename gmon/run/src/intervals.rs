//! The intervals of durations in which calls are counted.

/// The largest number of intervals.
pub const INTERVALS_MAX: usize = 1024;

/// The intervals of the histograms of a run ([`FunctionTimes::histogram`](crate::FunctionTimes::histogram)), from the shortest durations to the longest.
///
/// Each one ends where the next one begins, and the last one has no end. The default has an interval for each power of two of
/// nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervals {
    /// Where they begin, in nanoseconds.
    starts: Vec<f64>,
}

impl Default for Intervals {
    fn default() -> Intervals {
        let starts = (0..64_i32).map(|n| if n == 0 { 0.0 } else { 2_f64.powi(n) });
        Intervals { starts: starts.collect() }
    }
}

impl Intervals {
    /// Returns the intervals that begin at these durations in nanoseconds, or `None` unless there are some, at most
    /// [`INTERVALS_MAX`], finite, not negative, and each longer than the one before.
    pub fn new(starts: Vec<f64>) -> Option<Intervals> {
        let is_in_order = starts.windows(2).all(|two| two[0] < two[1]);
        let is_finite = starts.iter().all(|start| start.is_finite() && *start >= 0.0);
        let is_valid = is_in_order && is_finite && (1..=INTERVALS_MAX).contains(&starts.len());
        is_valid.then_some(Intervals { starts })
    }

    /// Returns the intervals of sums of many runs, which do not depend on the clock of one of them: four of equal length
    /// for each power of two of nanoseconds.
    pub fn common() -> Intervals {
        let below_four = [0.0, 1.0, 2.0, 3.0];
        let quarters = |power: i32| (4..8).map(move |quarter| f64::from(quarter) * 2_f64.powi(power - 2));
        Intervals { starts: below_four.into_iter().chain((2..64).flat_map(quarters)).collect() }
    }

    /// Returns where the intervals begin, in nanoseconds.
    pub fn starts(&self) -> &[f64] {
        &self.starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_in_order() {
        for starts in [vec![], vec![1.0, 1.0], vec![-1.0], vec![f64::NAN], vec![0.0, f64::INFINITY]] {
            assert_eq!(Intervals::new(starts), None);
        }
        assert_eq!(Intervals::new((0..2000).map(f64::from).collect()), None);
        assert_eq!(Intervals::new(Intervals::common().starts), Some(Intervals::common()));
        assert_eq!(Intervals::common().starts[2..10], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0]);
        assert_eq!(Intervals::new(Intervals::default().starts), Some(Intervals::default()));
    }
}
