//! The part of a run that some of its programs have done.

use crate::model::{Program, Recording, Thread};

impl Recording {
    /// Leaves out what all programs have done that are not wanted, and those programs. Modules and functions stay.
    pub fn retain_programs(&mut self, mut is_wanted: impl FnMut(&Program) -> bool) {
        let wanted: Vec<bool> = self.programs.iter().map(&mut is_wanted).collect();
        let programs = Renumbered::new(wanted.iter().copied());
        let of_programs: Vec<bool> =
            self.threads.iter().map(|thread| programs.get(thread.program).is_some()).collect();
        let mut of_programs = of_programs.into_iter();
        self.retain_threads(|_| of_programs.next().unwrap_or(false));
        programs.retain(&mut self.programs);
        programs.renumber(&mut self.processes, |process| &mut process.program);
        // Nobody knows of which programs those were.
        self.processes_left_out = 0;
        programs.renumber(&mut self.calls, |calls| &mut calls.program);
        programs.renumber(&mut self.hits, |hits| &mut hits.program);
        programs.renumber(&mut self.lines, |line| &mut line.program);
        let stacks = Renumbered::new(self.stacks.iter().map(|stack| programs.get(stack.program).is_some()));
        programs.renumber(&mut self.stacks, |stack| &mut stack.program);
        for stack in &mut self.stacks {
            // A node's parent is of the same program.
            stack.parent = stack.parent.and_then(|parent| stacks.get(parent));
        }
        programs.renumber(&mut self.blocks, |block| &mut block.program);
        programs.renumber(&mut self.threads, |thread| &mut thread.program);
        programs.renumber(&mut self.values, |values| &mut values.program);
        let slow = std::mem::take(&mut self.slow);
        self.slow.append(slow, |program| programs.get(program), |function| function);
    }

    /// Leaves out all times and call paths of threads that are not wanted, and those threads. What is not known by thread stays.
    pub fn retain_threads(&mut self, is_wanted: impl FnMut(&Thread) -> bool) {
        let wanted: Vec<bool> = self.threads.iter().map(is_wanted).collect();
        let threads = Renumbered::new(wanted.iter().copied());
        let nodes = Renumbered::new(self.nodes.iter().map(|node| threads.get(node.thread).is_some()));
        threads.retain(&mut self.threads);
        nodes.retain(&mut self.nodes);
        threads.renumber(&mut self.rows, |row| &mut row.thread);
        threads.renumber(&mut self.arcs, |arc| &mut arc.thread);
        threads.renumber(&mut self.nodes, |node| &mut node.thread);
        for node in &mut self.nodes {
            // A node's parent is of the same thread.
            node.parent = node.parent.and_then(|parent| nodes.get(parent));
        }
        for values in &mut self.values {
            values.node = values.node.and_then(|node| nodes.get(node));
        }
        if wanted.contains(&false) {
            self.nodes_lost = 0;
            for node in self.nodes.iter().filter(|node| node.function.is_none()) {
                self.nodes_lost = self.nodes_lost.saturating_add(node.calls);
            }
        }
    }
}

/// The numbers that the entries of a table have when others are left out.
struct Renumbered(Vec<Option<u32>>);

impl Renumbered {
    fn new(is_kept: impl Iterator<Item = bool>) -> Renumbered {
        let mut next = 0;
        let mut number = |is_kept: bool| {
            is_kept.then(|| {
                next += 1;
                next - 1
            })
        };
        Renumbered(is_kept.map(&mut number).collect())
    }

    fn get(&self, index: u32) -> Option<u32> {
        self.0.get(index as usize).copied().flatten()
    }

    /// Leaves the entries out of the table itself.
    fn retain<T>(&self, table: &mut Vec<T>) {
        let mut numbers = self.0.iter();
        table.retain(|_| numbers.next().is_some_and(Option::is_some));
    }

    /// Leaves out entries of another table that refer to what is left out, and renumbers the others.
    fn renumber<T>(&self, table: &mut Vec<T>, index: impl Fn(&mut T) -> &mut u32) {
        table.retain_mut(|entry| {
            let index = index(entry);
            self.get(*index).map(|new| *index = new).is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Calls, Function, FunctionTimes, Module, Node, Process, Stack};

    #[test]
    fn one_of_three() {
        let program = |name: &str| Program { name: name.to_owned(), ..Program::default() };
        let thread = |program, tid| Thread { program, tid, ..Thread::default() };
        let node = |parent, thread, function| Node { parent, thread, function, calls: 1, ..Node::default() };
        let stack = |parent, program| Stack { parent, program, function: Some(0), samples: 1 };
        let mut run = Recording {
            stacks: vec![stack(None, 0), stack(None, 1), stack(Some(0), 0), stack(Some(1), 1)],
            programs: ["a", "b", "c"].map(program).to_vec(),
            modules: vec![Module::default()],
            functions: vec![Function::default()],
            calls: (0..3)
                .map(|program| Calls { program, calls: 1 + u64::from(program), ..Calls::default() })
                .collect(),
            threads: vec![thread(1, 7), thread(0, 8), thread(1, 9)],
            processes: (0..3)
                .map(|program| Process { program, pid: 5 + program, ..Process::default() })
                .collect(),
            nodes: vec![
                node(None, 1, Some(0)),
                node(None, 2, Some(0)),
                node(Some(0), 1, None),
                node(Some(1), 2, None),
            ],
            nodes_lost: 2,
            ..Recording::default()
        };
        run.retain_programs(|program| program.name == "b");
        run.check().expect("a valid run");
        assert_eq!(run.programs, [program("b")]);
        assert_eq!(run.processes, [Process { program: 0, pid: 6, ..Process::default() }]);
        assert_eq!((run.calls.len(), run.calls[0].program, run.calls[0].calls), (1, 0, 2));
        assert_eq!(run.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [7, 9]);
        assert_eq!(run.nodes, [node(None, 1, Some(0)), node(Some(0), 1, None)]);
        assert_eq!(run.nodes_lost, 1);
        assert_eq!(run.stacks, [stack(None, 0), stack(Some(0), 0)]);
    }

    #[test]
    fn one_thread() {
        let row = |thread, calls| FunctionTimes { thread, calls, ..FunctionTimes::default() };
        let node = |parent, thread| Node { parent, function: Some(0), thread, calls: 1, ..Node::default() };
        let mut run = Recording {
            programs: vec![Program::default()],
            modules: vec![Module::default()],
            functions: vec![Function::default()],
            calls: vec![Calls { calls: 9, ..Calls::default() }],
            threads: [7, 8].map(|tid| Thread { tid, ..Thread::default() }).to_vec(),
            rows: vec![row(0, 4), row(1, 5)],
            nodes: vec![node(None, 0), node(None, 1), node(Some(1), 1)],
            ..Recording::default()
        };
        run.retain_threads(|thread| thread.tid == 8);
        run.check().expect("a valid run");
        assert_eq!((run.threads.len(), run.threads[0].tid), (1, 8));
        assert_eq!(run.rows, [row(0, 5)]);
        assert_eq!(run.nodes, [node(None, 0), node(Some(0), 0)]);
        assert_eq!((run.programs.len(), run.calls[0].calls), (1, 9));
    }
}
