//! From a recording to its analysis: one row for each function that occurs, with the sums of all programs and threads.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gmon::{Block, BuildId, Format, Profile};
use gmon_run::{By, ClockSource, Costs, FunctionTimes, Node, Program, Recording, Stack, Values};
use gprofinject_image::debug::module_file;

use crate::estimate::estimate;
use crate::load::blocks;
use crate::load::contract::Detail;
use crate::load::lines::{Places, add_interpreted, add_lines, lines_of};
use crate::load::names::demangle_all;
use crate::load::numbers::Numbers;
use crate::load::programs::shares;
use crate::load::samples::Samples;
use crate::model::{Arc, Durations, Function, Line, Run, Time, View, is_short};
use crate::sampled;

/// The name of the callers that are not known: code that is not hooked, while no hooked function was running.
pub const OUTSIDE: &str = "[outside]";
/// The name of the code in which samples are that belong to no module.
pub const ELSEWHERE: &str = "[elsewhere]";

/// The files of modules, from which source lines and instructions come.
#[derive(Clone, Copy)]
pub(crate) enum Files<'f> {
    /// Those at the paths of the modules, as far as they are still those of the run.
    OfModules,
    /// That of the only program, whose gmon.out has its own view of its calls.
    OfProgram(&'f Path, &'f [u8]),
    /// None, for a gmon.out of which only functions and calls are wanted.
    Unread,
}

/// Returns what the programs of a run have done together. The indexes must be valid, as those of a file that was read are. Source lines
/// and instructions come from the modules' files, as far as these are still those of the run.
pub fn recording(recording: &Recording, detail: Detail) -> Run {
    analysis(recording, &Samples::of(recording), Files::OfModules, detail)
}

/// Returns the analysis of a recording, with the samples that functions get.
pub(crate) fn analysis(recording: &Recording, samples: &Samples, files: Files, detail: Detail) -> Run {
    let is_own = !matches!(files, Files::OfModules);
    let is_measured = recording.is_measured();
    let numbers = Numbers::new(recording);
    let mut paths = Paths::default();
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
            source: paths.line(&function.file, function.line),
            ..Function::default()
        }
    });
    let programs = recording
        .programs
        .iter()
        .map(|program| Program { module: numbers.module(program.module).unwrap_or(0), ..program.clone() });
    let mut run = Run {
        program: title(recording),
        view: if is_own { View::Program } else { View::Process },
        start_unix_ns: recording.start_unix_ns,
        duration_ns: recording.duration_ns,
        sample_period_ns: recording.sample_period_ns,
        functions: functions.collect(),
        modules: numbers.modules.iter().map(|&index| recording.modules[index as usize].clone()).collect(),
        runs: recording.runs.clone(),
        programs: programs.collect(),
        processes: recording.processes.clone(),
        processes_left_out: recording.processes_left_out,
        shares: if is_own { Vec::new() } else { shares(recording) },
        files: paths.list,
        ..Run::default()
    };
    add_samples(&mut run, samples, &numbers);
    match is_measured {
        true => add_times(&mut run, recording, &numbers),
        false if is_own => {}
        false => add_elsewhere(&mut run, recording),
    }
    add_calls(&mut run, recording, &numbers);
    run.slow.append(recording.slow.clone(), Some, |function| numbers.function(function).unwrap_or(0));
    run.values.extend(recording.values.iter().filter_map(|of| {
        let caller = of.caller.and_then(|caller| numbers.function(caller));
        Some(Values { function: numbers.function(of.function)?, caller, ..of.clone() })
    }));
    demangle_all(&mut run.functions, &run.modules);
    run.sort_arcs();
    match run.time {
        _ if recording.has_sampled_stacks() => add_stacks(&mut run, recording, &numbers),
        Time::Measured { .. } | Time::Executed => {}
        _ => estimate(&mut run),
    }
    add_files(&mut run, recording, samples, &numbers, files, detail);
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
fn add_samples(run: &mut Run, samples: &Samples, numbers: &Numbers) {
    let mut sums = vec![0.0; run.functions.len()];
    for hit in &samples.hits {
        if let Some(function) = numbers.function(hit.function) {
            sums[function as usize] += hit.samples;
        }
    }
    for (function, sum) in run.functions.iter_mut().zip(sums) {
        function.samples = sum.round() as u64;
        function.self_ns = (sum * samples.period_ns).round() as u64;
    }
    run.samples = samples.all;
    run.time = if samples.period_ns > 0.0 { Time::Estimated } else { Time::None };
}

/// Adds the samples in no known file.
fn add_elsewhere(run: &mut Run, recording: &Recording) {
    let samples = recording.programs.iter().fold(0_u64, |sum, program| sum.saturating_add(program.elsewhere));
    if samples > 0 {
        let self_ns = samples.saturating_mul(recording.sample_period_ns);
        run.functions.push(Function { name: ELSEWHERE.to_owned(), samples, self_ns, ..Function::default() });
    }
}

/// Adds the tree of sampled stacks, and the inclusive times that it says.
fn add_stacks(run: &mut Run, recording: &Recording, numbers: &Numbers) {
    let number = |function: Option<u32>| function.and_then(|function| numbers.function(function));
    let node = |stack: &Stack| {
        sampled::node(stack, stack.parent, number(stack.function), recording.sample_period_ns)
    };
    run.nodes = recording.whole_stacks().iter().map(node).collect();
    // The samples in no known file have no stack.
    for (function, known) in (0..).zip(&run.functions).skip(numbers.functions.len()) {
        let (samples, self_ns) = (known.samples, known.self_ns);
        run.nodes.push(Node { function: Some(function), samples, self_ns, ..Node::default() });
    }
    run.time = Time::Sampled;
    sampled::add_times(run);
}

