//! The time line of a trace for the report of a browser, and the trace of the run that a report is about.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gmon_export::Run;
use gmon_export::html::{Collector, Span, Timeline};
use gmon_trace::{Callee, Choice, Ended, Step, Trace, What};
use gprofinject_image::names::demangle::demangle;

use crate::cli::files;
use crate::cli::traces::load::{load, warn};
use crate::cli::traces::names;
use crate::cli::traces::tracks::Tracks;

/// The ending of the names of files that are looked at.
const ENDING: &str = "trace";
/// The most files that are looked at.
const MOST: usize = 50;

/// Reads the time line of a trace. What of it is damaged is said on standard error.
///
/// # Errors
/// The file cannot be read, or is no trace.
pub(crate) fn timeline(path: &Path) -> Result<Timeline> {
    let trace = load(path)?;
    let choice = Choice::default();
    let mut lines = Lines {
        trace: &trace,
        collector: Collector::default(),
        names: vec![None; trace.functions.len()],
        tracks: Tracks::default(),
    };
    let mut steps = trace.steps(&choice);
    for step in steps.by_ref() {
        let stack = lines.tracks.stack(&step).unwrap_or(0);
        match &step.what {
            What::End(ended) | What::Leaf(_, ended) => lines.add(&step, stack, ended),
            _ => {}
        }
    }
    let damage = steps.damage().to_vec();
    warn(&trace, path, &damage);
    Ok(lines.collector.finish())
}

struct Lines<'t> {
    trace: &'t Trace,
    collector: Collector,
    /// The number of the name of each function, by index.
    names: Vec<Option<u32>>,
    tracks: Tracks,
}

impl Lines<'_> {
    fn add(&mut self, step: &Step, stack: u64, ended: &Ended) {
        let trace = self.trace;
        let function = self.name(ended.function);
        let start = trace.elapsed(step.process, ended.began);
        let length = trace.elapsed(step.process, ended.ended).saturating_sub(start);
        let recorded = trace.processes.get(step.process as usize);
        let pid = recorded.map_or(0, |recorded| recorded.process.pid);
        let name = || recorded.map_or_else(String::new, |recorded| names::thread(recorded, step.tid));
        let stack = u32::try_from(stack).unwrap_or(u32::MAX);
        self.collector.add((pid, step.tid, stack), name, Span::new(function, ended.depth, start, length));
    }

    /// Returns the number of a function's name, which is the one that the tables of the run have.
    fn name(&mut self, callee: Callee) -> u32 {
        let known = callee.index.and_then(|index| self.names.get(index as usize).copied().flatten());
        if let Some(number) = known {
            return number;
        }
        let name = match self.trace.function(callee) {
            Some(function) if function.name.is_empty() => {
                let module = self.trace.module(function);
                let file = module.rsplit('/').next().unwrap_or(module);
                format!("{file}+{:#x}", function.address)
            }
            _ => demangle(&names::symbol(self.trace, callee)).into_owned(),
        };
        let number = self.collector.name(&name);
        if let Some(place) = callee.index.and_then(|index| self.names.get_mut(index as usize)) {
            *place = Some(number);
        }
        number
    }
}

/// Returns the trace of a run that is beside its file: one that began during the run, and has a program of the run.
pub(crate) fn beside(file: &Path, run: &Run) -> Option<PathBuf> {
    let folder =
        file.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == ENDING) && path.is_file())
        .take(MOST)
        .collect();
    paths.sort();
    paths.into_iter().find(|path| is_of(path, run))
}

/// Whether a file is a trace of a run.
fn is_of(path: &Path, run: &Run) -> bool {
    let Some(trace) = files::trace_input(path).ok().and_then(|input| Trace::read(input).ok()) else {
        return false;
    };
    let end = run.start_unix_ns.saturating_add(run.duration_ns);
    let programs = trace.processes.iter().map(|recorded| recorded.process.program.as_str());
    let has_program = |program: &str| run.modules.iter().any(|module| module.path == program);
    run.start_unix_ns > 0
        && (run.start_unix_ns..=end).contains(&trace.start_unix_ns)
        && programs.into_iter().any(has_program)
}
