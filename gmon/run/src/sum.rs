//! The sum of many runs, in the memory that the sum itself takes.

use std::collections::HashMap;

use crate::intervals::Intervals;
use crate::lines::LineSamples;
use crate::merge::{MergeError, key_of, key_of_program};
use crate::model::{
    ArcTimes, Block, Calls, Clock, Function, FunctionTimes, Hits, Module, Node, Program, Recording, Stack,
    Thread,
};
use crate::values::{self, Values};

/// The greatest number of slow calls of a sum, which are the slowest ones of all runs.
const SLOW_CALLS: usize = 1000;

/// What identifies a module in all runs: its build-id, or its path and digest if it has none.
type ModuleKey = (String, Vec<u8>, u64);

/// Sums runs one at a time. All threads of the same name become one thread, so that the sum of 10,000 runs of a program
/// is as large as that of two. [`Recording::merge`] keeps the threads apart.
///
/// Functions are those of the same address in the same build of the same module, as in [`Recording::merge`]. Nodes and sampled stacks
/// are the same if their paths are. Tables are in the order in which their entries were met first, so the sum does not depend on
/// how runs are grouped, only on their order.
///
/// Histograms have the [intervals that all sums have](Intervals::common), because those of runs differ with their clocks.
///
/// A thread that stands for several of different numbers has the numbers 0.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    sum: Recording,
    modules: HashMap<ModuleKey, u32>,
    functions: HashMap<(u32, u64, String), u32>,
    programs: HashMap<(String, String, u32), u32>,
    calls: HashMap<(u32, Option<u32>, u64, u32), u32>,
    hits: HashMap<(u32, u32, u64), u32>,
    stacks: HashMap<(u32, Option<u32>, Option<u32>), u32>,
    lines: HashMap<(u32, u32, u32), u32>,
    blocks: HashMap<(u32, u32, u64), u32>,
    threads: HashMap<(u32, String), u32>,
    rows: HashMap<(u32, u32), u32>,
    arcs: HashMap<(Option<u32>, u32, u32), u32>,
    nodes: HashMap<(Option<u32>, Option<u32>, u32), u32>,
}

impl Recording {
    /// Returns the run with histograms that have the [intervals of all sums](Intervals::common).
    pub fn with_common_intervals(mut self) -> Recording {
        let common = Intervals::common();
        if self.intervals != common {
            for row in &mut self.rows {
                row.histogram = row.converted(&self.intervals, &common);
            }
            self.intervals = common;
        }
        self
    }
}

impl Sum {
    /// Returns the sum.
    pub fn finish(mut self) -> Recording {
        self.sum.slow.keep_slowest(SLOW_CALLS);
        self.sum
    }