/// Adds measured calls and times.
fn add_times(run: &mut Run, recording: &Recording, numbers: &Numbers) {
    let ready = recording.threads.iter().map(|thread| thread.ready_ns);
    let sum = ready.reduce(|sum, ready| Some(sum?.saturating_add(ready?)));
    run.ready_ns = sum.flatten();
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
        function.waiting_ns = run.ready_ns.filter(|_| sum.calls > 0).map(|_| sum.waiting_ns);
        function.open = sum.open;
        function.counted = sum.counted;
        function.is_short = is_short(sum.calls, sum.counted, sum.inclusive_ns, &recording.clock);
        function.durations = Durations::of(&sum, &recording.intervals);
    }
    run.samples = run.functions.iter().fold(0, |sum, function| sum.saturating_add(function.samples));
    for arc in &recording.arcs {
        let Some(callee) = numbers.function(arc.callee) else { continue };
        run.arcs.push(Arc {
            caller: arc.caller.and_then(|caller| numbers.function(caller)),
            callee,
            calls: arc.calls,
            self_ns: arc.self_ns,
            inclusive_ns: arc.inclusive_ns,
            open: arc.open,
            counted: arc.counted,
            is_short: is_short(arc.calls, arc.counted, arc.inclusive_ns, &recording.clock),
            min_ns: arc.min_ns,
            max_ns: arc.max_ns,
            ..Arc::default()
        });
    }
    let function = |node: &Node| node.function.and_then(|function| numbers.function(function));
    let nodes = recording.nodes.iter().map(|node| Node { function: function(node), ..*node });
    run.nodes = nodes.collect();
    run.nodes_lost = recording.nodes_lost;
    run.threads.clone_from(&recording.threads);
    run.clock = Some(recording.clock);
    run.intervals.clone_from(&recording.intervals);
    run.time = match recording.clock.source {
        ClockSource::Instructions => Time::Executed,
        ClockSource::Tsc | ClockSource::ClockGettime => Time::Measured { error_ns: recording.clock.error_ns },
    };
}

/// Adds what the modules' files say: source lines, and the instructions of basic blocks that were counted.
fn add_files(
    run: &mut Run,
    recording: &Recording,
    samples: &Samples,
    numbers: &Numbers,
    files: Files,
    detail: Detail,
) {
    let has_lines = detail == Detail::Lines && !recording.is_measured();
    let counted: BTreeSet<u32> = recording.blocks.iter().map(|block| block.module).collect();
    let is_wanted = |own: &u32| has_lines || counted.contains(own);
    let known = match files {
        Files::Unread => Vec::new(),
        Files::OfProgram(path, bytes) => vec![(0, 0, Cow::Borrowed(path), Cow::Borrowed(bytes))],
        Files::OfModules => of_modules(run, recording, numbers, is_wanted, detail),
    };
    let has_calls = !recording.calls.is_empty();
    for (module, own, path, bytes) in known.iter().filter(|(_, own, ..)| counted.contains(own)) {
        let of = blocks::Of { module: *module, path, bytes, has_calls };
        blocks::add(run, of, &profile_of(recording, *own), detail);
    }
    if !has_lines {
        return;
    }
    let mut hits: HashMap<u32, Vec<(u32, u64, f64)>> = HashMap::new();
    for hit in samples.hits.iter().filter(|hit| hit.address > 0) {
        if let Some(function) = numbers.function(hit.function)
            && let Some(module) = run.functions[function as usize].module
        {
            hits.entry(module).or_default().push((function, hit.address, hit.samples));
        }
    }
    let mut places = Places::new(run);
    for (module, _, path, bytes) in &known {
        if let Some(lines) = lines_of(path, bytes) {
            add_lines(&mut places, *module, &lines, hits.get(module).map_or(&[][..], Vec::as_slice));
        }
    }
    for of in &recording.lines {
        if let Some(function) = numbers.function(of.function) {
            add_interpreted(&mut places, function, of);
        }
    }
    places.finish();
}

/// A module's index in the run and in the recording, its path and its bytes.
type ModuleFile<'f> = (u32, u32, Cow<'f, Path>, Cow<'f, [u8]>);

/// Returns the wanted ones of the files at the paths of the modules.
fn of_modules(
    run: &mut Run,
    recording: &Recording,
    numbers: &Numbers,
    is_wanted: impl Fn(&u32) -> bool,
    detail: Detail,
) -> Vec<ModuleFile<'static>> {
    let mut files = Vec::new();
    for (index, &own) in (0..).zip(&numbers.modules) {
        let module = &recording.modules[own as usize];
        let path = Path::new(&module.path);
        if !path.is_absolute() {
            continue;
        }
        // The recording has names of source files too, which the owner of the program has chosen.
        if detail == Detail::Lines
            && let Ok(metadata) = std::fs::metadata(path)
        {
            run.owners.insert(metadata.uid());
        }
        if is_wanted(&own)
            && let Some((bytes, owner)) = module_file(path, &module.build_id)
            && module.is_of(&bytes)
        {
            run.owners.insert(owner);
            files.push((index, own, Cow::Owned(path.to_owned()), Cow::Owned(bytes)));
        }
    }
    files
}

/// The paths of source files, each once.
#[derive(Default)]
struct Paths {
    index: HashMap<String, u32>,
    list: Vec<String>,
}

impl Paths {
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
