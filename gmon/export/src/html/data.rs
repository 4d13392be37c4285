//! What the page's script gets: tables in columns, as JSON.
//!
//! A column that is `null` was not measured. `data.js` reads all of it.

use serde::Serialize;

use crate::html::extras::{Extras, Listing};
use crate::html::facts::{self, Fact};
use crate::html::paths::{self, Kept};
use crate::html::shorter::shorter;
use crate::html::sources::{self, Source};
use crate::html::timeline::Timeline;
use crate::html::values::{self, OfArgument};
use crate::likely::Paths;
use crate::model::{Arc, Durations, Function, ProgramFunction, Run, Time};
use crate::processes::{Branch, Tree, duration_ns, failure, is_seen};
use gmon_run::Node;

#[derive(Serialize)]
pub(crate) struct Data<'r> {
    program: &'r str,
    facts: Vec<Fact>,
    notes: Vec<String>,
    time: Times,
    /// The time of which the times of functions are shares, in nanoseconds.
    total: u64,
    modules: Vec<Module<'r>>,
    programs: Vec<Program<'r>>,
    processes: Processes,
    threads: Vec<Thread<'r>>,
    files: &'r [String],
    functions: Functions<'r>,
    arcs: Arcs,
    cycles: Vec<Cycle>,
    nodes: Option<Nodes>,
    /// By thread.
    rows: Option<Rows>,
    /// By program.
    #[serde(rename = "programRows")]
    program_rows: Option<ProgramRows>,
    sources: Option<Vec<Source>>,
    code: Option<Vec<Code<'r>>>,
    timeline: Option<&'r Timeline>,
    values: Option<Vec<OfArgument<'r>>>,
}

/// What the times are.
#[derive(Serialize)]
struct Times {
    /// `measured`, `sampled` or `none`.
    kind: &'static str,
    /// The columns that are estimates. `arcs` stands for those of arcs, and `paths` for the flame graph.
    estimated: Vec<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Module<'r> {
    name: &'r str,
    path: &'r str,
    /// In hexadecimal.
    build_id: String,
}

/// A program of the run.
#[derive(Serialize)]
struct Program<'r> {
    name: &'r str,
    /// The index of its module.
    module: u32,
    processes: u32,
    /// The number of its process, or 0.
    pid: u32,
}

/// The processes with the most time, each behind its parent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Processes {
    rows: Vec<Process>,
    left_out: u64,
}

/// A process, with times in nanoseconds; `null` is not known.
#[derive(Serialize)]
struct Process {
    /// The index of its program.
    program: u32,
    pid: u32,
    /// The number of its ancestors among the rows.
    depth: usize,
    begin: Option<u64>,
    life: Option<u64>,
    calls: Option<u64>,
    #[serde(rename = "self")]
    own: Option<u64>,
    /// How it has failed, in words.
    failure: Option<String>,
}

/// A thread, with times in nanoseconds.
#[derive(Serialize)]
struct Thread<'r> {
    name: &'r str,
    /// The index of its program.
    program: u32,
    tid: u32,
    life: u64,
    outside: u64,
    overhead: u64,
}

/// A row for each function. Times are in nanoseconds. What was not counted is `null`.
#[derive(Serialize)]
struct Functions<'r> {
    name: Vec<&'r str>,
    /// Shorter names, where there are any.
    short: Vec<Option<String>>,
    /// Indexes of modules.
    module: Vec<usize>,
    /// The index of the source file plus 1, or 0.
    file: Vec<u32>,
    line: Vec<u32>,
    calls: Vec<Option<u64>>,
    primitive: Vec<Option<u64>>,
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    inclusive: Option<Vec<u64>>,
    #[serde(flatten)]
    durations: Option<Spread>,
    /// CPU time, of runs whose self times are something else.
    cpu: Option<Vec<u64>>,
    instructions: Option<Vec<Option<u64>>>,
    /// The index of the cycle plus 1, or 0.
    cycle: Option<Vec<u32>>,
}

/// How long calls took, in nanoseconds; `null` where no call has returned.
#[derive(Serialize)]
struct Spread {
    min: Vec<Option<u64>>,
    p50: Vec<Option<u64>>,
    p99: Vec<Option<u64>>,
    max: Vec<Option<u64>>,
}