    /// Adds a run.
    ///
    /// # Errors
    /// The runs were sampled at different rates, have times of different kinds, are the same, or are too large together. After an error the sum is incomplete and
    /// must be dropped.
    ///
    /// # Panics
    /// If [`Recording::check`] returns an error for the run.
    pub fn add(&mut self, run: Recording) -> Result<(), MergeError> {
        let run = run.with_common_intervals();
        self.sum.intervals.clone_from(&run.intervals);
        if self.sum.modules.is_empty() {
            self.sum.clock = Clock {
                error_ns: self.sum.clock.error_ns,
                counted_below_ns: self.sum.clock.counted_below_ns,
                ..run.clock
            };
        }
        self.sum.agree_on_runs(&run)?;
        self.sum.agree_on_clock(&run)?;
        self.sum.agree_on_period(&run)?;
        self.sum.clock.error_ns = self.sum.clock.error_ns.max(run.clock.error_ns);
        self.sum.clock.counted_below_ns = self.sum.clock.counted_below_ns.max(run.clock.counted_below_ns);
        self.sum.extend_time(&run);
        self.sum.extend_runs(&run);
        self.sum.nodes_lost = self.sum.nodes_lost.saturating_add(run.nodes_lost);

        let modules = all(run.modules, |module| self.module(module))?;
        let functions = all(run.functions, |mut function| {
            function.module = modules[function.module as usize];
            self.function(function)
        })?;
        let programs = all(run.programs, |mut program| {
            program.module = modules[program.module as usize];
            self.program(program)
        })?;
        for mut process in run.processes {
            process.program = programs[process.program as usize];
            self.sum.add_process(process);
        }
        self.sum.processes_left_out = self.sum.processes_left_out.saturating_add(run.processes_left_out);
        for calls in run.calls {
            let program = programs[calls.program as usize];
            let caller = calls.caller.map(|caller| functions[caller as usize]);
            self.calls(Calls { program, caller, callee: functions[calls.callee as usize], ..calls })?;
        }
        for hits in run.hits {
            let (program, function) = (programs[hits.program as usize], functions[hits.function as usize]);
            self.hits(Hits { program, function, ..hits })?;
        }
        let mut stacks: Vec<u32> = Vec::with_capacity(run.stacks.len());
        for mut stack in run.stacks {
            // Parents come before their children.
            stack.parent = stack.parent.map(|parent| stacks[parent as usize]);
            stack.function = stack.function.map(|function| functions[function as usize]);
            stack.program = programs[stack.program as usize];
            stacks.push(self.stack(stack)?);
        }
        for line in run.lines {
            let (program, function) = (programs[line.program as usize], functions[line.function as usize]);
            self.line(LineSamples { program, function, ..line })?;
        }
        for block in run.blocks {
            let (program, module) = (programs[block.program as usize], modules[block.module as usize]);
            self.block(Block { program, module, ..block })?;
        }
        let threads = all(run.threads, |mut thread| {
            thread.program = programs[thread.program as usize];
            self.thread(thread)
        })?;
        for mut row in run.rows {
            (row.function, row.thread) = (functions[row.function as usize], threads[row.thread as usize]);
            self.row(row)?;
        }
        for mut arc in run.arcs {
            arc.caller = arc.caller.map(|caller| functions[caller as usize]);
            (arc.callee, arc.thread) = (functions[arc.callee as usize], threads[arc.thread as usize]);
            self.arc(arc)?;
        }
        let mut nodes: Vec<u32> = Vec::with_capacity(run.nodes.len());
        for mut node in run.nodes {
            // Parents come before their children.
            node.parent = node.parent.map(|parent| nodes[parent as usize]);
            node.function = node.function.map(|function| functions[function as usize]);
            node.thread = threads[node.thread as usize];
            nodes.push(self.node(node)?);
        }
        let of = |program: u32| programs.get(program as usize).copied();
        let renumbered = run.values.into_iter().filter_map(|of| {
            let caller = of.caller.map(|caller| functions[caller as usize]);
            let program = programs.get(of.program as usize).copied()?;
            let node = of.node.map(|node| nodes[node as usize]);
            Some(Values { program, function: functions[of.function as usize], caller, node, ..of })
        });
        values::merge(&mut self.sum.values, renumbered);
        self.sum.slow.append(run.slow, of, |function| functions[function as usize]);
        if self.sum.slow.calls.len() > 2 * SLOW_CALLS {
            self.sum.slow.keep_slowest(SLOW_CALLS);
        }
        Ok(())
    }

    fn module(&mut self, module: Module) -> Result<u32, MergeError> {
        let name = if module.build_id.is_empty() { module.path.clone() } else { String::new() };
        let key = (name, module.build_id.clone(), module.digest);
        let (index, _) = place(&mut self.modules, key, &mut self.sum.modules, "modules", module)?;
        Ok(index)
    }

    fn function(&mut self, function: Function) -> Result<u32, MergeError> {
        let key = key_of(&function);
        let (index, _) = place(&mut self.functions, key, &mut self.sum.functions, "functions", function)?;
        Ok(index)
    }

