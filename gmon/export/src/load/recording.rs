//! A gmon.pb.gz: everything that a run has counted, sampled and measured.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gmon::{Block, BuildId, Format, Profile};
use gmon_run::{By, Costs, FunctionTimes, Program, REST, Recording};
use gprofinject_image::debug::module_file;

use crate::estimate::estimate;
use crate::load::blocks;
use crate::load::contract::Detail;
use crate::load::lines::{Places, add_lines};
use crate::load::names::demangle_all;
use crate::load::numbers::Numbers;
use crate::load::program::lines_of;
use crate::load::programs::shares;
use crate::model::{Arc, Durations, Function, Line, Module, Node, Run, Time, View};

/// The name of the callers that are not known: code that is not hooked, while no hooked function was running.
pub const OUTSIDE: &str = "[outside]";
/// The name of the code in which samples are that belong to no module.
pub const ELSEWHERE: &str = "[elsewhere]";

/// Returns what the programs of a run have done together. The indexes must be valid, as those of a file that was read are. Source lines
/// and instructions come from the modules' files, as far as these are still those of the run.
pub fn recording(recording: &Recording, detail: Detail) -> Run {
    let numbers = Numbers::new(recording);
    let mut files = Files::default();
    let functions = numbers.functions.iter().map(|&index| {
        let function = &recording.functions[index as usize];
        Function {
            name: match function.name.as_str() {
                "" => recording.place_name(function),
                name => name.to_owned(),
            },
            module: numbers.module(function.module),
            address: function.address,
            size: function.size,
            source: files.line(&function.file, function.line),
            ..Function::default()
        }
    });
    let programs = recording
        .programs
        .iter()
        .map(|program| Program { module: numbers.module(program.module).unwrap_or(0), ..program.clone() });
    let mut run = Run {
        program: title(recording),
        view: View::Process,
        start_unix_ns: recording.start_unix_ns,
        duration_ns: recording.duration_ns,
        sample_period_ns: recording.sample_period_ns,
        functions: functions.collect(),
        modules: numbers.modules.iter().map(|&index| module(&recording.modules[index as usize])).collect(),
        runs: recording.runs.clone(),
        programs: programs.collect(),
        processes: recording.processes.clone(),
        processes_left_out: recording.processes_left_out,
        shares: shares(recording),
        files: files.list,
        ..Run::default()
    };
    for hits in &recording.hits {
        if let Some(function) = numbers.function(hits.function) {
            let samples = &mut run.functions[function as usize].samples;
            *samples = samples.saturating_add(hits.samples);
        }
    }
    match recording.is_measured() {
        true => add_times(&mut run, recording, &numbers),
        false => add_samples(&mut run, recording),
    }
    add_calls(&mut run, recording, &numbers);
    demangle_all(&mut run.functions);
    run.sort_arcs();
    if !recording.is_measured() {
        estimate(&mut run);
    }
    add_files(&mut run, recording, &numbers, detail);
    run
}

/// Returns the counts of basic blocks of a module, and the calls of its functions, as the gmon.out of this module alone would have them.
/// `module` is its index in the recording.
pub fn profile_of(recording: &Recording, module: u32) -> Profile {
    let mut profile = Profile::new(Format::LITTLE_64);
    if let Some(module) = recording.modules.get(module as usize).filter(|module| !module.build_id.is_empty())
    {
        profile.build_id = BuildId::new(&module.build_id);
    }
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    for block in recording.blocks.iter().filter(|block| block.module == module) {
        let sum = blocks.entry(block.address).or_default();
        *sum = sum.saturating_add(block.executions);
    }
    profile.blocks = blocks.into_iter().map(|(addr, count)| Block { addr, count }).collect();
    let mut arcs: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let function = |index: u32| recording.functions.get(index as usize).filter(|f| f.module == module);
    for calls in &recording.calls {
        let Some(callee) = function(calls.callee) else { continue };
        // A caller elsewhere has no address in this module.
        let site = calls.caller.and_then(function).map_or(0, |_| calls.site);
        let sum = arcs.entry((site, callee.address)).or_default();
        *sum = sum.saturating_add(calls.calls);
    }
    profile.arcs = arcs.into_iter().map(|((from, to), count)| gmon::Arc { from, to, count }).collect();
    profile
}

