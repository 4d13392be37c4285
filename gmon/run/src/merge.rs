//! The sum of several runs.

use std::collections::HashMap;

use crate::lines::LineSamples;
use crate::model::{Block, Calls, ClockSource, Function, Hits, Module, Origin, Program, Recording, Stack};
use crate::values::{self, Values};

/// The reason why two runs cannot be summed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error(
        "a sample for each {} of CPU time, and for each {} in the runs before it; sum these apart, or record all at one --rate: without it, \
         --times and --paths have another one",
        period(*.other), period(*.first)
    )]
    SamplePeriod { first: u64, other: u64 },
    #[error("one run has counted instructions in place of times, and the other has measured times")]
    Clocks,
    #[error("more than 4 billion {0} in all")]
    TooMany(&'static str),
    #[error("the run of {started} UTC on {host} is in the sum already")]
    SameRun { host: String, started: String },
}

/// Returns the CPU time of a sample in words.
fn period(ns: u64) -> String {
    match ns {
        ns if ns % 1000 != 0 => format!("{ns} ns"),
        ns => format!("{} ms", ns as f64 / 1e6),
    }
}

impl Recording {
    /// Adds another run. Its threads, with their times, are appended, and its functions are those of this run that
    /// have the same address in the same build of the same module. A module without a build-id is known by its
    /// path.
    ///
    /// Histograms with other intervals are converted. The duration becomes the time from the beginning of the first run to the end of the last one. The clock is
    /// that of the first run, with the larger of both errors.
    ///
    /// # Errors
    /// The runs were sampled at different rates, have times of different kinds, are the same, or are too large together. Then this run is as before.
    ///
    /// # Panics
    /// If [`Recording::check`] returns an error for the other run.
    pub fn merge(&mut self, other: Recording) -> Result<(), MergeError> {
        let period = self.sample_period_ns;
        self.agree_on_runs(&other)?;
        self.agree_on_clock(&other)?;
        self.agree_on_period(&other)?;
        for (what, lengths) in [
            ("functions", (self.functions.len(), other.functions.len())),
            ("threads", (self.threads.len(), other.threads.len())),
            ("nodes", (self.nodes.len(), other.nodes.len())),
            ("sampled stacks", (self.stacks.len(), other.stacks.len())),
            ("nodes of slow calls", (self.slow.nodes.len(), other.slow.nodes.len())),
        ] {
            if lengths.0 + lengths.1 >= u32::MAX as usize {
                self.sample_period_ns = period;
                return Err(MergeError::TooMany(what));
            }
        }
        if self.modules.is_empty() {
            self.clock = other.clock;
            self.intervals.clone_from(&other.intervals);
        }
        self.clock.error_ns = self.clock.error_ns.max(other.clock.error_ns);
        self.clock.counted_below_ns = self.clock.counted_below_ns.max(other.clock.counted_below_ns);
        self.extend_time(&other);
        self.extend_runs(&other);

        let modules = self.merge_modules(other.modules);
        let functions = self.merge_functions(other.functions, &modules);
        let programs = self.merge_programs(other.programs, &modules);
        for mut process in other.processes {
            process.program = programs[process.program as usize];
            self.add_process(process);
        }
        self.processes_left_out = self.processes_left_out.saturating_add(other.processes_left_out);
        self.calls.extend(other.calls.into_iter().map(|calls| Calls {
            program: programs[calls.program as usize],
            caller: calls.caller.map(|caller| functions[caller as usize]),
            callee: functions[calls.callee as usize],
            ..calls
        }));
        self.hits.extend(other.hits.into_iter().map(|hits| Hits {
            program: programs[hits.program as usize],
            function: functions[hits.function as usize],
            ..hits
        }));
        let stack = self.stacks.len() as u32;
        self.stacks.extend(other.stacks.into_iter().map(|at| Stack {
            program: programs[at.program as usize],
            parent: at.parent.map(|parent| parent + stack),
            function: at.function.map(|function| functions[function as usize]),
            ..at
        }));
        self.lines.extend(other.lines.into_iter().map(|line| LineSamples {
            program: programs[line.program as usize],
            function: functions[line.function as usize],
            ..line
        }));
        self.blocks.extend(other.blocks.into_iter().map(|block| Block {
            program: programs[block.program as usize],
            module: modules[block.module as usize],
            ..block
        }));
        let thread = self.threads.len() as u32;
        let node = self.nodes.len() as u32;
        self.threads.extend(other.threads.into_iter().map(|mut thread| {
            thread.program = programs[thread.program as usize];
            thread
        }));
        let is_alike = self.intervals == other.intervals;
        let intervals = &self.intervals;
        self.rows.extend(other.rows.into_iter().map(|mut row| {
            if !is_alike {
                row.histogram = row.converted(&other.intervals, intervals);
            }
            (row.function, row.thread) = (functions[row.function as usize], row.thread + thread);
            row
        }));
        self.arcs.extend(other.arcs.into_iter().map(|mut arc| {
            (arc.callee, arc.thread) = (functions[arc.callee as usize], arc.thread + thread);
            arc.caller = arc.caller.map(|caller| functions[caller as usize]);
            arc
        }));
        self.nodes.extend(other.nodes.into_iter().map(|mut at| {
            at.function = at.function.map(|function| functions[function as usize]);
            (at.parent, at.thread) = (at.parent.map(|parent| parent + node), at.thread + thread);
            at
        }));
        self.nodes_lost = self.nodes_lost.saturating_add(other.nodes_lost);
        let of = |program: u32| programs.get(program as usize).copied();
        self.slow.append(other.slow, of, |function| functions[function as usize]);
        let renumbered = other.values.into_iter().filter_map(|of| {
            let caller = of.caller.map(|caller| functions[caller as usize]);
            let program = programs.get(of.program as usize).copied()?;
            let at = of.node.map(|at| at + node);
            Some(Values { program, function: functions[of.function as usize], caller, node: at, ..of })
        });
        values::merge(&mut self.values, renumbered);
        Ok(())
    }

