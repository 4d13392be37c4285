//! Samples in an interpreter's own code, which are those of the functions that it executes.

use gmon_run::{Hits, Recording};

use crate::profile::model::Profile;
use crate::profile::stacks::Frame;

/// Adds the hits of a program's Python functions and takes as many from those of the interpreter. The program's hits are those from an
/// index on, and `frames` has the functions of its stacks by their indexes in the recording.
pub(super) fn add_hits(
    recording: &mut Recording,
    first: usize,
    program: u32,
    profile: &Profile,
    frames: &[u32],
) {
    let mut left = 0_u64;
    for (frame, samples) in profile.stacks.interpreted() {
        let Some(&function) = frames.get(frame as usize) else { continue };
        let hits = recording.hits.iter_mut().skip(first).filter(|hits| hits.function == function);
        left = left.saturating_add(take(hits, samples));
    }
    let mut samples = vec![0_u64; profile.stacks.frames().len()];
    for node in profile.stacks.nodes() {
        if let Some(sum) = node.frame.and_then(|frame| samples.get_mut(frame as usize)) {
            *sum = sum.saturating_add(node.samples);
        }
    }
    // There may be fewer hits than stacks: the counts may have been set to zero meanwhile.
    for ((frame, &function), samples) in profile.stacks.frames().iter().zip(frames).zip(samples) {
        let samples = samples.min(left);
        if matches!(frame, Frame::Python(_)) && samples > 0 {
            left -= samples;
            recording.hits.push(Hits { program, function, address: 0, samples });
        }
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
