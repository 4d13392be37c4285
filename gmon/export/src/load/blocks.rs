//! Adds what the counts of basic blocks say: calls, executed instructions, and how often each line ran.

use std::collections::HashMap;
use std::path::Path;

use gmon::Profile;
use gmon_blocks::{Report, Tally};
use gprofinject_image::debug::{Lines, debug_files};
use gprofinject_image::instructions::Code;

use crate::load::contract::Detail;
use crate::load::lines::Places;
use crate::load::names::demangle_all;
use crate::model::{Function, Run};

/// The module whose basic blocks were counted.
pub(crate) struct Of<'m> {
    /// Its index.
    pub(crate) module: u32,
    pub(crate) path: &'m Path,
    /// Its file.
    pub(crate) bytes: &'m [u8],
    /// Whether calls were counted too. Otherwise the executions of a function's first block are its calls.
    pub(crate) has_calls: bool,
}

/// Adds what a profile's counts of basic blocks say of a module. A file whose instructions cannot be read says nothing.
pub(crate) fn add(run: &mut Run, of: Of, profile: &Profile, detail: Detail) {
    let Of { module, path, bytes, has_calls } = of;
    let Ok(mut code) = Code::parse(bytes) else { return };
    let mut lines = Lines::of(bytes, path, None).ok();
    if lines.is_none()
        && let Some(file) = debug_files(path, bytes).find(|file| code.take_symbols(&file.bytes).is_ok())
    {
        lines = Lines::of(&file.bytes, path, Some(&file.path)).ok();
    }
    let lines = lines.as_ref().filter(|_| detail == Detail::Lines);
    let report = Report::new(profile, &code, lines);
    run.has_instructions = true;
    let of_module = (0..).zip(&run.functions).filter(|(_, function)| function.module == Some(module));
    let mut index: HashMap<u64, u32> = of_module.map(|(index, function)| (function.address, index)).collect();
    // The run's function of each of the report's.
    let mut functions: Vec<Option<u32>> = vec![None; report.functions.len()];
    for at in 0..report.functions.len() {
        let sums = report.sums(at);
        let whole = &report.functions[report.whole(at)];
        if sums.ie == 0 && !index.contains_key(&whole.symbol.start) {
            continue;
        }
        let function = *index.entry(whole.symbol.start).or_insert_with(|| {
            run.functions.push(Function {
                name: whole.symbol.name.clone(),
                module: Some(module),
                address: whole.symbol.start,
                size: whole.symbol.size,
                ..Function::default()
            });
            run.functions.len() as u32 - 1
        });
        functions[at] = Some(function);
        let function = &mut run.functions[function as usize];
        function.instructions = function.instructions.saturating_add(sums.ie);
        if !has_calls && report.functions[at].part_of.is_none() {
            (function.calls, function.primitive) = (sums.calls, sums.calls);
        }
    }
    demangle_all(&mut run.functions, &run.modules);
    let Some(lines) = lines else { return };
    let mut places = Places::new(run);
    for line in Tally::of(&report).lines.values() {
        for instance in &line.instances {
            let (Some(executions), Some(function)) = (instance.count(), functions[instance.function]) else {
                continue;
            };
            let frames = places.frames(lines, instance.address);
            if !frames.is_empty() {
                let spot = places.spot(function, frames, instance.address);
                spot.instructions = spot.instructions.saturating_add(instance.ie);
                spot.executions = Some(spot.executions.unwrap_or(0).saturating_add(executions));
            }
        }
    }
    places.finish();
}
