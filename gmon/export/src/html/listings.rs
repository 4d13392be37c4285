//! The disassembly of the functions whose basic blocks were counted.

use std::collections::HashMap;
use std::path::Path;

use gmon::Profile;
use gmon_blocks::{Disassembler, Report, Step, Syntax};
use gprofinject_image::debug::{Lines, debug_files};
use gprofinject_image::instructions::{Code, CodeError};
use gprofinject_image::names::demangle::demangle;

use crate::html::extras::{Instruction, Listing, MAX_INSTRUCTIONS};
use crate::model::{Line, Run};

/// Returns the instructions of a run's functions with their counts, the functions that executed the most instructions first, and
/// only so many as a report contains. `path` and `bytes` are those of the module with that index, and `profile` has the counts of its
/// basic blocks.
///
/// # Errors
/// The module's instructions cannot be read.
pub fn listings(
    module: u32,
    path: &Path,
    bytes: &[u8],
    profile: &Profile,
    run: &Run,
) -> Result<Vec<Listing>, CodeError> {
    if profile.blocks.is_empty() {
        return Ok(Vec::new());
    }
    let mut code = Code::parse(bytes)?;
    let mut lines = Lines::of(bytes, path, None).ok();
    if lines.is_none()
        && let Some(file) = debug_files(path, bytes).find(|file| code.take_symbols(&file.bytes).is_ok())
    {
        lines = Lines::of(&file.bytes, path, Some(&file.path)).ok();
    }
    let report = Report::new(profile, &code, lines.as_ref());
    let of_module = (0..).zip(&run.functions).filter(|(_, function)| function.module == Some(module));
    let of_address: HashMap<u64, u32> =
        of_module.map(|(index, function)| (function.address, index)).collect();
    let files: HashMap<&str, u32> =
        (0..).zip(&run.files).map(|(index, path)| (path.as_str(), index)).collect();
    let line = |address| {
        let lines = lines.as_ref()?;
        let location = lines.location(address)?;
        Some(Line { file: *files.get(lines.files().get(location.file)?.as_str())?, line: location.line })
    };
    let mut disassembler = Disassembler::new(Syntax::Att, &code, |name| demangle(name).into_owned());
    let mut instruction = |step: Step| Instruction {
        address: step.instruction.ip(),
        count: step.count,
        text: disassembler.text(&step.instruction),
        line: line(step.instruction.ip()),
    };
    let mut order: Vec<usize> =
        (0..report.functions.len()).filter(|&at| report.functions[at].part_of.is_none()).collect();
    let executed = |at: usize| {
        let parts = report.parts(at).iter().map(|&part| report.sums(part).ie);
        parts.fold(report.sums(at).ie, u64::saturating_add)
    };
    order.sort_by_cached_key(|&at| std::cmp::Reverse(executed(at)));
    let mut listings = Vec::new();
    let mut room = MAX_INSTRUCTIONS;
    for at in order {
        let Some(&function) = of_address.get(&report.functions[at].symbol.start) else { continue };
        let counted = [at].into_iter().chain(report.parts(at).iter().copied());
        let steps: Vec<Step> =
            counted.filter(|&at| report.is_counted(at)).flat_map(|at| report.steps(at)).collect();
        if steps.is_empty() {
            continue;
        }
        let Some(left) = room.checked_sub(steps.len()) else { break };
        room = left;
        listings.push(Listing { function, instructions: steps.into_iter().map(&mut instruction).collect() });
    }
    Ok(listings)
}
