//! What a recording says in a few numbers: where the time went, and what gprofinject took of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gmon_run::Recording;

/// The number of functions that are named.
pub(crate) const NAMED: usize = 5;
/// With fewer samples, shares are accidental.
const FEW: u64 = 20;

/// The least share of a function that is named.
const SEEN: f64 = 0.005;

/// The cost of a program or a function itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The samples of CPU time, without those in gprofinject's own code.
    pub(crate) samples: u64,
    /// The measured time; 0 if nothing was measured.
    pub(crate) self_ns: u64,
    pub(crate) calls: u64,
}

/// What the costs of a run are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    #[default]
    Calls,
    Samples,
    MeasuredTime,
}

/// A program of the run, in all of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramCost {
    pub(crate) name: String,
    pub(crate) processes: u32,
    pub(crate) cost: Cost,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FunctionCost {
    /// The file name of its module, if that is not the program that was started.
    pub(crate) module: Option<String>,
    /// The name in the symbol table, or its module and address if it has none.
    pub(crate) name: String,
    pub(crate) is_nameless: bool,
    pub(crate) cost: Cost,
}

/// Samples in code that is not hooked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unhooked {
    pub(crate) samples: u64,
    /// The module with the most of them, and their number there; an empty name if none of them is in a known module.
    pub(crate) most: (String, u64),
}

/// The few numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) by: By,
    pub(crate) all: Cost,
    /// The samples in gprofinject's own code, which are in no other number.
    pub(crate) own: u64,
    pub(crate) processes: u32,
    /// The programs that have run, the most expensive first.
    pub(crate) programs: Vec<ProgramCost>,
    /// The most expensive functions of all programs, at most [`NAMED`].
    pub(crate) functions: Vec<FunctionCost>,
    pub(crate) unhooked: Unhooked,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.samples = self.samples.saturating_add(other.samples);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.calls = self.calls.saturating_add(other.calls);
    }

    pub(crate) fn by(self, by: By) -> u64 {
        match by {
            By::Calls => self.calls,
            By::Samples => self.samples,
            By::MeasuredTime => self.self_ns,
        }
    }

    fn samples(samples: u64) -> Cost {
        Cost { samples, ..Cost::default() }
    }
}

/// Returns the last component of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The costs of each program and each function of a recording, in its order.
struct Costs {
    programs: Vec<Cost>,
    functions: Vec<Cost>,
    /// The samples in code that is not hooked, by the file name of the module.
    unhooked: BTreeMap<String, u64>,
}

impl Costs {
    fn of(run: &Recording) -> Costs {
        let elsewhere = run.programs.iter().map(|program| Cost::samples(program.elsewhere)).collect();
        let functions = vec![Cost::default(); run.functions.len()];
        let mut costs = Costs { programs: elsewhere, functions, unhooked: BTreeMap::new() };
        for hits in &run.hits {
            costs.add(hits.program, hits.function, Cost::samples(hits.samples));
            // Where no more than the name is known, nothing was planned.
            if hits.address == 0 {
                let function = run.functions.get(hits.function as usize);
                let module = function.and_then(|function| run.modules.get(function.module as usize));
                let name = module.map_or("", |module| file_name(&module.name));
                *costs.unhooked.entry(name.to_owned()).or_default() += hits.samples;
            }
        }
        for calls in &run.calls {
            costs.add(calls.program, calls.callee, Cost { calls: calls.calls, ..Cost::default() });
        }
        for row in &run.rows {
            let program = run.threads.get(row.thread as usize).map_or(0, |thread| thread.program);
            costs.add(program, row.function, Cost { self_ns: row.self_ns, ..Cost::default() });
        }
        costs
    }

    fn add(&mut self, program: u32, function: u32, cost: Cost) {
        let of = [self.programs.get_mut(program as usize), self.functions.get_mut(function as usize)];
        of.into_iter().flatten().for_each(|sum| sum.add(cost));
    }

    fn unhooked(&self, elsewhere: u64) -> Unhooked {
        let samples = self.unhooked.values().fold(elsewhere, |sum, samples| sum.saturating_add(*samples));
        let most = self.unhooked.iter().max_by_key(|&(_, samples)| *samples);
        Unhooked { samples, most: most.map(|(name, samples)| (name.clone(), *samples)).unwrap_or_default() }
    }
}

impl Digest {
    /// Returns what a recording says. `is_result` tells whether its measured times are wanted.
    pub(crate) fn of(run: &Recording, is_result: bool) -> Digest {
        let costs = Costs::of(run);
        let mut all = Cost::default();
        costs.programs.iter().for_each(|cost| all.add(*cost));
        let by = match all {
            _ if is_result && all.self_ns > 0 => By::MeasuredTime,
            _ if all.samples >= FEW || all.calls == 0 => By::Samples,
            _ => By::Calls,
        };
        let sum =
            |part: fn(&gmon_run::Program) -> u64| run.programs.iter().map(part).fold(0, u64::saturating_add);
        Digest {
            by,
            all,
            own: sum(|program| program.overhead),
            processes: sum(|program| program.processes.into()) as u32,
            programs: programs(run, &costs, by),
            functions: functions(run, &costs, all, by),
            unhooked: costs.unhooked(sum(|program| program.elsewhere)),
        }
    }
}