    fn program(&mut self, program: Program) -> Result<u32, MergeError> {
        let (key, copy) = (key_of_program(&program), program.clone());
        let (index, known) = place(&mut self.programs, key, &mut self.sum.programs, "programs", program)?;
        if let Some(known) = known {
            known.add(&copy);
        }
        Ok(index)
    }

    fn calls(&mut self, calls: Calls) -> Result<(), MergeError> {
        let key = (calls.program, calls.caller, calls.site, calls.callee);
        if let (_, Some(known)) = place(&mut self.calls, key, &mut self.sum.calls, "call sites", calls)? {
            known.calls = known.calls.saturating_add(calls.calls);
        }
        Ok(())
    }

    fn hits(&mut self, hits: Hits) -> Result<(), MergeError> {
        let key = (hits.program, hits.function, hits.address);
        if let (_, Some(known)) = place(&mut self.hits, key, &mut self.sum.hits, "sampled addresses", hits)? {
            known.samples = known.samples.saturating_add(hits.samples);
        }
        Ok(())
    }

    fn stack(&mut self, stack: Stack) -> Result<u32, MergeError> {
        let key = (stack.program, stack.parent, stack.function);
        let (index, known) = place(&mut self.stacks, key, &mut self.sum.stacks, "sampled stacks", stack)?;
        if let Some(known) = known {
            known.samples = known.samples.saturating_add(stack.samples);
        }
        Ok(index)
    }

    fn line(&mut self, line: LineSamples) -> Result<(), MergeError> {
        let key = (line.program, line.function, line.line);
        if let (_, Some(known)) = place(&mut self.lines, key, &mut self.sum.lines, "sampled lines", line)? {
            known.add(&line);
        }
        Ok(())
    }

    fn block(&mut self, block: Block) -> Result<(), MergeError> {
        let key = (block.program, block.module, block.address);
        if let (_, Some(known)) = place(&mut self.blocks, key, &mut self.sum.blocks, "basic blocks", block)? {
            known.executions = known.executions.saturating_add(block.executions);
        }
        Ok(())
    }

    fn thread(&mut self, thread: Thread) -> Result<u32, MergeError> {
        let (key, copy) = ((thread.program, thread.name.clone()), thread.clone());
        let (index, known) = place(&mut self.threads, key, &mut self.sum.threads, "threads", thread)?;
        if let Some(known) = known {
            if (known.pid, known.tid) != (copy.pid, copy.tid) {
                (known.pid, known.tid) = (0, 0);
            }
            for (to, more) in [
                (&mut known.life_ns, copy.life_ns),
                (&mut known.outside_ns, copy.outside_ns),
                (&mut known.overhead_ns, copy.overhead_ns),
                (&mut known.samples, copy.samples),
            ] {
                *to = to.saturating_add(more);
            }
            let both = known.ready_ns.zip(copy.ready_ns);
            known.ready_ns = both.map(|(ready, more)| ready.saturating_add(more));
        }
        Ok(index)
    }

    fn row(&mut self, row: FunctionTimes) -> Result<(), MergeError> {
        let key = (row.function, row.thread);
        match self.rows.get(&key) {
            Some(&index) => self.sum.rows[index as usize].add(&row),
            None => {
                place(&mut self.rows, key, &mut self.sum.rows, "functions of threads", row)?;
            }
        }
        Ok(())
    }

    fn arc(&mut self, arc: ArcTimes) -> Result<(), MergeError> {
        let key = (arc.caller, arc.callee, arc.thread);
        if let (_, Some(known)) = place(&mut self.arcs, key, &mut self.sum.arcs, "arcs", arc)? {
            known.add(&arc);
        }
        Ok(())
    }

    fn node(&mut self, node: Node) -> Result<u32, MergeError> {
        let key = (node.parent, node.function, node.thread);
        let (index, known) = place(&mut self.nodes, key, &mut self.sum.nodes, "nodes", node)?;
        if let Some(known) = known {
            known.calls = known.calls.saturating_add(node.calls);
            known.self_ns = known.self_ns.saturating_add(node.self_ns);
            known.waiting_ns = known.waiting_ns.saturating_add(node.waiting_ns);
            known.samples = known.samples.saturating_add(node.samples);
        }
        Ok(index)
    }
}

