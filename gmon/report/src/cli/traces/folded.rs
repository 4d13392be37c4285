//! Folded stacks of a trace: a line `outer;inner NANOSECONDS` for each path with self time.

use std::collections::HashMap;
use std::io::{self, Write};

use gmon_trace::{Begun, Callee, Choice, Damage, Ended, Overhead, Step, Trace, What};

use crate::cli::traces::names::Names;

/// The greatest number of paths. Calls on others belong to their callers.
const PATHS: usize = 1 << 20;

/// A path: a function, and the path of its caller.
type Path = (Option<u32>, Callee);

/// The self time of each path, in nanoseconds.
struct Paths {
    numbers: HashMap<Path, u32>,
    paths: Vec<Path>,
    own: Vec<i64>,
}

/// Prints the paths of all calls that are wanted. Returns what of the trace was damaged.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn folded(
    trace: &Trace,
    choice: &Choice,
    raw: bool,
    out: &mut impl Write,
) -> io::Result<Vec<Damage>> {
    let overheads: Vec<Overhead> =
        trace.processes.iter().map(|recorded| Overhead::of(&recorded.process)).collect();
    let mut paths = Paths { numbers: HashMap::new(), paths: Vec::new(), own: Vec::new() };
    // By buffer and stack: the paths of the calls that are open.
    let mut open: HashMap<(u32, u32), Vec<Option<u32>>> = HashMap::new();
    let mut steps = trace.steps(choice);
    for step in steps.by_ref() {
        let stack = open.entry((step.buffer, step.chain)).or_default();
        let overhead = overheads.get(step.process as usize).copied().unwrap_or_default();
        let ns = |ended: &Ended| own_ns(trace, &step, ended, overhead);
        match &step.what {
            What::Begin(begun) => stack.push(paths.below(stack.last().copied().flatten(), begun)),
            What::Leaf(begun, ended) => {
                let path = paths.below(stack.last().copied().flatten(), begun);
                paths.add(path, ns(ended));
            }
            What::End(ended) => {
                let path = stack.pop().flatten();
                paths.add(path, ns(ended));
            }
            _ => {}
        }
        if stack.is_empty() {
            open.remove(&(step.buffer, step.chain));
        }
    }
    paths.print(&mut Names::new(trace, raw), out)?;
    Ok(steps.damage().to_vec())
}

/// Returns the self time of a call. That of a function of a few instructions may be negative, and sums are right nevertheless.
fn own_ns(trace: &Trace, step: &Step, ended: &Ended, overhead: Overhead) -> i64 {
    let own = ended.own.saturating_sub_unsigned(overhead.inside);
    let Some(recorded) = trace.processes.get(step.process as usize) else { return own };
    let ns = recorded.clock.ns(own.unsigned_abs()).min(i64::MAX as u64) as i64;
    if own < 0 { -ns } else { ns }
}

impl Paths {
    /// Returns the number of the path to a call. If there are too many, it is that of the caller's.
    fn below(&mut self, outer: Option<u32>, begun: &Begun) -> Option<u32> {
        let path = (outer, begun.function);
        if let Some(&number) = self.numbers.get(&path) {
            return Some(number);
        }
        if self.paths.len() >= PATHS {
            return outer;
        }
        let number = self.paths.len() as u32;
        self.numbers.insert(path, number);
        self.paths.push(path);
        self.own.push(0);
        Some(number)
    }

    fn add(&mut self, path: Option<u32>, ns: i64) {
        if let Some(own) = path.and_then(|path| self.own.get_mut(path as usize)) {
            *own = own.saturating_add(ns);
        }
    }

    /// Prints a line for each path with self time.
    fn print(&self, names: &mut Names, out: &mut impl Write) -> io::Result<()> {
        for (number, &own) in self.own.iter().enumerate().filter(|(_, own)| **own > 0) {
            let mut functions = Vec::new();
            let mut at = Some(number as u32);
            // A path's number is higher than that of the path that it goes on.
            while let Some((outer, function)) = at.and_then(|at| self.paths.get(at as usize)) {
                functions.push(*function);
                at = *outer;
            }
            let frames = functions.iter().rev().map(|&function| names.of(function).replace(';', ":"));
            writeln!(out, "{} {own}", frames.collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}
