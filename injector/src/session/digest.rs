//! What a recording says in a few numbers: where the time went, and what gprofinject took of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use gmon_run::{By, Cost, Costs, Module, Recording};

/// The number of functions that are named.
pub(crate) const NAMED: usize = 5;
/// The least share of a function that is named.
const SEEN: f64 = 0.005;

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
    /// The file name of its module, if that is not the program that was started, or the function has no name.
    pub(crate) module: Option<String>,
    /// The name in the symbol table, or a plus sign and its link address if it has none.
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
    /// Whether any basic blocks were counted.
    pub(crate) has_blocks: bool,
    /// Whether any call paths were measured.
    pub(crate) has_paths: bool,
    /// Whether values of arguments or results were kept.
    pub(crate) has_values: bool,
}

/// Returns the samples in code that is not hooked, of which `places` has those in files, by the index of the module.
fn unhooked(run: &Recording, places: &BTreeMap<u32, u64>) -> Unhooked {
    let elsewhere = run.programs.iter().fold(0, |sum: u64, program| sum.saturating_add(program.elsewhere));
    let samples = places.values().fold(elsewhere, |sum, samples| sum.saturating_add(*samples));
    let most = places.iter().max_by_key(|&(_, samples)| samples);
    let name = |index: u32| run.modules.get(index as usize).map_or("", Module::name);
    Unhooked {
        samples,
        most: most.map(|(&index, &samples)| (name(index).to_owned(), samples)).unwrap_or_default(),
    }
}

impl Digest {
    /// Returns what a recording says. `is_result` tells whether its measured times are wanted, and `places` has the samples in code that
    /// is not hooked, by the index of the module.
    pub(crate) fn of(run: &Recording, places: &BTreeMap<u32, u64>, is_result: bool) -> Digest {
        let costs = Costs::of(run);
        let all = costs.all();
        let by = By::best(all, is_result);
        let sum =
            |part: fn(&gmon_run::Program) -> u64| run.programs.iter().map(part).fold(0, u64::saturating_add);
        Digest {
            by,
            all,
            own: sum(|program| program.overhead),
            processes: processes(run, None),
            programs: programs(run, &costs, by),
            functions: functions(run, &costs, all, by),
            unhooked: unhooked(run, places),
            has_blocks: !run.blocks.is_empty(),
            has_paths: !run.nodes.is_empty(),
            has_values: !run.values.is_empty(),
        }
    }
}

/// Returns the number of processes, of all programs or of those with this name. One that executes other programs is one process, although
/// the recording has it with each of them.
fn processes(run: &Recording, name: Option<&str>) -> u32 {
    let is_of = |program: &gmon_run::Program| name.is_none_or(|name| program.name == name);
    let programs = run.programs.iter().filter(|program| is_of(program));
    let most = programs.fold(0_u32, |sum, program| sum.saturating_add(program.processes));
    let of = |process: &&gmon_run::Process| run.programs.get(process.program as usize).is_some_and(is_of);
    let numbers: HashSet<u32> = run.processes.iter().filter(of).map(|process| process.pid).collect();
    match run.processes_left_out == 0 && !numbers.is_empty() {
        true => numbers.len() as u32,
        false => most,
    }
}

/// Returns the costs of programs by name.
fn programs(run: &Recording, costs: &Costs, by: By) -> Vec<ProgramCost> {
    let programs = costs.by_name(run, by).into_iter();
    programs
        .map(|(name, cost)| ProgramCost {
            name: name.to_owned(),
            processes: processes(run, Some(name)),
            cost,
        })
        .collect()
}

/// Returns the most expensive functions.
fn functions(run: &Recording, costs: &Costs, all: Cost, by: By) -> Vec<FunctionCost> {
    let started = run.programs.first().map(|program| program.module);
    let mut order: Vec<usize> = (0..costs.functions.len()).collect();
    order.retain(|&index| by.of(costs.functions[index]) > 0);
    order.sort_by_key(|&index| Reverse((by.of(costs.functions[index]), costs.functions[index].calls)));
    // A share that would be printed as 0 % says nothing, unless it is the greatest.
    let is_seen =
        |index: usize| by == By::Calls || by.of(costs.functions[index]) as f64 >= SEEN * by.of(all) as f64;
    let first = order.first().copied();
    let seen = order.into_iter().take_while(|&index| Some(index) == first || is_seen(index));
    let named = seen.take(NAMED).filter_map(|index| {
        let function = run.functions.get(index)?;
        let module = run.modules.get(function.module as usize).map_or("", Module::name);
        let is_started = Some(function.module) == started;
        let is_nameless = function.name.is_empty();
        let name = match is_nameless {
            true => format!("+{:#x}", function.address),
            false => function.name.clone(),
        };
        let module = ((!is_started || is_nameless) && !module.is_empty()).then(|| module.to_owned());
        Some(FunctionCost { module, name, is_nameless, cost: costs.functions[index] })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use gmon_run::{Calls, Function, FunctionTimes, Hits, Process, Program, Thread};

    use super::*;

    fn run() -> Recording {
        let module = |name: &str| Module { path: name.to_owned(), ..Module::default() };
        let function = |name: &str, module, address| Function {
            name: name.to_owned(),
            module,
            address,
            ..Function::default()
        };
        let program = |name: &str, module, processes, elsewhere, overhead| Program {
            name: name.to_owned(),
            label: String::new(),
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

    /// The samples of the C library's functions.
    fn places() -> BTreeMap<u32, u64> {
        BTreeMap::from([(2, 8)])
    }

    #[test]
    fn all_programs_of_a_run_are_in_it() {
        let digest = Digest::of(&run(), &places(), false);
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
                ("cc1", "+0x20", 9, 50),
                ("libc.so.6", "memcpy", 8, 0),
                ("", "main", 1, 1)
            ]
        );
        assert_eq!(digest.unhooked, Unhooked { samples: 10, most: ("libc.so.6".to_owned(), 8) });
    }

    #[test]
    fn a_process_that_executes_another_program_is_one() {
        let mut two = run();
        let process = |program, pid| Process { program, pid, ..Process::default() };
        two.processes = vec![process(0, 7), process(1, 7), process(1, 8)];
        let digest = Digest::of(&two, &places(), false);
        assert_eq!((digest.processes, digest.programs[0].processes), (2, 2));
        two.processes_left_out = 1;
        assert_eq!(Digest::of(&two, &places(), false).processes, 6);
    }

    #[test]
    fn few_samples_are_no_shares_and_measured_times_are_better() {
        let mut few = run();
        few.hits.retain(|hits| hits.samples < 9);
        assert_eq!(Digest::of(&few, &places(), false).by, By::Calls);
        few.threads = vec![Thread { program: 1, ..Thread::default() }];
        few.rows = vec![FunctionTimes { function: 2, self_ns: 70, ..FunctionTimes::default() }];
        assert_eq!(Digest::of(&few, &places(), false).by, By::Calls);
        let digest = Digest::of(&few, &places(), true);
        assert_eq!((digest.by, digest.all.self_ns), (By::MeasuredTime, 70));
        assert_eq!((digest.programs[0].cost.self_ns, digest.functions[0].name.as_str()), (70, "+0x20"));
        assert_eq!(
            Digest::of(&Recording::default(), &BTreeMap::new(), true),
            Digest { by: By::Samples, ..Digest::default() }
        );
    }
}
