//! Work on a program's functions by several threads, where it has many.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Functions from which on a thread pays.
const MANY: usize = 2000;
/// Parts that their work is done in. The same on every machine, and so is the plan.
const PARTS: usize = 4;

/// How many parts the work on `count` functions is done in.
pub(crate) fn parts(count: usize) -> usize {
    if count > MANY { PARTS } else { 1 }
}

/// Does the work for each input, and answers in their order. Where no thread can be made it takes longer.
pub(crate) fn each<I: Send, T: Send>(inputs: Vec<I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    // The number of processors is not free to know: where there is one input it is not asked for.
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