    /// Takes over the period of another run's samples if this one has none.
    ///
    /// # Errors
    /// Both have one, and they differ.
    pub(crate) fn agree_on_period(&mut self, other: &Recording) -> Result<(), MergeError> {
        let periods = (self.sample_period_ns, other.sample_period_ns);
        if periods.0 != periods.1 && periods.0 > 0 && periods.1 > 0 {
            return Err(MergeError::SamplePeriod { first: periods.0, other: periods.1 });
        }
        self.sample_period_ns = periods.0.max(periods.1);
        Ok(())
    }

    /// Checks that the times of both runs are of the same kind, if both have any.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn agree_on_clock(&self, other: &Recording) -> Result<(), MergeError> {
        let counts = |of: &Recording| of.clock.source == ClockSource::Instructions;
        let have = [self, other].iter().all(|of| of.is_measured());
        if have && counts(self) != counts(other) { Err(MergeError::Clocks) } else { Ok(()) }
    }

    /// Checks that no run is in both sums, where it would count twice.
    ///
    /// # Errors
    /// One is.
    pub(crate) fn agree_on_runs(&self, other: &Recording) -> Result<(), MergeError> {
        let is_here = |run: &&Origin| self.runs.binary_search_by_key(&run.id, |run| run.id).is_ok();
        match other.runs.iter().find(is_here) {
            None => Ok(()),
            Some(run) => {
                Err(MergeError::SameRun { host: run.host.clone(), started: time_of_day(run.start_unix_ns) })
            }
        }
    }

    /// Adds the runs of another sum, of which none is in this one.
    pub(crate) fn extend_runs(&mut self, other: &Recording) {
        for run in &other.runs {
            let at = self.runs.partition_point(|known| known.id < run.id);
            self.runs.insert(at, run.clone());
        }
    }

    /// Takes another run's time into account: from the beginning of the first run to the end of the last one.
    pub(crate) fn extend_time(&mut self, other: &Recording) {
        if self.start_unix_ns == 0 {
            (self.start_unix_ns, self.duration_ns) = (other.start_unix_ns, other.duration_ns);
        } else if other.start_unix_ns > 0 {
            let end = |run: &Recording| run.start_unix_ns.saturating_add(run.duration_ns);
            let last = end(self).max(end(other));
            self.start_unix_ns = self.start_unix_ns.min(other.start_unix_ns);
            self.duration_ns = last - self.start_unix_ns;
        }
    }

    /// Returns the index in this run of each of these modules.
    fn merge_modules(&mut self, others: Vec<Module>) -> Vec<u32> {
        let key = |module: &Module| {
            let name = if module.build_id.is_empty() { module.path.clone() } else { String::new() };
            (name, module.build_id.clone(), module.digest)
        };
        let mut known = HashMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            known.entry(key(module)).or_insert(index as u32);
        }
        let modules = &mut self.modules;
        let others = others.into_iter().map(|module| {
            *known.entry(key(&module)).or_insert_with(|| {
                modules.push(module);
                modules.len() as u32 - 1
            })
        });
        others.collect()
    }

    /// Returns the index in this run of each of these functions.
    fn merge_functions(&mut self, others: Vec<Function>, modules: &[u32]) -> Vec<u32> {
        let mut known = HashMap::new();
        for (index, function) in self.functions.iter().enumerate() {
            known.entry(key_of(function)).or_insert(index as u32);
        }
        let functions = &mut self.functions;
        let others = others.into_iter().map(|mut function| {
            function.module = modules[function.module as usize];
            *known.entry(key_of(&function)).or_insert_with(|| {
                functions.push(function);
                functions.len() as u32 - 1
            })
        });
        others.collect()
    }

    /// Returns the index in this run of each of these programs.
    fn merge_programs(&mut self, others: Vec<Program>, modules: &[u32]) -> Vec<u32> {
        let mut known = HashMap::new();
        for (index, program) in self.programs.iter().enumerate() {
            known.entry(key_of_program(program)).or_insert(index as u32);
        }
        let programs = &mut self.programs;
        let others = others.into_iter().map(|mut program| {
            program.module = modules[program.module as usize];
            let index = *known.entry(key_of_program(&program)).or_insert(programs.len() as u32);
            match programs.get_mut(index as usize) {
                Some(known) => known.add(&program),
                None => programs.push(program),
            }
            index
        });
        others.collect()
    }
}

