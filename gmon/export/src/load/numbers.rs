//! Which of a recording's functions and modules a run has, and the numbers that they get there.

use std::collections::BTreeSet;

use gmon_run::Recording;

/// The modules and functions that occur, and the numbers that they get. The first module is that of the first program.
pub(crate) struct Numbers {
    pub(crate) functions: Vec<u32>,
    function_numbers: Vec<Option<u32>>,
    pub(crate) modules: Vec<u32>,
    module_numbers: Vec<Option<u32>>,
}

impl Numbers {
    pub(crate) fn new(recording: &Recording) -> Numbers {
        let mut occurs = vec![false; recording.functions.len()];
        let mut note = |function: u32| {
            if let Some(occurs) = occurs.get_mut(function as usize) {
                *occurs = true;
            }
        };
        if recording.is_measured() {
            // Other functions have no times, and samples alone are not comparable with those.
            recording.rows.iter().for_each(|row| note(row.function));
            recording
                .arcs
                .iter()
                .for_each(|arc| arc.caller.into_iter().chain([arc.callee]).for_each(&mut note));
            recording.nodes.iter().filter_map(|node| node.function).for_each(&mut note);
        }
        recording.unmeasured_calls().for_each(|c| c.caller.into_iter().chain([c.callee]).for_each(&mut note));
        if !recording.is_measured() {
            recording.hits.iter().for_each(|hits| note(hits.function));
        }
        if recording.has_sampled_stacks() {
            recording.stacks.iter().filter_map(|stack| stack.function).for_each(&mut note);
        }
        recording.slow.nodes.iter().filter_map(|node| node.function).for_each(&mut note);
        recording.values.iter().flat_map(|of| [Some(of.function), of.caller]).flatten().for_each(&mut note);
        let (functions, function_numbers) = numbered(
            (0..).zip(occurs).filter(|(_, occurs)| *occurs).map(|(index, _)| index),
            recording.functions.len(),
        );
        let of_programs = recording.programs.iter().map(|program| program.module);
        let of_functions: BTreeSet<u32> =
            functions.iter().map(|&index| recording.functions[index as usize].module).collect();
        let (modules, module_numbers) = numbered(of_programs.chain(of_functions), recording.modules.len());
        Numbers { functions, function_numbers, modules, module_numbers }
    }

    pub(crate) fn function(&self, index: u32) -> Option<u32> {
        self.function_numbers.get(index as usize).copied().flatten()
    }

    pub(crate) fn module(&self, index: u32) -> Option<u32> {
        self.module_numbers.get(index as usize).copied().flatten()
    }
}

/// Returns the indexes in their order, each once, and the number of each of `len` indexes among them.
fn numbered(indexes: impl Iterator<Item = u32>, len: usize) -> (Vec<u32>, Vec<Option<u32>>) {
    let (mut order, mut numbers) = (Vec::new(), vec![None; len]);
    for index in indexes {
        if let Some(number @ None) = numbers.get_mut(index as usize) {
            *number = Some(order.len() as u32);
            order.push(index);
        }
    }
    (order, numbers)
}
