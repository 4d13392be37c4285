//! The disassembly of functions: of all whose basic blocks were counted, or else of those with the most time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use gmon::Profile;
use gmon_blocks::{Disassembler, Report, Step, Syntax};
use gmon_run::Recording;
use gprofinject_image::debug::{Lines, debug_files, module_file};
use gprofinject_image::instructions::{Code, CodeError};
use gprofinject_image::names::demangle::demangle;

use crate::html::extras::{Instruction, Listing, MAX_INSTRUCTIONS};
use crate::load;
use crate::model::{Function, Line, Run};
use gmon_run::Module;

/// The most functions that are disassembled in all if no basic blocks were counted.
const MAX_FUNCTIONS: usize = 300;
/// The most bytes of such a function that are disassembled.
const MAX_SIZE: u64 = 1 << 16;

/// A module whose functions are disassembled.
pub struct Of<'m> {
    /// Its index.
    pub module: u32,
    pub path: &'m Path,
    /// Its file.
    pub bytes: &'m [u8],
    /// The counts of its basic blocks, if they were counted.
    pub profile: &'m Profile,
    /// The samples of CPU time by link address.
    pub hits: &'m BTreeMap<u64, u64>,
}

/// Returns the instructions of a module's functions with their counts, calls and times, those that say most first, and only so many as a
/// report contains.
///
/// # Errors
/// The module's instructions cannot be read.
pub fn listings(of: &Of, run: &Run) -> Result<Vec<Listing>, CodeError> {
    let mut room = MAX_INSTRUCTIONS;
    within(of, run, &mut room)
}

/// Does what [`listings()`] does, with room for so many instructions.
fn within(of: &Of, run: &Run, room: &mut usize) -> Result<Vec<Listing>, CodeError> {
    let is_counted = !of.profile.blocks.is_empty();
    let hottest = if is_counted { Vec::new() } else { hottest(run, of.module) };
    if !is_counted && hottest.is_empty() {
        return Ok(Vec::new());
    }
    let mut code = Code::parse(of.bytes)?;
    let mut lines = Lines::of(of.bytes, of.path, None).ok();
    if lines.is_none()
        && let Some(file) = debug_files(of.path, of.bytes).find(|file| code.take_symbols(&file.bytes).is_ok())
    {
        lines = Lines::of(&file.bytes, of.path, Some(&file.path)).ok();
    }
    let mut writer = Writer::new(of, run, &code, lines.as_ref(), room);
    Ok(match is_counted {
        true => counted(of, run, &code, &mut writer),
        false => plain(&hottest, run, &code, &mut writer),
    })
}

/// Returns the instructions of the functions of all modules of a recording, as [`listings()`] does for one. A module that is not any
/// more the one that ran says nothing.
pub fn listings_of(recording: &Recording, run: &Run) -> Vec<Listing> {
    let counted: BTreeSet<u32> = recording.blocks.iter().map(|block| block.module).collect();
    let mut hits: HashMap<u32, BTreeMap<u64, u64>> = HashMap::new();
    for known in recording.hits.iter().filter(|hits| hits.address > 0) {
        if let Some(function) = recording.functions.get(known.function as usize) {
            let sum = hits.entry(function.module).or_default().entry(known.address).or_default();
            *sum = sum.saturating_add(known.samples);
        }
    }
    let nothing = BTreeMap::new();
    let mut room = MAX_INSTRUCTIONS;
    let mut all = Vec::new();
    for own in busiest_first(recording, run) {
        let module = &recording.modules[own as usize];
        let path = Path::new(&module.path);
        let Some(index) = place(run, module) else { continue };
        let is_wanted = counted.contains(&own) || !hottest(run, index).is_empty();
        if is_wanted
            && path.is_absolute()
            && let Some((bytes, _)) = module_file(path, &module.build_id)
            && module.is_of(&bytes)
        {
            let profile = load::profile_of(recording, own);
            let hits = hits.get(&own).unwrap_or(&nothing);
            let of = Of { module: index, path, bytes: &bytes, profile: &profile, hits };
            all.extend(within(&of, run, &mut room).unwrap_or_default());
        }
    }
    let weight = |listing: &Listing| {
        let function = &run.functions[listing.function as usize];
        std::cmp::Reverse((function.self_ns, function.instructions, function.calls))
    };
    all.sort_by_key(weight);
    all
}

/// Returns the index in a run of a recording's module.
fn place(run: &Run, module: &Module) -> Option<u32> {
    run.modules.iter().position(|known| known == module).map(|index| index as u32)
}

/// Returns the indexes of a recording's modules, those that have executed or taken the most first: there may not be room for all.
fn busiest_first(recording: &Recording, run: &Run) -> Vec<u32> {
    let mut sums = vec![(0_u64, 0_u64); run.modules.len()];
    for function in &run.functions {
        if let Some((instructions, time)) = function.module.and_then(|module| sums.get_mut(module as usize)) {
            *instructions = instructions.saturating_add(function.instructions);
            *time = time.saturating_add(function.self_ns);
        }
    }
    let mut order: Vec<u32> = (0..recording.modules.len() as u32).collect();
    order.sort_by_cached_key(|&own| {
        let index = place(run, &recording.modules[own as usize]);
        std::cmp::Reverse(index.map(|index| sums[index as usize]))
    });
    order
}