/// Returns the words for the programs of a run. Of several, the one with the most time is named: the first one may be a wrapper (`sh -c`, make,
/// env) that has only started it.
fn title(recording: &Recording) -> String {
    let costs = Costs::of(recording);
    let by = By::best(costs.all(), recording.is_measured());
    let most = costs.by_name(recording, by).first().map_or(recording.program(), |(name, _)| *name);
    let names: BTreeSet<_> =
        recording.programs.iter().map(|program| (&program.name, program.module)).collect();
    let more = names.len().saturating_sub(1);
    match more {
        0 if recording.programs.len() > 1 => {
            let processes = gmon::counted(recording.programs.len(), "process", "processes");
            format!("{most} ({processes})")
        }
        0 => most.to_owned(),
        _ => format!("{most} and {}", gmon::counted(more, "more program", "more programs")),
    }
}

fn module(module: &gmon_run::Module) -> Module {
    Module {
        path: module.name.clone(),
        build_id: module.build_id.clone(),
        start: module.start,
        limit: module.limit,
        offset: module.offset,
    }
}

/// Adds the calls that were counted and not measured.
fn add_calls(run: &mut Run, recording: &Recording, numbers: &Numbers) {
    for calls in recording.unmeasured_calls() {
        let Some(callee) = numbers.function(calls.callee) else { continue };
        let caller = calls.caller.and_then(|caller| numbers.function(caller));
        // What is charged to the start of a function has no call site: no call is the first instruction there.
        let is_site = |&site: &u64| {
            caller.is_some_and(|caller| site > 0 && run.functions[caller as usize].address != site)
        };
        let site = Some(calls.site).filter(is_site);
        run.arcs.push(Arc { caller, callee, site, calls: calls.calls, ..Arc::default() });
        let function = &mut run.functions[callee as usize];
        function.calls = function.calls.saturating_add(calls.calls);
        if caller != Some(callee) {
            function.primitive = function.primitive.saturating_add(calls.calls);
        }
    }
}

/// Adds sampled times.
fn add_samples(run: &mut Run, recording: &Recording) {
    let elsewhere =
        recording.programs.iter().fold(0_u64, |sum, program| sum.saturating_add(program.elsewhere));
    if elsewhere > 0 {
        run.functions.push(Function {
            name: ELSEWHERE.to_owned(),
            samples: elsewhere,
            ..Function::default()
        });
    }
    for function in &mut run.functions {
        function.self_ns = function.samples.saturating_mul(recording.sample_period_ns);
        run.samples = run.samples.saturating_add(function.samples);
    }
    run.time = if recording.sample_period_ns > 0 { Time::Estimated } else { Time::None };
}

