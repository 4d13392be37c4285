//! What each program of a run has done of what all of them have.

use std::collections::HashMap;

use gmon_run::{Cost, Costs, FunctionTimes, Recording};

use crate::estimate::estimate;
use crate::load::numbers::Numbers;
use crate::model::{Arc, Durations, Function, ProgramFunction, Run, Share};
use crate::sampled;

/// The most programs that are told apart; of the others, only the sums are known.
const MOST: usize = 64;

/// Returns what each function has done in each of the first programs. The functions have the indexes that they have in the
/// [run](crate::load::recording()) of all programs. Without several programs, there is nothing.
pub fn by_program(recording: &Recording) -> Vec<ProgramFunction> {
    if recording.programs.len() < 2 {
        return Vec::new();
    }
    let numbers = Numbers::new(recording);
    match recording.is_measured() {
        true => measured(recording, &numbers),
        false => counted(recording, &numbers),
    }
}

/// Returns what each program has done.
pub(crate) fn shares(recording: &Recording) -> Vec<Share> {
    let is_measured = recording.is_measured();
    let share = |cost: Cost| Share {
        calls: cost.shown_calls,
        samples: cost.samples,
        self_ns: match is_measured {
            true => cost.self_ns,
            false => cost.samples.saturating_mul(recording.sample_period_ns),
        },
    };
    Costs::of(recording).programs.into_iter().map(share).collect()
}

fn measured(recording: &Recording, numbers: &Numbers) -> Vec<ProgramFunction> {
    let mut sums: HashMap<(u32, u32), FunctionTimes> = HashMap::new();
    for row in &recording.rows {
        let Some(thread) = recording.threads.get(row.thread as usize) else { continue };
        if let Some(function) = numbers.function(row.function).filter(|_| (thread.program as usize) < MOST) {
            sums.entry((thread.program, function)).or_default().add(row);
        }
    }
    for calls in recording.unmeasured_calls() {
        if let Some(function) = numbers.function(calls.callee).filter(|_| (calls.program as usize) < MOST) {
            let sum = sums.entry((calls.program, function)).or_default();
            sum.calls = sum.calls.saturating_add(calls.calls);
            if calls.caller != Some(calls.callee) {
                sum.primitive = sum.primitive.saturating_add(calls.calls);
            }
        }
    }
    let mut rows: Vec<_> = sums
        .into_iter()
        .map(|((program, function), sum)| ProgramFunction {
            program,
            function,
            calls: sum.calls,
            primitive: sum.primitive,
            self_ns: sum.self_ns,
            inclusive_ns: sum.inclusive_ns,
            durations: Durations::of(&sum, &recording.intervals),
        })
        .collect();
    rows.sort_by_key(|row| (row.program, row.function));
    rows
}

/// Inclusive times are those of each program by itself: of its own sampled stacks, or estimated from its own calls.
fn counted(recording: &Recording, numbers: &Numbers) -> Vec<ProgramFunction> {
    let mut parts: Vec<Part> = Vec::new();
    parts.resize_with(recording.programs.len().min(MOST), Part::default);
    for calls in &recording.calls {
        let Some(part) = parts.get_mut(calls.program as usize) else { continue };
        let Some(callee) = numbers.function(calls.callee).map(|function| part.place(function)) else {
            continue;
        };
        let caller =
            calls.caller.and_then(|caller| numbers.function(caller)).map(|caller| part.place(caller));
        part.run.arcs.push(Arc { caller, callee, calls: calls.calls, ..Arc::default() });
        let function = &mut part.run.functions[callee as usize];
        function.calls = function.calls.saturating_add(calls.calls);
        if caller != Some(callee) {
            function.primitive = function.primitive.saturating_add(calls.calls);
        }
    }
    for hits in &recording.hits {
        let Some(part) = parts.get_mut(hits.program as usize) else { continue };
        let Some(function) = numbers.function(hits.function).map(|function| part.place(function)) else {
            continue;
        };
        let self_ns = &mut part.run.functions[function as usize].self_ns;
        *self_ns = self_ns.saturating_add(hits.samples.saturating_mul(recording.sample_period_ns));
    }
    let has_stacks = recording.has_sampled_stacks();
    if has_stacks {
        add_stacks(&mut parts, recording, numbers);
    }
    let mut rows = Vec::new();
    for (program, mut part) in (0..).zip(parts) {
        part.run.sort_arcs();
        match has_stacks {
            true => sampled::add_times(&mut part.run),
            false => estimate(&mut part.run),
        }
        let of = part.run.functions.iter().zip(&part.functions);
        rows.extend(of.map(|(known, &function)| ProgramFunction {
            program,
            function,
            calls: known.calls,
            primitive: known.primitive,
            self_ns: known.self_ns,
            inclusive_ns: known.inclusive_ns,
            durations: None,
        }));
    }
    rows
}

/// Adds to each program the tree of its sampled stacks.
fn add_stacks(parts: &mut [Part], recording: &Recording, numbers: &Numbers) {
    // The index of each stack in its program.
    let mut places: Vec<u32> = Vec::new();
    for stack in recording.whole_stacks() {
        let Some(part) = parts.get_mut(stack.program as usize) else {
            places.push(0);
            continue;
        };
        let parent = stack.parent.and_then(|parent| places.get(parent as usize).copied());
        let function = stack.function.and_then(|function| numbers.function(function));
        let function = function.map(|function| part.place(function));
        places.push(part.run.nodes.len() as u32);
        part.run.nodes.push(sampled::node(&stack, parent, function, recording.sample_period_ns));
    }
}

/// A run of what one program has done.
#[derive(Default)]
struct Part {
    run: Run,
    /// The index of each of its functions among those of all programs.
    functions: Vec<u32>,
    places: HashMap<u32, u32>,
}

impl Part {
    /// Returns the index in this part of a function of all programs.
    fn place(&mut self, function: u32) -> u32 {
        *self.places.entry(function).or_insert_with(|| {
            self.run.functions.push(Function::default());
            self.functions.push(function);
            self.functions.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_run::{Calls, Hits, Module, Program};

    /// Both programs call the same function of a library, from functions of their own.
    #[test]
    fn two_programs_with_one_library() {
        let function = |name: &str, module| gmon_run::Function {
            name: name.into(),
            module,
            address: 1,
            ..Default::default()
        };
        let calls =
            |program, caller, callee, calls| Calls { program, caller, callee, calls, ..Calls::default() };
        let hits = |program, function, samples| Hits { program, function, samples, ..Hits::default() };
        let recording = Recording {
            programs: vec![Program::default(), Program { module: 1, ..Program::default() }],
            modules: vec![Module::default(), Module::default(), Module::default()],
            sample_period_ns: 10,
            functions: vec![function("never", 0), function("a", 0), function("b", 1), function("l", 2)],
            calls: vec![
                calls(0, None, 1, 1),
                calls(0, Some(1), 3, 5),
                calls(1, None, 2, 2),
                calls(1, Some(2), 3, 7),
            ],
            hits: vec![hits(0, 3, 4), hits(1, 3, 2), hits(1, 2, 1)],
            ..Recording::default()
        };
        recording.check().expect("a valid recording");
        let rows: Vec<_> = by_program(&recording)
            .iter()
            .map(|row| (row.program, row.function, row.calls, row.self_ns, row.inclusive_ns))
            .collect();
        assert_eq!(rows, [(0, 0, 1, 0, 40), (0, 2, 5, 40, 40), (1, 1, 2, 10, 30), (1, 2, 7, 20, 20)]);
        let one = Recording { programs: vec![Program::default()], ..Recording::default() };
        assert!(by_program(&one).is_empty());
    }
}