/// Returns what identifies a function in all runs: its module and its address, or its name and the path of its source file if that is
/// all that is known.
pub(crate) fn key_of(function: &Function) -> (u32, u64, String) {
    let name =
        if function.address == 0 { format!("{}\0{}", function.name, function.file) } else { String::new() };
    (function.module, function.address, name)
}

/// Returns what identifies a program in all runs: its name, its label and its module.
pub(crate) fn key_of_program(program: &Program) -> (String, String, u32) {
    (program.name.clone(), program.label.clone(), program.module)
}

/// Returns the time of day, such as `13:07:59`.
fn time_of_day(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;
    use crate::model::{ArcTimes, FunctionTimes, Node, Thread};

    /// A run with a library and a function that others do not have.
    fn run(library: &str, build: u8, name: &str) -> Recording {
        let module =
            |name: &str, build| Module { path: name.to_owned(), build_id: build, ..Module::default() };
        let function = |name: &str, module, address| Function {
            name: name.to_owned(),
            module,
            address,
            ..Function::default()
        };
        Recording {
            start_unix_ns: 1000 + u64::from(build),
            duration_ns: 50,
            sample_period_ns: 4,
            modules: vec![module("prog", vec![1, 2]), module(library, vec![build; usize::from(build)])],
            programs: vec![Program {
                name: "prog".to_owned(),
                processes: 1,
                pid: 9,
                elsewhere: 3,
                ..Program::default()
            }],
            calls: vec![Calls { caller: Some(2), site: 0x24, calls: 3, ..Calls::default() }],
            hits: [(0, 0x21), (1, 0x10), (2, 0x20)]
                .map(|(function, address)| Hits { function, address, samples: 2, ..Hits::default() })
                .to_vec(),
            stacks: vec![
                Stack { function: Some(1), samples: 1, ..Stack::default() },
                Stack { parent: Some(0), function: Some(0), samples: 2, ..Stack::default() },
            ],
            blocks: vec![Block { module: 1, address: 0x20, executions: 5, ..Block::default() }],
            functions: vec![function(name, 1, 0x20), function("main", 0, 0x10), function("f", 0, 0x20)],
            threads: vec![Thread { tid: 7, ..Thread::default() }],
            rows: vec![FunctionTimes { function: 0, calls: 3, ..FunctionTimes::default() }],
            arcs: vec![ArcTimes { caller: Some(2), callee: 0, calls: 3, ..ArcTimes::default() }],
            nodes: vec![
                Node { function: Some(1), ..Node::default() },
                Node { parent: Some(0), function: Some(0), ..Node::default() },
                Node { parent: Some(1), function: None, ..Node::default() },
            ],
            nodes_lost: 1,
            ..Recording::default()
        }
    }

    #[test]
    fn modules_by_build_and_functions_by_address() {
        let mut sum = run("a.so", 3, "a");
        sum.merge(run("b.so", 4, "b")).expect("one period");
        sum.check().expect("indexes that are valid");
        let names = |sum: &Recording| sum.functions.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&sum), ["a", "main", "f", "b"]);
        let samples: Vec<u64> = Costs::of(&sum).functions.iter().map(|cost| cost.samples).collect();
        assert_eq!(samples, [2, 4, 4, 2]);
        assert_eq!(sum.programs.len(), 1);
        assert_eq!((sum.programs[0].processes, sum.programs[0].pid, sum.programs[0].elsewhere), (2, 0, 6));
        assert_eq!((sum.calls[1].caller, sum.calls[1].callee, sum.calls[1].site), (Some(2), 3, 0x24));
        assert_eq!(sum.blocks.iter().map(|block| block.module).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((sum.stacks[2].parent, sum.stacks[2].function), (None, Some(1)));
        assert_eq!((sum.stacks[3].parent, sum.stacks[3].function), (Some(2), Some(3)));
        assert_eq!(sum.modules.len(), 3);
        assert_eq!((sum.rows[1].function, sum.rows[1].thread), (3, 1));
        assert_eq!((sum.arcs[1].caller, sum.arcs[1].callee, sum.arcs[1].thread), (Some(2), 3, 1));
        assert_eq!((sum.nodes[3].parent, sum.nodes[3].function), (None, Some(1)));
        assert_eq!((sum.nodes[5].parent, sum.nodes[5].function, sum.nodes[5].thread), (Some(4), None, 1));
        assert_eq!((sum.start_unix_ns, sum.duration_ns, sum.nodes_lost), (1003, 51, 2));

        // The same build under another path is the same module; without a build-id, the path decides.
        sum.merge(run("elsewhere/a.so", 3, "a")).expect("one period");
        assert_eq!(sum.modules.len(), 3);
        sum.merge(run("c.so", 0, "c")).expect("one period");
        sum.merge(run("c.so", 0, "c")).expect("one period");
        sum.merge(run("d.so", 0, "d")).expect("one period");
        assert_eq!(names(&sum), ["a", "main", "f", "b", "c", "d"]);
    }

    /// Without a build-id, a file that has changed at its path is another module.
    #[test]
    fn modules_by_digest() {
        let with = |digest| {
            let mut run = run("a.so", 0, "a");
            run.modules[1].digest = digest;
            run
        };
        let mut sum = with(5);
        for digest in [6, 5] {
            sum.merge(with(digest)).expect("one period");
        }
        assert_eq!((sum.modules.len(), sum.functions.len()), (3, 4));
        assert_eq!(Recording::read(&sum.write()).expect("a recording"), sum);
    }

    #[test]
    fn periods() {
        let mut sum = run("a.so", 3, "a");
        let before = sum.clone();
        let other = |period| Recording { sample_period_ns: period, ..run("a.so", 3, "a") };
        assert_eq!(sum.merge(other(5)), Err(MergeError::SamplePeriod { first: 4, other: 5 }));
        assert_eq!(sum, before);
        sum.merge(other(0)).expect("a run that was not sampled");
        assert_eq!(sum.sample_period_ns, 4);
    }

    /// What a program has done with different labels stays apart.
    #[test]
    fn programs_by_label() {
        let with = |label: &str| {
            let mut run = run("a.so", 3, "a");
            run.programs[0].label = label.to_owned();
            run
        };
        let mut sum = with("");
        for label in ["one", "two", "one"] {
            sum.merge(with(label)).expect("one period");
        }
        let labels: Vec<_> =
            sum.programs.iter().map(|known| (known.label.as_str(), known.processes)).collect();
        assert_eq!(labels, [("", 1), ("one", 2), ("two", 1)]);
        assert_eq!(Recording::read(&sum.write()).expect("a recording"), sum);
        sum.retain_programs(|program| program.label == "one");
        assert_eq!((sum.calls.len(), sum.programs.len()), (2, 1));
    }

    #[test]
    fn into_nothing() {
        let mut sum = Recording::default();
        sum.merge(run("a.so", 3, "a")).expect("nothing before");
        assert_eq!(sum, run("a.so", 3, "a"));
    }
}