/// Adds measured calls and times.
fn add_times(run: &mut Run, recording: &Recording, numbers: &Numbers) {
    let mut sums = vec![FunctionTimes::default(); run.functions.len()];
    for row in &recording.rows {
        let Some(function) = numbers.function(row.function) else { continue };
        sums[function as usize].add(row);
        run.rows.push(FunctionTimes { function, ..row.clone() });
    }
    for (function, sum) in run.functions.iter_mut().zip(sums) {
        (function.calls, function.primitive) = (sum.calls, sum.primitive);
        (function.self_ns, function.inclusive_ns) = (sum.self_ns, sum.inclusive_ns);
        (function.self_raw_ns, function.inclusive_raw_ns) = (sum.self_raw_ns, sum.inclusive_raw_ns);
        function.open = sum.open;
        function.durations = Durations::of(&sum, &recording.intervals);
        run.samples = run.samples.saturating_add(function.samples);
    }
    for arc in &recording.arcs {
        let Some(callee) = numbers.function(arc.callee) else { continue };
        run.arcs.push(Arc {
            caller: arc.caller.and_then(|caller| numbers.function(caller)),
            callee,
            calls: arc.calls,
            self_ns: arc.self_ns,
            inclusive_ns: arc.inclusive_ns,
            open: arc.open,
            min_ns: arc.min_ns,
            max_ns: arc.max_ns,
            ..Arc::default()
        });
    }
    let nodes = recording.nodes.iter().map(|node| Node {
        parent: node.parent,
        function: Some(node.function)
            .filter(|&function| function != REST)
            .and_then(|at| numbers.function(at)),
        thread: node.thread,
        calls: node.calls,
        self_ns: node.self_ns,
        samples: node.samples,
    });
    run.nodes = nodes.collect();
    run.nodes_lost = recording.nodes_lost;
    run.threads.clone_from(&recording.threads);
    run.clock = Some(recording.clock);
    run.intervals.clone_from(&recording.intervals);
    run.time = Time::Measured { error_ns: recording.clock.error_ns };
}

/// Adds what the modules' files say: source lines, and the instructions of basic blocks that were counted.
fn add_files(run: &mut Run, recording: &Recording, numbers: &Numbers, detail: Detail) {
    let has_lines = detail == Detail::Lines && !recording.is_measured();
    let mut samples: HashMap<u32, Vec<(u32, u64, f64)>> = HashMap::new();
    for hits in recording.hits.iter().filter(|hits| hits.address > 0) {
        if let Some(function) = numbers.function(hits.function)
            && let Some(module) = run.functions[function as usize].module
        {
            samples.entry(module).or_default().push((function, hits.address, hits.samples as f64));
        }
    }
    let counted: BTreeSet<u32> = recording.blocks.iter().map(|block| block.module).collect();
    let mut files = Vec::new();
    for (index, &own) in (0..).zip(&numbers.modules) {
        let is_counted = counted.contains(&own);
        let Module { path, build_id, .. } = &run.modules[index as usize];
        let path = Path::new(path);
        // The recording has names of source files too, which the owner of the program has chosen.
        if detail == Detail::Lines
            && path.is_absolute()
            && let Ok(metadata) = std::fs::metadata(path)
        {
            run.owners.insert(metadata.uid());
        }
        if (has_lines || is_counted)
            && path.is_absolute()
            && let Some((bytes, owner)) = module_file(path, build_id)
            && recording.modules[own as usize].is_of(&bytes)
        {
            run.owners.insert(owner);
            files.push((index, own, is_counted, path.to_owned(), bytes));
        }
    }
    let has_calls = !recording.calls.is_empty();
    for (module, own, _, path, bytes) in files.iter().filter(|(_, _, is_counted, ..)| *is_counted) {
        let of = blocks::Of { module: *module, path, bytes, has_calls };
        // A file whose instructions cannot be read says nothing.
        let _ = blocks::add(run, of, &profile_of(recording, *own), detail);
    }
    if !has_lines {
        return;
    }
    let mut places = Places::new(run);
    for (module, _, _, path, bytes) in &files {
        if let Some(lines) = lines_of(path, bytes) {
            add_lines(&mut places, *module, &lines, samples.get(module).map_or(&[][..], Vec::as_slice));
        }
    }
    places.finish();
}

/// The paths of source files, each once.
#[derive(Default)]
struct Files {
    index: HashMap<String, u32>,
    list: Vec<String>,
}

impl Files {
    fn line(&mut self, path: &str, line: u32) -> Option<Line> {
        if path.is_empty() || line == 0 {
            return None;
        }
        let file = match self.index.get(path) {
            Some(&file) => file,
            None => {
                let file = self.list.len() as u32;
                self.index.insert(path.to_owned(), file);
                self.list.push(path.to_owned());
                file
            }
        };
        Some(Line { file, line })
    }
}