/// Returns those of a run's functions with the most time, or calls, that are of a module.
fn hottest(run: &Run, module: u32) -> Vec<u32> {
    let weight = |&index: &u32| {
        let function = &run.functions[index as usize];
        std::cmp::Reverse((function.self_ns, function.calls))
    };
    let ran = |function: &Function| (function.self_ns, function.calls) != (0, 0) && function.size > 0;
    let mut order: Vec<u32> = (0..run.functions.len() as u32).collect();
    order.retain(|&index| ran(&run.functions[index as usize]));
    order.sort_by_key(weight);
    order.truncate(MAX_FUNCTIONS);
    order.retain(|&index| run.functions[index as usize].module == Some(module));
    order
}

/// Makes the instructions of a report.
struct Writer<'w> {
    disassembler: Disassembler,
    lines: Option<&'w Lines>,
    files: HashMap<&'w str, u32>,
    hits: &'w BTreeMap<u64, u64>,
    period: u64,
    /// The calls by the address of the call site.
    calls: BTreeMap<u64, u64>,
    /// The number of further instructions that a report contains.
    room: &'w mut usize,
}

impl<'w> Writer<'w> {
    fn new(
        of: &Of<'w>,
        run: &'w Run,
        code: &Code,
        lines: Option<&'w Lines>,
        room: &'w mut usize,
    ) -> Writer<'w> {
        let mut calls: BTreeMap<u64, u64> = BTreeMap::new();
        for arc in &run.arcs {
            let caller = arc.caller.map(|caller| &run.functions[caller as usize]);
            if let Some(site) = arc.site.filter(|_| caller.is_some_and(|f| f.module == Some(of.module))) {
                let sum = calls.entry(site).or_default();
                *sum = sum.saturating_add(arc.calls);
            }
        }
        Writer {
            disassembler: Disassembler::new(Syntax::Att, code, |name| demangle(name).into_owned()),
            lines,
            files: (0..).zip(&run.files).map(|(index, path)| (path.as_str(), index)).collect(),
            hits: of.hits,
            period: run.sample_period_ns,
            calls,
            room,
        }
    }

    /// Returns the instructions of a function, or `None` if there is no room for them.
    fn listing(&mut self, function: u32, steps: Vec<Step>) -> Option<Listing> {
        *self.room = self.room.checked_sub(steps.len())?;
        let instructions = steps.into_iter().map(|step| self.instruction(&step)).collect();
        Some(Listing { function, instructions })
    }

    fn instruction(&mut self, step: &Step) -> Instruction {
        let address = step.instruction.ip();
        let within = address..address.saturating_add(step.instruction.len() as u64);
        let sum = |of: &BTreeMap<u64, u64>| {
            let found = of.range(within.clone()).map(|(_, &number)| number);
            found.fold(None, |sum: Option<u64>, number| Some(sum.unwrap_or(0).saturating_add(number)))
        };
        Instruction {
            address,
            count: step.count,
            self_ns: sum(self.hits).unwrap_or(0).saturating_mul(self.period),
            calls: sum(&self.calls),
            text: self.disassembler.text(&step.instruction),
            line: self.line(address),
        }
    }

    fn line(&self, address: u64) -> Option<Line> {
        let lines = self.lines?;
        let location = lines.location(address)?;
        let file = *self.files.get(lines.files().get(location.file)?.as_str())?;
        Some(Line { file, line: location.line })
    }
}

/// Returns the functions whose basic blocks were counted, those that executed the most instructions first.
fn counted(of: &Of, run: &Run, code: &Code, writer: &mut Writer) -> Vec<Listing> {
    let report = Report::new(of.profile, code, writer.lines);
    let of_module = (0..).zip(&run.functions).filter(|(_, function)| function.module == Some(of.module));
    let of_address: HashMap<u64, u32> =
        of_module.map(|(index, function)| (function.address, index)).collect();
    let mut order: Vec<usize> =
        (0..report.functions.len()).filter(|&at| report.functions[at].part_of.is_none()).collect();
    let executed = |at: usize| {
        let parts = report.parts(at).iter().map(|&part| report.sums(part).ie);
        parts.fold(report.sums(at).ie, u64::saturating_add)
    };
    order.sort_by_cached_key(|&at| std::cmp::Reverse(executed(at)));
    let mut listings = Vec::new();
    for at in order {
        let Some(&function) = of_address.get(&report.functions[at].symbol.start) else { continue };
        let counted = [at].into_iter().chain(report.parts(at).iter().copied());
        let steps: Vec<Step> =
            counted.filter(|&at| report.is_counted(at)).flat_map(|at| report.steps(at)).collect();
        if steps.is_empty() {
            continue;
        }
        let Some(listing) = writer.listing(function, steps) else { break };
        listings.push(listing);
    }
    listings
}

/// Returns functions without counts.
fn plain(functions: &[u32], run: &Run, code: &Code, writer: &mut Writer) -> Vec<Listing> {
    let mut listings = Vec::new();
    for &index in functions {
        let function = &run.functions[index as usize];
        let end = function.address.saturating_add(function.size.min(MAX_SIZE));
        let instructions = code.instructions(function.address).take_while(|next| next.ip() < end);
        let steps: Vec<Step> = instructions.map(Step::uncounted).collect();
        if steps.is_empty() {
            continue;
        }
        let Some(listing) = writer.listing(index, steps) else { break };
        listings.push(listing);
    }
    listings
}
