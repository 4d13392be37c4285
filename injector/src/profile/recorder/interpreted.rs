//! Samples in an interpreter's own code, which are those of the functions that it executes.

use gmon_run::{Hits, Recording};

use crate::profile::model::Profile;

/// Adds the hits of the functions that an interpreter has executed in a program, and takes as many from those of the interpreter. The program's hits are those from an
/// index on, and `frames` has the functions of its stacks by their indexes in the recording.
pub(super) fn add_hits(
    recording: &mut Recording,
    first: usize,
    program: u32,
    profile: &Profile,
    frames: &[u32],
) {
    let mut sums = vec![0_u64; recording.functions.len()];
    for ((interpreter, function), samples) in profile.stacks.interpreted() {
        let of = |frame: u32| frames.get(frame as usize).copied();
        let Some((interpreter, function)) = of(interpreter).zip(of(function)) else { continue };
        let hits = recording.hits.iter_mut().skip(first).filter(|hits| hits.function == interpreter);
        // There may be fewer hits than stacks: the counts may have been set to zero meanwhile.
        let taken = take(hits, samples);
        if let Some(sum) = sums.get_mut(function as usize) {
            *sum = sum.saturating_add(taken);
        }
    }
    for (function, samples) in (0..).zip(sums).filter(|&(_, samples)| samples > 0) {
        recording.hits.push(Hits { program, function, address: 0, samples });
    }
}

/// Takes samples from hits, from each in proportion to what it has. Returns how many were taken: no more than there are.
fn take<'h>(hits: impl Iterator<Item = &'h mut Hits>, samples: u64) -> u64 {
    let hits: Vec<&mut Hits> = hits.collect();
    let sum = hits.iter().fold(0_u128, |sum, hits| sum + u128::from(hits.samples));
    let taken = u128::from(samples).min(sum);
    let (mut before, mut done) = (0, 0);
    for hits in hits {
        // The parts are laid end to end, so that they are the whole together.
        before += u128::from(hits.samples);
        let end = (before * taken).checked_div(sum).unwrap_or(0);
        hits.samples = hits.samples.saturating_sub((end - done) as u64);
        done = end;
    }
    taken as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_in_proportion() {
        let of =
            |samples: &[u64]| samples.iter().map(|&samples| Hits { samples, ..Hits::default() }).collect();
        for (before, taken, after) in [
            (&[10, 0, 30][..], 20, [5, 0, 15]),
            (&[1, 1, 1], 2, [1, 0, 0]),
            (&[1, 2, 3], 6, [0, 0, 0]),
            (&[1, 2, 3], u64::MAX, [0, 0, 0]),
            (&[u64::MAX, u64::MAX, 2], 2, [u64::MAX, u64::MAX - 1, 1]),
            (&[0, 0, 0], 5, [0, 0, 0]),
        ] {
            let mut hits: Vec<Hits> = of(before);
            let sum = before.iter().fold(0_u64, |sum, &samples| sum.saturating_add(samples));
            assert_eq!(take(hits.iter_mut(), taken), taken.min(sum), "{before:?}");
            let left: Vec<u64> = hits.iter().map(|hits| hits.samples).collect();
            assert_eq!(left, after, "{before:?}");
        }
    }
}
