//! Reads a trace, and what the user wants of it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gmon_trace::{Choice, Damage, Trace};
use gprofinject_image::names::similar::similar;

use crate::cli::files;
use crate::cli::text::{chosen_in_module, demangled};
use crate::cli::trace_args::TraceArgs;

/// The number of damaged parts that messages tell of.
const DAMAGE_SHOWN: usize = 10;

/// Reads a trace but for its events.
///
/// # Errors
/// The file cannot be read, or is no trace.
pub(crate) fn load(path: &Path) -> Result<Trace> {
    let input = files::trace_input(path)?;
    Trace::read(input).map_err(|error| match error {
        gmon_trace::OpenError::NoTrace => {
            anyhow::anyhow!("{}: {error}; `gprofinject --trace FILE PROG` writes one", path.display())
        }
        _ => anyhow::Error::from(error).context(path.display().to_string()),
    })
}

/// Returns what the user wants to see. `functions`: whether the selection of functions applies to calls.
///
/// # Errors
/// There is no such function, thread or process.
pub(crate) fn choice(trace: &Trace, path: &Path, args: &TraceArgs, functions: bool) -> Result<Choice> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        bail!("--from is after --to");
    }
    if !args.pid.is_empty()
        && !trace.processes.iter().any(|recorded| args.pid.contains(&recorded.process.pid))
    {
        let mut pids: Vec<u32> = trace.processes.iter().map(|recorded| recorded.process.pid).collect();
        pids.dedup();
        let known: Vec<String> = pids.iter().take(20).map(u32::to_string).collect();
        bail!(
            "{}: no process has the number that --pid asks for; there are {}",
            path.display(),
            known.join(", ")
        );
    }
    Ok(Choice {
        from: args.from,
        to: args.to,
        tids: args.tid.clone(),
        pids: args.pid.clone(),
        functions: if functions { chosen(trace, path, args)? } else { None },
    })
}

/// Returns for each function whether a pattern matches its name, or `None` if there is no pattern.
fn chosen(trace: &Trace, path: &Path, args: &TraceArgs) -> Result<Option<Vec<bool>>> {
    if args.function.is_empty() {
        return Ok(None);
    }
    let chosen: Vec<bool> = trace
        .functions
        .iter()
        .map(|function| chosen_in_module(&args.function, trace.module(function), &function.name))
        .collect();
    if !chosen.contains(&true) {
        let (file, wanted) = (path.display(), args.function.join(" or "));
        let near = similar(&args.function, trace.functions.iter().map(|function| demangled(&function.name)));
        match near.is_empty() {
            true => bail!("{file}: no function is called {wanted}"),
            false => bail!("{file}: no function is called {wanted}; similar names: {}", near.join(", ")),
        }
    }
    Ok(Some(chosen))
}

/// Prints to standard error what of a trace cannot be read or is not known.
pub(crate) fn warn(trace: &Trace, path: &Path, later: &[Damage]) {
    let path = path.display();
    let all = || trace.damage.iter().chain(later);
    for damage in all().take(DAMAGE_SHOWN) {
        eprintln!("gmon: {path}: damaged: {damage}");
    }
    let more = all().count().saturating_sub(DAMAGE_SHOWN);
    if more > 0 {
        eprintln!("gmon: {path}: damaged: {} more", gmon::counted(more, "part", "parts"));
    }
    if trace.processes.iter().any(|recorded| !recorded.clock.is_known()) {
        eprintln!(
            "gmon: {path}: it does not say how fast the time stamp counter is, so a tick is shown as a nanosecond"
        );
    }
}

/// Opens a file to write to.
///
/// # Errors
/// It cannot be written.
pub(crate) fn output(path: &Path) -> Result<std::fs::File> {
    files::spare_input(path)?;
    let target = if path == Path::new("-") {
        gmon::output::Target::standard_output()
    } else {
        gmon::output::Target::check(path)
    };
    target.and_then(|target| target.begin(&[])).with_context(|| path.display().to_string())
}