/// A row for each caller and callee, sorted by caller. Times that cannot be estimated are `null`.
#[derive(Serialize)]
struct Arcs {
    /// The index of the caller plus 1, or 0 for none; as the difference from the row before.
    caller: Vec<u32>,
    callee: Vec<u32>,
    /// `null` if no call was counted, and the arc is on sampled stacks.
    calls: Vec<Option<u64>>,
    #[serde(rename = "self")]
    own: Option<Vec<Option<u64>>>,
    inclusive: Option<Vec<Option<u64>>>,
}

#[derive(Serialize)]
struct Cycle {
    calls: u64,
    #[serde(rename = "self")]
    own: u64,
    inclusive: u64,
    functions: usize,
}

/// A row for each node of the trees of paths, parents before their children.
#[derive(Serialize)]
struct Nodes {
    /// How many rows before this one the parent is; 0: none.
    parent: Vec<u32>,
    /// The index of the function plus 1; 0: calls without a node of their own.
    function: Vec<u32>,
    thread: Vec<u32>,
    /// `null` if the paths are sampled stacks or an estimate.
    calls: Option<Vec<u64>>,
    #[serde(rename = "self")]
    own: Vec<u64>,
}

/// A row for each function in each program.
#[derive(Serialize)]
struct ProgramRows {
    function: Vec<u32>,
    program: Vec<u32>,
    calls: Vec<Option<u64>>,
    primitive: Vec<Option<u64>>,
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    inclusive: Option<Vec<u64>>,
    #[serde(flatten)]
    durations: Option<Spread>,
}

/// A row for each function in each thread.
#[derive(Serialize)]
struct Rows {
    function: Vec<u32>,
    thread: Vec<u32>,
    calls: Vec<u64>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    inclusive: Vec<u64>,
    #[serde(flatten)]
    durations: Spread,
}

/// The instructions of a function.
#[derive(Serialize)]
struct Code<'r> {
    function: u32,
    address: Vec<u64>,
    count: Vec<Option<u64>>,
    /// The CPU time by samples, if any instruction has some.
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    /// The calls that each instruction has made, if any has.
    calls: Option<Vec<Option<u64>>>,
    text: Vec<&'r str>,
    /// The index of the source file plus 1, or 0.
    file: Vec<u32>,
    line: Vec<u32>,
}

impl<'r> Data<'r> {
    /// Collects the tables of a run.
    pub(crate) fn new(run: &'r Run, extras: &'r mut Extras) -> Data<'r> {
        let paths = Paths::of(run);
        let nodes = paths::kept(&paths.nodes);
        let notes = facts::notes(run, &nodes, paths.nodes.len());
        let sources = match extras.source.take() {
            Some(read) => sources::sources(run, read),
            None => sources::sources(run, &mut |_| None),
        };
        let code = code(&extras.listings);
        Data {
            program: &run.program,
            facts: facts::facts(run),
            notes,
            time: times(run, paths.is_estimate),
            total: run.total_ns(),
            modules: modules(run),
            programs: programs(run),
            processes: processes(run),
            threads: threads(run),
            files: &run.files,
            functions: functions(run),
            arcs: arcs(run),
            cycles: cycles(run),
            nodes: (!nodes.nodes.is_empty())
                .then(|| columns(&nodes, run.time.is_measured() && !paths.is_estimate)),
            rows: (!run.rows.is_empty()).then(|| rows(run)),
            program_rows: (!extras.programs.is_empty()).then(|| program_rows(run, &extras.programs)),
            sources,
            code: (!code.is_empty()).then_some(code),
            timeline: extras.timeline.as_ref(),
            values: (!run.values.is_empty()).then(|| values::of(run)),
        }
    }
}

fn times(run: &Run, has_likely_paths: bool) -> Times {
    let (kind, estimated): (_, &[_]) = match run.time {
        Time::None => ("none", &[]),
        Time::Sampled => ("sampled", &[]),
        Time::Estimated => ("sampled", &["inclusive", "mean", "arcs"]),
        Time::Measured { .. } => ("measured", &[]),
        Time::Executed => ("executed", &[]),
    };
    let paths = has_likely_paths.then_some("paths");
    Times { kind, estimated: estimated.iter().copied().chain(paths).collect() }
}

fn programs(run: &Run) -> Vec<Program<'_>> {
    let programs = run.programs.iter();
    programs
        .map(|program| Program {
            name: &program.name,
            module: program.module,
            processes: program.processes,
            pid: program.pid,
        })
        .collect()
}

