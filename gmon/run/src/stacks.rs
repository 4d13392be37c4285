//! The stacks of all samples, also of those whose stacks are not known.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Recording, Stack};

impl Recording {
    /// Whether the stacks of samples say what inclusive times are: there are some, and no times were measured, which say more.
    pub fn has_sampled_stacks(&self) -> bool {
        let is_sampled = self.sample_period_ns > 0 && !self.is_measured();
        is_sampled && self.stacks.iter().any(|stack| stack.samples > 0)
    }

    /// Returns the [stacks](Recording::stacks) of all samples in functions: those whose stacks are not known are below callers that are not
    /// known. In each program, a function has as many samples in all of its nodes as it has [hits](Recording::hits), also if a file says
    /// otherwise. Parents come before their children.
    pub fn whole_stacks(&self) -> Vec<Stack> {
        let mut left = self.samples_by_function();
        let mut stacks = self.stacks.clone();
        for stack in &mut stacks {
            let left = stack.function.and_then(|function| left.get_mut(&(stack.program, function)));
            stack.samples = left.map_or(0, |left| {
                let samples = stack.samples.min(*left);
                *left -= samples;
                samples
            });
        }
        let mut unknown: HashMap<u32, u32> = HashMap::new();
        for ((program, function), samples) in left.into_iter().filter(|&(_, samples)| samples > 0) {
            let parent = *unknown.entry(program).or_insert_with(|| {
                stacks.push(Stack { program, ..Stack::default() });
                stacks.len() as u32 - 1
            });
            stacks.push(Stack { program, parent: Some(parent), function: Some(function), samples });
        }
        stacks
    }

    /// Returns the samples in each function of each program.
    pub(crate) fn samples_by_function(&self) -> BTreeMap<(u32, u32), u64> {
        let mut sums: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for hits in &self.hits {
            let sum = sums.entry((hits.program, hits.function)).or_default();
            *sum = sum.saturating_add(hits.samples);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Clock, FunctionTimes, Hits};

    fn stack(program: u32, parent: Option<u32>, function: Option<u32>, samples: u64) -> Stack {
        Stack { program, parent, function, samples }
    }

    /// Program 0 has seven samples in function 1, five of them with a stack, and one in function 2; program 1 has two in function 1.
    fn run() -> Recording {
        let hits = |program, function, samples| Hits { program, function, samples, address: 0 };
        Recording {
            sample_period_ns: 10,
            hits: vec![hits(0, 1, 3), hits(0, 1, 4), hits(0, 2, 1), hits(1, 1, 2)],
            stacks: vec![
                stack(0, None, Some(0), 0),
                stack(0, Some(0), Some(1), 3),
                stack(1, None, None, 0),
                stack(0, Some(1), Some(1), 2),
                stack(1, Some(2), Some(1), 2),
            ],
            ..Recording::default()
        }
    }

    #[test]
    fn samples_without_a_stack() {
        let run = run();
        let whole = run.whole_stacks();
        assert_eq!(whole[..5], run.stacks);
        let unknown = [stack(0, None, None, 0), stack(0, Some(5), Some(1), 2), stack(0, Some(5), Some(2), 1)];
        assert_eq!(whole[5..], unknown);
        assert!(run.has_sampled_stacks());
    }

    /// A file may have more samples in its stacks than by address, and some of callers that are not known.
    #[test]
    fn no_more_samples_than_hits() {
        let mut run = run();
        run.stacks[1].samples = 6;
        run.stacks[2].samples = u64::MAX;
        run.stacks[3].samples = u64::MAX;
        let samples: Vec<u64> = run.whole_stacks().iter().map(|stack| stack.samples).collect();
        assert_eq!(samples, [0, 6, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn measured_times_say_more() {
        let mut run = run();
        run.clock = Clock { ticks_per_second: 1e9, ..Clock::default() };
        run.rows.push(FunctionTimes::default());
        assert!(!run.has_sampled_stacks());
        run.rows.clear();
        assert!(run.has_sampled_stacks());
        run.stacks.iter_mut().for_each(|stack| stack.samples = 0);
        assert!(!run.has_sampled_stacks());
    }
}
