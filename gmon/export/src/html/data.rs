//! What the page's script gets: tables in columns, as JSON.
//!
//! A column that is `null` was not measured. `data.js` reads all of it.

use serde::Serialize;

use crate::html::extras::{Extras, Listing};
use crate::html::facts::{self, Fact};
use crate::html::paths::{self, Kept};
use crate::html::sources::{self, Source};
use crate::model::{Arc, Durations, Function, Node, Run, Time};

#[derive(Serialize)]
pub(crate) struct Data<'r> {
    program: &'r str,
    facts: Vec<Fact>,
    notes: Vec<String>,
    time: Times,
    /// The time of which the times of functions are shares, in nanoseconds.
    total: u64,
    modules: Vec<Module<'r>>,
    threads: Vec<Thread<'r>>,
    files: &'r [String],
    functions: Functions<'r>,
    arcs: Arcs,
    cycles: Vec<Cycle>,
    nodes: Option<Nodes>,
    rows: Option<Rows>,
    sources: Option<Vec<Source>>,
    code: Option<Vec<Code<'r>>>,
}

/// What the times are.
#[derive(Serialize)]
struct Times {
    /// `measured`, `sampled` or `none`.
    kind: &'static str,
    /// The columns that are estimates. `arcs` stands for those of arcs.
    estimated: &'static [&'static str],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Module<'r> {
    name: &'r str,
    path: &'r str,
    /// In hexadecimal.
    build_id: String,
}

/// A thread, with times in nanoseconds.
#[derive(Serialize)]
struct Thread<'r> {
    name: &'r str,
    tid: u32,
    life: u64,
    outside: u64,
    overhead: u64,
}

/// A row for each function. Times are in nanoseconds.
#[derive(Serialize)]
struct Functions<'r> {
    name: Vec<&'r str>,
    /// Indexes of modules.
    module: Vec<usize>,
    /// The index of the source file plus 1, or 0.
    file: Vec<u32>,
    line: Vec<u32>,
    calls: Vec<u64>,
    primitive: Vec<u64>,
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    inclusive: Option<Vec<u64>>,
    #[serde(flatten)]
    durations: Option<Spread>,
    /// CPU time, of runs whose self times are something else.
    cpu: Option<Vec<u64>>,
    instructions: Option<Vec<u64>>,
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

/// A row for each caller and callee, sorted by caller.
#[derive(Serialize)]
struct Arcs {
    /// The index of the caller plus 1, or 0 for none; as the difference from the row before.
    caller: Vec<u32>,
    callee: Vec<u32>,
    calls: Vec<u64>,
    #[serde(rename = "self")]
    own: Option<Vec<u64>>,
    inclusive: Option<Vec<u64>>,
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
    calls: Vec<u64>,
    #[serde(rename = "self")]
    own: Vec<u64>,
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
    text: Vec<&'r str>,
    /// The index of the source file plus 1, or 0.
    file: Vec<u32>,
    line: Vec<u32>,
}

impl<'r> Data<'r> {
    /// Collects the tables of a run.
    pub(crate) fn new(run: &'r Run, extras: &'r mut Extras) -> Data<'r> {
        let nodes = paths::kept(&run.nodes);
        let notes = facts::notes(run, &nodes);
        let sources = match extras.source.take() {
            Some(read) => sources::sources(run, read),
            None => sources::sources(run, &mut |_| None),
        };
        let code = code(&extras.listings);
        Data {
            program: &run.program,
            facts: facts::facts(run),
            notes,
            time: times(run),
            total: run.total_ns(),
            modules: modules(run),
            threads: threads(run),
            files: &run.files,
            functions: functions(run),
            arcs: arcs(run),
            cycles: cycles(run),
            nodes: (!run.nodes.is_empty()).then(|| columns(&nodes)),
            rows: (!run.rows.is_empty()).then(|| rows(run)),
            sources,
            code: (!code.is_empty()).then_some(code),
        }
    }
}

fn times(run: &Run) -> Times {
    match run.time {
        Time::None => Times { kind: "none", estimated: &[] },
        Time::Estimated => Times { kind: "sampled", estimated: &["inclusive", "mean", "arcs"] },
        Time::Measured { .. } => Times { kind: "measured", estimated: &[] },
    }
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
            tid: thread.tid,
            life: thread.life_ns,
            outside: thread.outside_ns,
            overhead: thread.overhead_ns,
        })
        .collect()
}

fn functions(run: &Run) -> Functions<'_> {
    let column = |value: fn(&Function) -> u64| run.functions.iter().map(value).collect::<Vec<_>>();
    let timed = run.time.is_some();
    let sampled = run.time.is_measured() && run.sample_period_ns > 0;
    let cpu = |function: &Function| function.samples.saturating_mul(run.sample_period_ns);
    Functions {
        name: run.functions.iter().map(|function| function.demangled.as_str()).collect(),
        module: run
            .functions
            .iter()
            .map(|function| function.module.map_or(run.modules.len(), |module| module as usize))
            .collect(),
        file: run.functions.iter().map(|function| function.source.map_or(0, |line| line.file + 1)).collect(),
        line: run.functions.iter().map(|function| function.source.map_or(0, |line| line.line)).collect(),
        calls: column(|function| function.calls),
        primitive: column(|function| function.primitive),
        own: timed.then(|| column(|function| function.self_ns)),
        inclusive: timed.then(|| column(|function| function.inclusive_ns)),
        durations: run
            .time
            .is_measured()
            .then(|| spread(run.functions.iter().map(|function| function.durations))),
        cpu: sampled.then(|| run.functions.iter().map(cpu).collect()),
        instructions: run.has_instructions.then(|| column(|function| function.instructions)),
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
    let column = |value: fn(&Arc) -> u64| pairs.iter().map(value).collect::<Vec<_>>();
    let timed = run.time.is_some();
    let mut before = 0;
    let mut difference = |arc: &Arc| {
        let caller = arc.caller.map_or(0, |caller| caller + 1);
        caller - std::mem::replace(&mut before, caller)
    };
    Arcs {
        caller: pairs.iter().map(&mut difference).collect(),
        callee: pairs.iter().map(|arc| arc.callee).collect(),
        calls: column(|arc| arc.calls),
        own: timed.then(|| column(|arc| arc.self_ns)),
        inclusive: timed.then(|| column(|arc| arc.inclusive_ns)),
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

fn columns(kept: &Kept) -> Nodes {
    let nodes = &kept.nodes;
    let distance = |(at, node): (usize, &Node)| node.parent.map_or(0, |parent| at as u32 - parent);
    Nodes {
        parent: nodes.iter().enumerate().map(distance).collect(),
        function: nodes.iter().map(|node| node.function.map_or(0, |function| function + 1)).collect(),
        thread: nodes.iter().map(|node| node.thread).collect(),
        calls: nodes.iter().map(|node| node.calls).collect(),
        own: nodes.iter().map(|node| node.self_ns).collect(),
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
        text: instructions.iter().map(|instruction| instruction.text.as_str()).collect(),
        file: instructions.iter().map(|i| i.line.map_or(0, |line| line.file + 1)).collect(),
        line: instructions.iter().map(|i| i.line.map_or(0, |line| line.line)).collect(),
    });
    code.collect()
}