fn processes(run: &Run) -> Processes {
    /// More than anybody reads, and few enough for a page.
    const MOST: usize = 300;
    let Tree { branches, left_out } = run.process_tree(MOST);
    let row = |&Branch { process, depth }: &Branch| {
        let process = run.processes.get(process)?;
        Some(Process {
            program: process.program,
            pid: process.pid,
            depth,
            begin: is_seen(process).then(|| process.begin_us.saturating_mul(1000)),
            life: duration_ns(process),
            calls: counted(process.calls),
            own: run.time.is_some().then(|| run.self_ns_of(process)),
            failure: failure(process),
        })
    };
    Processes { rows: branches.iter().filter_map(row).collect(), left_out }
}

/// Returns a count, or `None` for 0: a function that has samples and no calls is not hooked.
fn counted(count: u64) -> Option<u64> {
    (count > 0).then_some(count)
}

/// Returns the modules, and one more if there are functions whose module is not known.
fn modules(run: &Run) -> Vec<Module<'_>> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let known = run.modules.iter();
    let mut modules: Vec<_> = known
        .map(|module| Module { name: module.name(), path: &module.path, build_id: hex(&module.build_id) })
        .collect();
    if run.functions.iter().any(|function| function.module.is_none()) {
        modules.push(Module { name: "[unknown]", path: "", build_id: String::new() });
    }
    modules
}

fn threads(run: &Run) -> Vec<Thread<'_>> {
    let threads = run.threads.iter();
    threads
        .map(|thread| Thread {
            name: &thread.name,
            program: thread.program,
            tid: thread.tid,
            life: thread.life_ns,
            outside: thread.outside_ns,
            overhead: thread.overhead_ns,
        })
        .collect()
}

/// Returns the short names of functions, where these differ. Code that was made at run time has none.
fn short_names(run: &Run) -> Vec<Option<String>> {
    let short = shorter(run.functions.iter().map(|function| function.demangled.as_str()));
    let is_generated =
        |function: &Function| run.module_of(function).is_some_and(gmon_run::Module::is_generated);
    let all = short.into_iter().zip(&run.functions);
    all.map(|(short, function)| short.filter(|_| !is_generated(function))).collect()
}

fn functions(run: &Run) -> Functions<'_> {
    let column = |value: fn(&Function) -> u64| run.functions.iter().map(value).collect::<Vec<_>>();
    let counts = |value: fn(&Function) -> Option<u64>| run.functions.iter().map(value).collect::<Vec<_>>();
    let timed = run.time.is_some();
    let has_cpu = run.time.is_measured() && (run.sample_period_ns > 0 || run.ready_ns.is_some());
    let cpu = |function: &Function| function.cpu_ns(run.sample_period_ns).unwrap_or(0);
    Functions {
        name: run.functions.iter().map(|function| function.demangled.as_str()).collect(),
        short: short_names(run),
        module: run
            .functions
            .iter()
            .map(|function| function.module.map_or(run.modules.len(), |module| module as usize))
            .collect(),
        file: run.functions.iter().map(|function| function.source.map_or(0, |line| line.file + 1)).collect(),
        line: run.functions.iter().map(|function| function.source.map_or(0, |line| line.line)).collect(),
        // A function of which all calls are recursive was called.
        calls: counts(|function| counted(function.calls)),
        primitive: counts(|function| counted(function.calls).map(|_| function.primitive)),
        own: timed.then(|| column(|function| function.self_ns)),
        inclusive: timed.then(|| column(|function| function.inclusive_ns)),
        durations: run
            .time
            .is_measured()
            .then(|| spread(run.functions.iter().map(|function| function.durations))),
        cpu: has_cpu.then(|| run.functions.iter().map(cpu).collect()),
        instructions: run.has_instructions.then(|| counts(|function| counted(function.instructions))),
        cycle: (!run.cycles.is_empty()).then(|| {
            run.functions.iter().map(|function| function.cycle.map_or(0, |cycle| cycle + 1)).collect()
        }),
    }
}

fn spread(durations: impl Iterator<Item = Option<Durations>> + Clone) -> Spread {
    let column = |value: fn(Durations) -> u64| durations.clone().map(|of| of.map(value)).collect();
    Spread {
        min: column(|of| of.min_ns),
        p50: column(|of| of.p50_ns),
        p99: column(|of| of.p99_ns),
        max: column(|of| of.max_ns),
    }
}

