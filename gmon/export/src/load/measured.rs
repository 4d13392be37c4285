//! The measured times of a gmon.pb.gz.

use std::collections::HashMap;

use gmon_measured::{FunctionTimes, Intervals, Measured, REST};

use crate::load::names::demangle_all;
use crate::model::{Arc, Durations, Function, Line, Module, Node, Run, Thread, ThreadFunction, Time, View};

/// Returns what was measured. The indexes must be valid, as those of a file that was read are.
pub fn measured(measured: &Measured) -> Run {
    let mut files = Files::default();
    let functions = measured.functions.iter().map(|function| Function {
        name: name(measured, function),
        module: Some(function.module),
        address: function.address,
        source: files.line(&function.file, function.line),
        samples: function.samples,
        ..Function::default()
    });
    let mut functions: Vec<_> = functions.collect();
    let mut sums = vec![FunctionTimes::default(); functions.len()];
    for row in &measured.rows {
        sums[row.function as usize].add(row);
    }
    for (function, sum) in functions.iter_mut().zip(sums) {
        (function.calls, function.primitive) = (sum.calls, sum.primitive);
        (function.self_ns, function.inclusive_ns) = (sum.self_ns, sum.inclusive_ns);
        function.durations = durations(&sum, &measured.intervals);
    }
    demangle_all(&mut functions);
    let arcs = measured.arcs.iter().map(|arc| Arc {
        caller: arc.caller,
        callee: arc.callee,
        calls: arc.calls,
        self_ns: arc.self_ns,
        inclusive_ns: arc.inclusive_ns,
        ..Arc::default()
    });
    let nodes = measured.nodes.iter().map(|node| Node {
        parent: node.parent,
        function: Some(node.function).filter(|&function| function != REST),
        thread: node.thread,
        calls: node.calls,
        self_ns: node.self_ns,
        samples: node.samples,
    });
    let rows = measured.rows.iter().map(|row| ThreadFunction {
        function: row.function,
        thread: row.thread,
        calls: row.calls,
        self_ns: row.self_ns,
        inclusive_ns: row.inclusive_ns,
        durations: durations(row, &measured.intervals),
    });
    let threads = measured.threads.iter().map(|thread| Thread {
        pid: thread.pid,
        tid: thread.tid,
        name: thread.name.clone(),
        life_ns: thread.life_ns,
        outside_ns: thread.outside_ns,
        overhead_ns: thread.overhead_ns,
    });
    let modules = measured.modules.iter().map(|module| Module {
        path: module.name.clone(),
        build_id: module.build_id.clone(),
        start: module.start,
        limit: module.limit,
        offset: module.offset,
    });
    let mut run = Run {
        program: measured.program.clone(),
        view: View::Process,
        time: Time::Measured { error_ns: measured.clock.error_ns },
        start_unix_ns: measured.start_unix_ns,
        duration_ns: measured.duration_ns,
        sample_period_ns: measured.sample_period_ns,
        samples: functions.iter().fold(0, |sum, function| sum.saturating_add(function.samples)),
        modules: modules.collect(),
        functions,
        arcs: arcs.collect(),
        nodes: nodes.collect(),
        threads: threads.collect(),
        rows: rows.collect(),
        files: files.list,
        ..Run::default()
    };
    run.sort_arcs();
    run
}

/// Returns how long the calls took; `None` if none of them has returned.
fn durations(times: &FunctionTimes, intervals: &Intervals) -> Option<Durations> {
    Some(Durations {
        min_ns: times.min_ns,
        p50_ns: times.quantile_ns(intervals, 0.5)?,
        p99_ns: times.quantile_ns(intervals, 0.99)?,
        max_ns: times.max_ns,
    })
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

/// Returns a function's name. Stripped code has its place in its module as its name.
fn name(measured: &Measured, function: &gmon_measured::Function) -> String {
    if !function.name.is_empty() {
        return function.name.clone();
    }
    let module = measured.modules.get(function.module as usize).map_or("", |module| &module.name);
    let file = module.rsplit('/').next().unwrap_or(module);
    format!("{file}+{:#x}", function.address)
}
