//! What programs and functions have cost themselves.

use crate::model::Recording;

/// The cost of a program or a function itself, without what it called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cost {
    /// The calls that were counted.
    pub calls: u64,
    /// The calls whose times were measured, and those of functions whose times were not. Where there was no room for measuring,
    /// they are fewer than `calls`.
    pub shown_calls: u64,
    /// The samples of CPU time, without those in gprofinject's own code.
    pub samples: u64,
    /// The measured time in nanoseconds; 0 if times were not measured.
    pub self_ns: u64,
}

/// The costs of each program and of each function of a recording, in their order there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Also the samples in no known file.
    pub programs: Vec<Cost>,
    /// In all programs and threads.
    pub functions: Vec<Cost>,
}

impl Cost {
    /// Adds another cost.
    pub fn add(&mut self, other: Cost) {
        self.calls = self.calls.saturating_add(other.calls);
        self.shown_calls = self.shown_calls.saturating_add(other.shown_calls);
        self.samples = self.samples.saturating_add(other.samples);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
    }

    fn of_samples(samples: u64) -> Cost {
        Cost { samples, ..Cost::default() }
    }
}

impl Costs {
    /// Returns the costs in a recording.
    pub fn of(recording: &Recording) -> Costs {
        let programs = recording.programs.iter().map(|program| Cost::of_samples(program.elsewhere)).collect();
        let mut costs = Costs { programs, functions: vec![Cost::default(); recording.functions.len()] };
        for hits in &recording.hits {
            costs.add(hits.program, hits.function, Cost::of_samples(hits.samples));
        }
        for calls in &recording.calls {
            costs.add(calls.program, calls.callee, Cost { calls: calls.calls, ..Cost::default() });
        }
        for calls in recording.unmeasured_calls() {
            costs.add(calls.program, calls.callee, Cost { shown_calls: calls.calls, ..Cost::default() });
        }
        for row in &recording.rows {
            let program = recording.threads.get(row.thread as usize).map_or(0, |thread| thread.program);
            let cost = Cost { shown_calls: row.calls, self_ns: row.self_ns, ..Cost::default() };
            costs.add(program, row.function, cost);
        }
        costs
    }

    fn add(&mut self, program: u32, function: u32, cost: Cost) {
        let of = [self.programs.get_mut(program as usize), self.functions.get_mut(function as usize)];
        of.into_iter().flatten().for_each(|sum| sum.add(cost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Calls, Clock, Function, FunctionTimes, Hits, Program, Thread};

    #[test]
    fn of_programs_and_of_functions() {
        let recording = Recording {
            programs: vec![Program { elsewhere: 3, ..Program::default() }, Program::default()],
            functions: vec![Function::default(), Function::default()],
            clock: Clock { ticks_per_second: 1e9, ..Clock::default() },
            threads: vec![Thread { program: 1, ..Thread::default() }],
            hits: vec![Hits { function: 1, samples: 4, ..Hits::default() }],
            calls: vec![Calls { callee: 1, calls: 7, ..Calls::default() }],
            rows: vec![FunctionTimes { calls: 2, self_ns: 50, ..FunctionTimes::default() }],
            ..Recording::default()
        };
        let cost = |calls, shown_calls, samples, self_ns| Cost { calls, shown_calls, samples, self_ns };
        let costs = Costs::of(&recording);
        assert_eq!(costs.programs, [cost(7, 7, 7, 0), cost(0, 2, 0, 50)]);
        assert_eq!(costs.functions, [cost(0, 2, 0, 50), cost(7, 7, 4, 0)]);
    }
}