fn arcs(run: &Run) -> Arcs {
    let pairs = run.pairs();
    let timed = run.time.is_some();
    // gprof's rule divides no time among the functions of a circle, nor a function's among its calls of itself.
    let is_within = |arc: &Arc| {
        let of = |function: u32| (function, run.functions[function as usize].cycle);
        arc.caller.is_some_and(|caller| {
            let ((caller, outer), (callee, inner)) = (of(caller), of(arc.callee));
            caller == callee || outer.is_some() && outer == inner
        })
    };
    let is_known = |arc: &Arc| run.time != Time::Estimated || !is_within(arc);
    let time = |value: fn(&Arc) -> u64| pairs.iter().map(|arc| is_known(arc).then(|| value(arc))).collect();
    let mut before = 0;
    let mut difference = |arc: &Arc| {
        let caller = arc.caller.map_or(0, |caller| caller + 1);
        caller - std::mem::replace(&mut before, caller)
    };
    Arcs {
        caller: pairs.iter().map(&mut difference).collect(),
        callee: pairs.iter().map(|arc| arc.callee).collect(),
        calls: pairs.iter().map(|arc| counted(arc.calls)).collect(),
        own: timed.then(|| time(|arc| arc.self_ns)),
        inclusive: timed.then(|| time(|arc| arc.inclusive_ns)),
    }
}

fn cycles(run: &Run) -> Vec<Cycle> {
    let cycles = run.cycles.iter();
    cycles
        .map(|cycle| Cycle {
            calls: cycle.calls,
            own: cycle.self_ns,
            inclusive: cycle.inclusive_ns,
            functions: cycle.functions.len(),
        })
        .collect()
}

fn columns(kept: &Kept, has_calls: bool) -> Nodes {
    let nodes = &kept.nodes;
    let distance = |(at, node): (usize, &Node)| node.parent.map_or(0, |parent| at as u32 - parent);
    Nodes {
        parent: nodes.iter().enumerate().map(distance).collect(),
        function: nodes.iter().map(|node| node.function.map_or(0, |function| function + 1)).collect(),
        thread: nodes.iter().map(|node| node.thread).collect(),
        calls: has_calls.then(|| nodes.iter().map(|node| node.calls).collect()),
        own: nodes.iter().map(|node| node.self_ns).collect(),
    }
}

fn program_rows(run: &Run, rows: &[ProgramFunction]) -> ProgramRows {
    let time =
        |value: fn(&ProgramFunction) -> u64| run.time.is_some().then(|| rows.iter().map(value).collect());
    ProgramRows {
        function: rows.iter().map(|row| row.function).collect(),
        program: rows.iter().map(|row| row.program).collect(),
        calls: rows.iter().map(|row| counted(row.calls)).collect(),
        primitive: rows.iter().map(|row| counted(row.calls).map(|_| row.primitive)).collect(),
        own: time(|row| row.self_ns),
        inclusive: time(|row| row.inclusive_ns),
        durations: run.time.is_measured().then(|| spread(rows.iter().map(|row| row.durations))),
    }
}

fn rows(run: &Run) -> Rows {
    Rows {
        function: run.rows.iter().map(|row| row.function).collect(),
        thread: run.rows.iter().map(|row| row.thread).collect(),
        calls: run.rows.iter().map(|row| row.calls).collect(),
        own: run.rows.iter().map(|row| row.self_ns).collect(),
        inclusive: run.rows.iter().map(|row| row.inclusive_ns).collect(),
        durations: spread(run.rows.iter().map(|row| Durations::of(row, &run.intervals))),
    }
}

fn code(listings: &[Listing]) -> Vec<Code<'_>> {
    let code = listings.iter().map(|Listing { function, instructions }| Code {
        function: *function,
        address: instructions.iter().map(|instruction| instruction.address).collect(),
        count: instructions.iter().map(|instruction| instruction.count).collect(),
        own: instructions
            .iter()
            .any(|instruction| instruction.self_ns > 0)
            .then(|| instructions.iter().map(|instruction| instruction.self_ns).collect()),
        calls: instructions
            .iter()
            .any(|instruction| instruction.calls.is_some())
            .then(|| instructions.iter().map(|instruction| instruction.calls).collect()),
        text: instructions.iter().map(|instruction| instruction.text.as_str()).collect(),
        file: instructions.iter().map(|i| i.line.map_or(0, |line| line.file + 1)).collect(),
        line: instructions.iter().map(|i| i.line.map_or(0, |line| line.line)).collect(),
    });
    code.collect()
}
