//! What programs and functions have cost themselves.

use std::cmp::Reverse;
use std::collections::HashMap;

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

/// What costs are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Calls,
    Samples,
    MeasuredTime,
}

impl By {
    /// Returns the part of a cost by which it is compared.
    pub fn of(self, cost: Cost) -> u64 {
        match self {
            By::Calls => cost.calls,
            By::Samples => cost.samples,
            By::MeasuredTime => cost.self_ns,
        }
    }

    /// Returns what the costs of a run are compared by, of which `all` is the sum: time, as long as it is not accidental. `is_measured`
    /// tells whether measured times are wanted.
    pub fn best(all: Cost, is_measured: bool) -> By {
        /// With fewer samples, shares are accidental.
        const FEW: u64 = 20;
        match all {
            _ if is_measured && all.self_ns > 0 => By::MeasuredTime,
            _ if all.samples >= FEW || all.calls == 0 => By::Samples,
            _ => By::Calls,
        }
    }
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
    /// Returns the sum over all programs.
    pub fn all(&self) -> Cost {
        let mut all = Cost::default();
        self.programs.iter().for_each(|cost| all.add(*cost));
        all
    }

    /// Returns the names of the programs that ran, each once with the cost of all entries of that name, the most expensive first. With
    /// --per-process, there is an entry for each process.
    pub fn by_name<'r>(&self, recording: &'r Recording, by: By) -> Vec<(&'r str, Cost)> {
        let mut index: HashMap<&str, usize> = HashMap::new();
        let mut all: Vec<(&str, Cost)> = Vec::new();
        let ran = recording.programs.iter().zip(&self.programs).filter(|(program, _)| program.processes > 0);
        for (program, cost) in ran {
            let at = *index.entry(&program.name).or_insert(all.len());
            match all.get_mut(at) {
                Some((_, known)) => known.add(*cost),
                None => all.push((&program.name, *cost)),
            }
        }
        all.sort_by_key(|(_, cost)| Reverse(by.of(*cost)));
        all
    }

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

    #[test]
    fn the_program_that_did_the_work_is_the_first_by_name() {
        let program = |name: &str, elsewhere| Program {
            name: name.to_owned(),
            processes: 1,
            elsewhere,
            ..Program::default()
        };
        let mut recording = Recording {
            programs: vec![program("sh", 25), program("cc1", 20), program("as", 30), program("cc1", 15)],
            ..Recording::default()
        };
        let names = |recording: &Recording| {
            let costs = Costs::of(recording);
            let by = By::best(costs.all(), false);
            let named = costs.by_name(recording, by).into_iter();
            named.map(|(name, cost)| (name.to_owned(), by.of(cost))).collect::<Vec<_>>()
        };
        let expected = [("cc1", 35), ("as", 30), ("sh", 25)].map(|(name, cost)| (name.to_owned(), cost));
        assert_eq!(names(&recording), expected);
        // Of few samples, shares are accidental; and what did not run is not named.
        recording.programs.iter_mut().for_each(|program| program.elsewhere = 1);
        recording.programs[1].processes = 0;
        recording.functions = vec![Function::default()];
        recording.calls = vec![Calls { program: 2, calls: 7, ..Calls::default() }];
        assert_eq!(names(&recording)[0], ("as".to_owned(), 7));
    }
}