/// Returns the costs of programs by name: with --per-process, there is an entry for each process.
fn programs(run: &Recording, costs: &Costs, by: By) -> Vec<ProgramCost> {
    let mut all: Vec<ProgramCost> = Vec::new();
    for (program, cost) in run.programs.iter().zip(&costs.programs).filter(|(p, _)| p.processes > 0) {
        match all.iter_mut().find(|known| known.name == program.name) {
            Some(known) => {
                known.processes = known.processes.saturating_add(program.processes);
                known.cost.add(*cost);
            }
            None => all.push(ProgramCost {
                name: program.name.clone(),
                processes: program.processes,
                cost: *cost,
            }),
        }
    }
    all.sort_by_key(|program| Reverse(program.cost.by(by)));
    all
}

/// Returns the most expensive functions.
fn functions(run: &Recording, costs: &Costs, all: Cost, by: By) -> Vec<FunctionCost> {
    let started = run.programs.first().map(|program| program.module);
    let mut order: Vec<usize> = (0..costs.functions.len()).collect();
    order.retain(|&index| costs.functions[index].by(by) > 0);
    order.sort_by_key(|&index| Reverse((costs.functions[index].by(by), costs.functions[index].calls)));
    // A share that would be printed as 0 % says nothing, unless it is the greatest.
    let is_seen =
        |index: usize| by == By::Calls || costs.functions[index].by(by) as f64 >= SEEN * all.by(by) as f64;
    let first = order.first().copied();
    let seen = order.into_iter().take_while(|&index| Some(index) == first || is_seen(index));
    let named = seen.take(NAMED).filter_map(|index| {
        let function = run.functions.get(index)?;
        let module = run.modules.get(function.module as usize).map_or("", |module| file_name(&module.name));
        let is_started = Some(function.module) == started;
        let is_nameless = function.name.is_empty();
        let name = match is_nameless {
            true => format!("{module}+{:#x}", function.address),
            false => function.name.clone(),
        };
        let module = (!is_started && !is_nameless && !module.is_empty()).then(|| module.to_owned());
        Some(FunctionCost { module, name, is_nameless, cost: costs.functions[index] })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use gmon_run::{Calls, Function, FunctionTimes, Hits, Module, Program, Thread};

    use super::*;

    fn run() -> Recording {
        let module = |name: &str| Module { name: name.to_owned(), ..Module::default() };
        let function = |name: &str, module, address| Function {
            name: name.to_owned(),
            module,
            address,
            ..Function::default()
        };
        let program = |name: &str, module, processes, elsewhere, overhead| Program {
            name: name.to_owned(),
            module,
            processes,
            pid: 0,
            elsewhere,
            overhead,
        };
        let hits = |program, function, address, samples| Hits { program, function, address, samples };
        let calls = |program, callee, calls| Calls { program, callee, calls, ..Calls::default() };
        Recording {
            programs: vec![
                program("sh", 0, 1, 2, 1),
                program("cc1", 1, 3, 0, 10),
                program("cc1", 1, 2, 0, 5),
                program("idle", 1, 0, 0, 0),
            ],
            modules: vec![module("/bin/sh"), module("/usr/lib/cc1"), module("libc.so.6")],
            functions: vec![
                function("main", 0, 16),
                function("parse", 1, 16),
                function("", 1, 32),
                function("memcpy", 2, 0),
            ],
            hits: vec![
                hits(0, 0, 17, 1),
                hits(1, 1, 18, 40),
                hits(2, 1, 20, 7),
                hits(2, 2, 32, 9),
                hits(1, 3, 0, 8),
            ],
            calls: vec![calls(0, 0, 1), calls(1, 1, 1000), calls(2, 2, 50)],
            ..Recording::default()
        }
    }

    #[test]
    fn all_programs_of_a_run_are_in_it() {
        let digest = Digest::of(&run(), false);
        assert_eq!((digest.by, digest.own, digest.processes), (By::Samples, 16, 6));
        assert_eq!((digest.all.samples, digest.all.calls), (2 + 1 + 40 + 7 + 9 + 8, 1051));
        let programs: Vec<_> =
            digest.programs.iter().map(|p| (p.name.as_str(), p.processes, p.cost.samples)).collect();
        assert_eq!(programs, [("cc1", 5, 64), ("sh", 1, 3)]);
        let functions: Vec<_> = digest
            .functions
            .iter()
            .map(|f| (f.module.as_deref().unwrap_or(""), f.name.as_str(), f.cost.samples, f.cost.calls))
            .collect();
        assert_eq!(
            functions,
            [
                ("cc1", "parse", 47, 1000),
                ("", "cc1+0x20", 9, 50),
                ("libc.so.6", "memcpy", 8, 0),
                ("", "main", 1, 1)
            ]
        );
        assert_eq!(digest.unhooked, Unhooked { samples: 10, most: ("libc.so.6".to_owned(), 8) });
    }

    #[test]
    fn few_samples_are_no_shares_and_measured_times_are_better() {
        let mut few = run();
        few.hits.retain(|hits| hits.samples < 9);
        assert_eq!(Digest::of(&few, false).by, By::Calls);
        few.threads = vec![Thread { program: 1, ..Thread::default() }];
        few.rows = vec![FunctionTimes { function: 2, self_ns: 70, ..FunctionTimes::default() }];
        assert_eq!(Digest::of(&few, false).by, By::Calls);
        let digest = Digest::of(&few, true);
        assert_eq!((digest.by, digest.all.self_ns), (By::MeasuredTime, 70));
        assert_eq!((digest.programs[0].cost.self_ns, digest.functions[0].name.as_str()), (70, "cc1+0x20"));
        assert_eq!(Digest::of(&Recording::default(), true), Digest { by: By::Samples, ..Digest::default() });
    }
}
