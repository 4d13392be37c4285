//! Distributes work on a program's functions among threads. This module knows nothing of programs, so every
//! layer may use it.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// The number of functions above which threads save more time than they cost.
const MANY: usize = 2000;
/// The number of parts into which such work is divided. It is the same on every machine, so that the plan is
/// the same as well.
const PARTS: usize = 4;

/// Returns the number of parts into which the work on `count` functions is divided.
pub(crate) fn parts(count: usize) -> usize {
    if count > MANY { PARTS } else { 1 }
}

/// Does the work for each input, and returns the results in the order of the inputs. The work runs on as many
/// threads as there are processors; if no thread can be created, all of it runs on the calling thread.
pub(crate) fn each<I: Send, T: Send>(inputs: Vec<I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    // Finding the number of processors takes a system call, which is unnecessary if there is only one input.
    let most = match inputs.len() {
        0 | 1 => 1,
        count => thread::available_parallelism().map_or(1, usize::from).min(count),
    };
    let queue = Mutex::new(inputs.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut done = Vec::new();
        while let Some((n, input)) = next() {
            done.push((n, work(input)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
        let others: Vec<_> = (1..most).map_while(spawn).collect();
        let mut done = worker();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|&(n, _)| n);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_inputs() {
        for count in [0, 1, 2, 100] {
            let expected: Vec<usize> = (0..count).map(|n| n * n).collect();
            assert_eq!(each((0..count).collect(), |n: usize| n * n), expected);
        }
        assert_eq!((parts(10), parts(100_000)), (1, PARTS));
    }
}
