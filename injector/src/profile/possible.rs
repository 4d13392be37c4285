//! What a process can have counted at most.
//!
//! The program can write to the file of its counters. What the time that has passed makes impossible was not counted, and is
//! left out; so numbers stay bounded, whatever the program has written.

use std::sync::OnceLock;
use std::time::Duration;

use crate::os::clock;
use crate::profile::ends::End;

/// More calls than a processor can make in a nanosecond: each takes two jumps.
const CALLS: u64 = 10;
/// What may be counted in no time, so that the accuracy of clocks does not matter.
const ANY: u64 = 1_000_000;

/// The greatest possible numbers of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Possible {
    /// The nanoseconds that have passed.
    pub(crate) time: u64,
    /// The samples that the agent can have taken.
    pub(crate) samples: u64,
    /// The calls, and whatever else happens no more often than calls.
    pub(crate) calls: u64,
    /// The executions of one basic block.
    pub(crate) blocks: u64,
}

impl Possible {
    /// Returns what a process can have counted that gprofinject has profiled up to its end, with so many samples per second
    /// of CPU time.
    pub(crate) fn of(end: End, rate: u32) -> Possible {
        let time = match end {
            // Another gprofinject has begun at an unknown time after the machine.
            End::Unknown => clock::nanoseconds(),
            End::Running(moment) | End::Noticed(moment) => {
                moment.nanoseconds.saturating_sub(clock::beginning().nanoseconds)
            }
        };
        Possible::within(Duration::from_nanos(time), processors(), rate)
    }

    fn within(time: Duration, processors: u64, rate: u32) -> Possible {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_add(u64::from(u32::MAX));
        let cpu = time.saturating_mul(processors.max(1));
        let calls = cpu.saturating_mul(CALLS).saturating_add(ANY);
        // Each thread's timer begins anew, so that short threads may have one sample each.
        let samples =
            (u128::from(cpu) * u128::from(rate) * 2 / 1_000_000_000).saturating_add(u128::from(ANY / 100));
        Possible { time, samples: u64::try_from(samples).unwrap_or(u64::MAX), calls, blocks: calls }
    }
}

/// Returns the number of processors that the machine can have.
fn processors() -> u64 {
    /// What Linux is built for at most.
    const MOST: u64 = 8192;
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u64>().ok());
        last.map_or(MOST, |last| last.saturating_add(1)).min(MOST)
    })
}

/// Returns the greatest count that can be kept so that the sum of all that are not greater is at most `most`.
pub(crate) fn greatest_kept(counts: impl Iterator<Item = u64>, most: u64) -> u64 {
    let mut counts: Vec<u64> = counts.collect();
    let sum = counts.iter().fold(0_u128, |sum, &count| sum + u128::from(count));
    if sum <= u128::from(most) {
        return u64::MAX;
    }
    counts.sort_unstable();
    let mut sum = 0_u128;
    let mut kept = 0;
    for same in counts.chunk_by(|one, other| one == other) {
        sum += u128::from(same[0]) * same.len() as u128;
        if sum > u128::from(most) {
            break;
        }
        kept = same[0];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_hour_permits() {
        let hour = Possible::within(Duration::from_secs(3600), 4, 1000);
        assert!((3600 * 4 * 1000..3600 * 4 * 3000).contains(&hour.samples), "{hour:?}");
        assert!(hour.calls > 3600 * 4 * 1_000_000_000 && hour.calls < u64::MAX / 1000);
        let endless = Possible::within(Duration::MAX, u64::MAX, u32::MAX);
        assert_eq!((endless.calls, endless.samples > u64::MAX / 2), (u64::MAX, true));
        assert!(processors() > 0);
    }

    #[test]
    fn the_greatest_counts_are_left_out() {
        let kept = |counts: &[u64], most| greatest_kept(counts.iter().copied(), most);
        assert_eq!(kept(&[1, 2, 3], 6), u64::MAX);
        assert_eq!(kept(&[1, 2, 3], 5), 2);
        assert_eq!(kept(&[u64::MAX, 5, u64::MAX, 7], 100), 7);
        assert_eq!(kept(&[200], 100), 0);
    }
}
