//! The rules that the indexes and numbers of a [`Recording`] obey.

use crate::model::Recording;

/// A number that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("{table} {index}: {field} {value}, expected less than {limit}")]
    Index { table: &'static str, index: usize, field: &'static str, value: u64, limit: u64 },
    #[error("node {index}: of thread {thread}, but its parent is of thread {parent}")]
    Thread { index: usize, thread: u32, parent: u32 },
    #[error("stack {index}: of program {program}, but its parent is of program {parent}")]
    Program { index: usize, program: u32, parent: u32 },
    #[error("stack {index}: callers that are not known, but not at the beginning of the path")]
    NoFunction { index: usize },
    #[error("row {index}: a histogram of {len} elements, expected at most {most}")]
    Histogram { index: usize, len: usize, most: usize },
    #[error("clock: its {field} is negative or no number")]
    Clock { field: &'static str },
    #[error(
        "slow node {index}: its parent is not before it in the same tree, or it begins a tree without a function"
    )]
    Tree { index: usize },
    #[error("slow call {index}: no tree begins with its node")]
    NoTree { index: usize },
    #[error("line {index}: its number is 0, or it has more samples of one kind than in all")]
    Line { index: usize },
    #[error("run {index}: its number is 0, or not larger than that of the run before")]
    Run { index: usize },
}

impl Invalid {
    /// Checks an index into a table of `limit` elements, which the field of an element of another table has.
    ///
    /// # Errors
    /// It leads nowhere.
    pub(crate) fn unless_within(
        (table, index): (&'static str, usize),
        field: &'static str,
        value: u32,
        limit: usize,
    ) -> Result<(), Invalid> {
        let (value, limit) = (u64::from(value), limit as u64);
        let is_valid = value < limit;
        is_valid.then_some(()).ok_or(Invalid::Index { table, index, field, value, limit })
    }
}

impl Recording {
    /// Checks that all indexes refer to something, that parents come before their children, and that the numbers
    /// of the clock are finite and not negative. What [`Recording::read()`] returns is valid.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Invalid> {
        let clock = &self.clock;
        for (field, value) in [
            ("frequency", clock.ticks_per_second),
            ("overhead inside", clock.inside_ns),
            ("overhead outside", clock.outside_ns),
            ("error", clock.error_ns),
            ("limit of counted calls", clock.counted_below_ns),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(Invalid::Clock { field });
            }
        }
        let mut last = 0;
        for (index, run) in self.runs.iter().enumerate() {
            if run.id <= last {
                return Err(Invalid::Run { index });
            }
            last = run.id;
        }
        let (modules, functions, threads) = (self.modules.len(), self.functions.len(), self.threads.len());
        let programs = self.programs.len();
        for (index, program) in self.programs.iter().enumerate() {
            within("program", index, "module", program.module, modules)?;
        }
        for (index, process) in self.processes.iter().enumerate() {
            within("process", index, "program", process.program, programs)?;
        }
        for (index, thread) in self.threads.iter().enumerate() {
            within("thread", index, "program", thread.program, programs)?;
        }
        for (index, calls) in self.calls.iter().enumerate() {
            within("calls", index, "program", calls.program, programs)?;
            within("calls", index, "callee", calls.callee, functions)?;
            if let Some(caller) = calls.caller {
                within("calls", index, "caller", caller, functions)?;
            }
        }
        for (index, hits) in self.hits.iter().enumerate() {
            within("hits", index, "program", hits.program, programs)?;
            within("hits", index, "function", hits.function, functions)?;
        }
        self.check_stacks()?;
        let mut lines = self.lines.iter().enumerate();
        lines.try_for_each(|(index, line)| line.check(index, programs, functions))?;
        for (index, block) in self.blocks.iter().enumerate() {
            within("block", index, "program", block.program, programs)?;
            within("block", index, "module", block.module, modules)?;
        }
        for (index, function) in self.functions.iter().enumerate() {
            within("function", index, "module", function.module, modules)?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            within("row", index, "function", row.function, functions)?;
            within("row", index, "thread", row.thread, threads)?;
            let (len, most) = (row.histogram.len(), self.intervals.starts().len());
            if len > most {
                return Err(Invalid::Histogram { index, len, most });
            }
        }
        for (index, arc) in self.arcs.iter().enumerate() {
            within("arc", index, "callee", arc.callee, functions)?;
            within("arc", index, "thread", arc.thread, threads)?;
            if let Some(caller) = arc.caller {
                within("arc", index, "caller", caller, functions)?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            within("node", index, "thread", node.thread, threads)?;
            if let Some(function) = node.function {
                within("node", index, "function", function, functions)?;
            }
            if let Some(parent) = node.parent {
                // A tree has no circle if each parent comes before its children.
                within("node", index, "parent", parent, index)?;
                let parent = self.nodes[parent as usize].thread;
                if parent != node.thread {
                    return Err(Invalid::Thread { index, thread: node.thread, parent });
                }
            }
        }
        self.slow.check(programs, functions)?;
        let mut values = self.values.iter().enumerate();
        values.try_for_each(|(index, of)| of.check(index, programs, functions, self.nodes.len()))
    }

    fn check_stacks(&self) -> Result<(), Invalid> {
        for (index, stack) in self.stacks.iter().enumerate() {
            within("stack", index, "program", stack.program, self.programs.len())?;
            if let Some(function) = stack.function {
                within("stack", index, "function", function, self.functions.len())?;
            }
            let Some(parent) = stack.parent else { continue };
            // A tree has no circle if each parent comes before its children.
            within("stack", index, "parent", parent, index)?;
            let parent = self.stacks[parent as usize].program;
            if parent != stack.program {
                return Err(Invalid::Program { index, program: stack.program, parent });
            }
            if stack.function.is_none() {
                return Err(Invalid::NoFunction { index });
            }
        }
        Ok(())
    }
}

fn within(
    table: &'static str,
    index: usize,
    field: &'static str,
    value: u32,
    limit: usize,
) -> Result<(), Invalid> {
    if (value as usize) < limit {
        return Ok(());
    }
    Err(Invalid::Index { table, index, field, value: u64::from(value), limit: limit as u64 })
}