/// Returns the index of each entry.
fn all<T>(entries: Vec<T>, index: impl FnMut(T) -> Result<u32, MergeError>) -> Result<Vec<u32>, MergeError> {
    entries.into_iter().map(index).collect()
}

/// Returns the index of the entry with a key, and the entry if there was one before. Otherwise appends `new`.
fn place<'a, K: Eq + std::hash::Hash, T>(
    known: &mut HashMap<K, u32>,
    key: K,
    table: &'a mut Vec<T>,
    what: &'static str,
    new: T,
) -> Result<(u32, Option<&'a mut T>), MergeError> {
    use std::collections::hash_map::Entry;
    match known.entry(key) {
        Entry::Occupied(entry) => {
            let index = *entry.get();
            Ok((index, table.get_mut(index as usize)))
        }
        Entry::Vacant(entry) => {
            let index = u32::try_from(table.len()).map_err(|_| MergeError::TooMany(what))?;
            entry.insert(index);
            table.push(new);
            Ok((index, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Origin, PROCESSES_MAX, Process};
    use crate::slow::{Slow, SlowCall, SlowNode, Typical};
    use crate::values::{KeptValue, ValueCounts};

    /// A run of two threads of one name and one of another, with a tree in each.
    fn run(seed: u64) -> Recording {
        let name = |text: &str, n: u64| format!("{text}{n}");
        let function = |n: u64| Function {
            name: name("f", n),
            module: u32::from(n == 2),
            address: n * 16,
            ..Function::default()
        };
        let thread = |text: &str, tid| Thread {
            name: text.to_owned(),
            tid,
            pid: 100 + seed as u32,
            life_ns: 10 + seed,
            ..Thread::default()
        };
        let row = |function, thread, ns| FunctionTimes {
            function,
            thread,
            calls: 2,
            primitive: 2,
            self_ns: ns,
            min_ns: ns / 3,
            max_ns: ns,
            histogram: vec![seed, 1],
            ..FunctionTimes::default()
        };
        let stack = |parent, function, samples| Stack { program: 0, parent, function, samples };
        let node = |parent, function, thread| Node {
            parent,
            function,
            thread,
            calls: seed,
            self_ns: 5,
            waiting_ns: 2,
            samples: 1,
        };
        Recording {
            runs: vec![Origin { id: 1 + seed * 7 % 13, host: "node".to_owned(), ..Origin::default() }],
            programs: vec![Program {
                name: "prog".to_owned(),
                processes: 1,
                pid: 5,
                elsewhere: seed,
                ..Program::default()
            }],
            // The clock of each run is a little different.
            intervals: Intervals::new((0..50).map(|n| f64::from(n) * (1.0 + seed as f64 / 100.0)).collect())
                .expect("in order"),
            start_unix_ns: 1000 + seed * 7 % 30,
            duration_ns: 50,
            sample_period_ns: [0, 4][seed as usize % 2],
            clock: Clock { error_ns: seed as f64, ..Clock::default() },
            modules: vec![
                Module { path: name("prog", seed), build_id: vec![1, 2], ..Module::default() },
                Module { path: "lib.so".to_owned(), ..Module::default() },
            ],
            // Each run has a function of its own.
            functions: vec![function(1), function(2), function(3 + seed)],
            threads: vec![thread("main", 7), thread("worker", 8), thread("worker", 9 + seed as u32)],
            rows: vec![row(0, 0, 30 + seed), row(1, 1, 60), row(1, 2, 90 * seed), row(2, 2, 3)],
            arcs: vec![
                ArcTimes { caller: None, callee: 0, thread: 0, calls: 1, ..ArcTimes::default() },
                ArcTimes { caller: Some(0), callee: 1, thread: 1, calls: 2, ..ArcTimes::default() },
                ArcTimes { caller: Some(0), callee: 1, thread: 2, calls: seed, ..ArcTimes::default() },
            ],
            nodes: vec![
                node(None, Some(0), 1),
                node(Some(0), Some(1), 1),
                node(None, Some(0), 2),
                node(Some(2), Some(1), 2),
                node(Some(3), None, 2),
                node(Some(2), Some(2), 2),
            ],
            nodes_lost: 1,
            calls: vec![
                Calls { callee: 0, calls: 1, ..Calls::default() },
                Calls { caller: Some(0), site: 0x14, callee: 1, calls: seed, ..Calls::default() },
                Calls { caller: Some(0), site: 0x18, callee: 2, calls: 1, ..Calls::default() },
            ],
            lines: vec![LineSamples {
                function: 1,
                line: 7,
                own: seed,
                inclusive: 2 * seed,
                ..LineSamples::default()
            }],
            hits: vec![Hits { function: 1, address: 0x24, samples: seed, ..Hits::default() }],
            stacks: vec![
                stack(None, Some(0), 0),
                stack(Some(0), Some(1), seed / 2),
                stack(None, None, 0),
                stack(Some(2), Some(2), 1),
                stack(Some(3), Some(1), seed - seed / 2),
            ],
            blocks: vec![Block { address: 0x10, executions: seed, ..Block::default() }],
            processes: vec![Process { pid: 100 + seed as u32, run: 1 + seed * 7 % 13, ..Process::default() }],
            processes_left_out: 0,
            values: vec![Values {
                function: 1,
                caller: Some(0),
                counts: ValueCounts {
                    kept: vec![KeptValue { value: seed, count: 1 + seed, ..KeptValue::default() }],
                    ..ValueCounts::default()
                },
                ..Values::default()
            }],
            slow: Slow {
                typical: vec![Typical { calls: seed, ..Typical::default() }],
                calls: vec![SlowCall { node: 1, duration_ns: seed * 7 % 5, ..SlowCall::default() }],
                nodes: [Some(2), Some(1)]
                    .map(|function| SlowNode { function, self_ns: seed, ..SlowNode::default() })
                    .to_vec(),
            },
        }
    }

    /// The first ones stay, in whichever groups runs are summed; the others are counted.
    #[test]
    fn processes_are_bounded() {
        let many = |id: u64, count: usize| {
            let mut run = run(1);
            run.runs[0].id = id;
            let numbers = (0..count as u32).map(|pid| Process { pid, run: id, ..Process::default() });
            run.processes = numbers.collect();
            run
        };
        let runs = || [many(1, PROCESSES_MAX - 1), many(2, 3), many(3, 5)];
        let all = sum(runs());
        assert_eq!((all.processes.len(), all.processes_left_out), (PROCESSES_MAX, 7));
        assert_eq!((all.processes[PROCESSES_MAX - 1].pid, all.processes[PROCESSES_MAX - 1].run), (0, 2));
        let [first, second, third] = runs();
        let in_groups = sum([first, sum([second, third])]);
        assert_eq!((in_groups.processes, in_groups.processes_left_out), (all.processes, 7));
        let mut merged = Recording::default();
        for run in runs() {
            merged.merge(run).expect("one period");
        }
        assert_eq!((merged.processes.len(), merged.processes_left_out), (PROCESSES_MAX, 7));
        let read = Recording::read(&merged.write()).expect("a recording");
        assert!(read.processes == merged.processes && read.processes_left_out == 7);
    }

    fn sum(runs: impl IntoIterator<Item = Recording>) -> Recording {
        let mut sum = Sum::default();
        for run in runs {
            run.check().expect("a valid run");
            sum.add(run).expect("one period");
        }
        let sum = sum.finish();
        sum.check().expect("a valid sum");
        sum
    }

    #[test]
    fn threads_of_one_name() {
        let all = sum([run(1), run(3)]);
        let threads: Vec<_> =
            all.threads.iter().map(|t| (t.name.as_str(), t.pid, t.tid, t.life_ns)).collect();
        assert_eq!(threads, [("main", 0, 0, 24), ("worker", 0, 0, 48)]);
        let one = sum([run(1)]);
        assert_eq!((one.threads[0].pid, one.threads[0].tid, one.threads[1].tid), (101, 7, 0));
        let row =
            all.rows.iter().find(|row| row.function == 1 && row.thread == 1).expect("f2 in the workers");
        assert_eq!((row.calls, row.self_ns, row.min_ns, row.max_ns), (8, 60 + 90 + 60 + 270, 20, 270));
        // A duration of 0 or 1 ns for each unit of the seed, and one of 2 or 3 ns.
        assert_eq!(row.histogram.iter().sum::<u64>(), 12);
        assert_eq!(all.intervals, Intervals::common());
        let calls: u64 = all.arcs.iter().filter(|arc| arc.callee == 1).map(|arc| arc.calls).sum();
        assert_eq!((calls, all.arcs.len()), (2 + 1 + 2 + 3, 2));
        // Each run has two trees of workers, which are one here; its own function has a node of its own.
        assert_eq!(all.nodes.len(), 5);
        assert_eq!(
            all.nodes[1],
            Node {
                parent: Some(0),
                function: Some(1),
                thread: 1,
                calls: 8,
                self_ns: 20,
                waiting_ns: 8,
                samples: 4
            }
        );
        assert_eq!((all.nodes_lost, all.clock.error_ns, all.sample_period_ns), (2, 3.0, 4));
        assert_eq!((all.program(), all.programs[0].processes, all.programs[0].elsewhere), ("prog", 2, 4));
        assert_eq!(all.calls.iter().map(|calls| calls.calls).collect::<Vec<_>>(), [2, 4, 1, 1]);
        assert_eq!((all.hits[0].samples, all.hits.len(), all.blocks[0].executions), (4, 1, 4));
    }

    /// A path is one in all runs; a run without stacks leaves those of the others as they are.
    #[test]
    fn stacks_of_one_path() {
        let without = Recording { stacks: Vec::new(), ..run(5) };
        let all = sum([run(1), without, run(3)]);
        let stacks: Vec<_> =
            all.stacks.iter().map(|stack| (stack.parent, stack.function, stack.samples)).collect();
        // The last function of each run is its own.
        let expected = [
            (None, Some(0), 0),
            (Some(0), Some(1), 1),
            (None, None, 0),
            (Some(2), Some(2), 1),
            (Some(3), Some(1), 1),
            (Some(2), Some(4), 1),
            (Some(5), Some(1), 2),
        ];
        assert_eq!(stacks, expected);
        assert_eq!(all.hits[0].samples, 9);
    }

    /// What is added up by groups of consecutive runs is the same, with the same order of everything.
    #[test]
    fn grouping_does_not_matter() {
        let runs: Vec<Recording> = (0..12).map(run).collect();
        let whole = sum(runs.clone());
        for size in 1..runs.len() {
            let groups = runs.chunks(size).map(|group| sum(group.to_vec()));
            assert_eq!(sum(groups), whole, "groups of {size}");
        }
        assert_eq!(sum([Recording::default(), whole.clone(), Recording::default()]), whole);
    }

    #[test]
    fn a_run_counts_once() {
        let mut sum = Sum::default();
        sum.add(run(1)).expect("the first one");
        sum.add(run(2)).expect("another one");
        let error = sum.add(run(1)).expect_err("the same again");
        assert_eq!(error.to_string(), "the run of 00:00:00 UTC on node is in the sum already");
    }

    #[test]
    fn another_rate() {
        let mut sum = Sum::default();
        sum.add(run(1)).expect("nothing before");
        let other = Recording { sample_period_ns: 5, ..run(2) };
        assert_eq!(sum.add(other), Err(MergeError::SamplePeriod { first: 4, other: 5 }));
    }
}
