//! `gmon trace`: prints a trace, or writes it in the format of another tool.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::EscapedJson;
use gmon_export::load::Detail;

use crate::cli::files;
use crate::cli::recordings;
use crate::cli::reports::flat::flat;
use crate::cli::reports::values::values;
use crate::cli::run::DEFAULT_FILE;
use crate::cli::run_view::RunView;
use crate::cli::table_args::{FlatArgs, TableArgs, ValuesArgs};
use crate::cli::text::standard_output;
use crate::cli::trace_args::TraceArgs;
use crate::cli::traces::load::{choice, load, output, warn};
use crate::cli::traces::measured::{Times, measured};
use crate::cli::traces::timeline::beside;
use crate::cli::traces::{chrome, folded, json, perfetto, text};

/// Prints or writes the trace. What of it is damaged is said at the end, on standard error.
///
/// # Errors
/// The file is no trace, there is no such function, or the output cannot be written.
pub(crate) fn run(mut args: TraceArgs) -> Result<()> {
    let file = match args.file.take() {
        Some(file) => file,
        None => newest()?,
    };
    if args.form.stats || args.form.values {
        return statistics(args, &file);
    }
    let trace = load(&file)?;
    let choice = choice(&trace, &file, &args, true)?;
    if let Some(path) = args.form.perfetto.as_ref().or(args.form.chrome.as_ref()) {
        let mut out = BufWriter::with_capacity(1 << 16, output(path)?);
        let raw = args.shown.no_demangle;
        let written = match args.form.perfetto {
            Some(_) => perfetto::perfetto(&trace, &choice, raw, &mut out),
            None => chrome::chrome(&trace, &choice, raw, &mut EscapedJson(&mut out)),
        };
        let damage = written
            .and_then(|damage| out.flush().map(|()| damage))
            .with_context(|| path.display().to_string())?;
        warn(&trace, &file, &damage);
        return Ok(());
    }
    let mut out = standard_output();
    let damage = if args.shown.json {
        json::json(&trace, &choice, &mut out)?
    } else if args.form.folded {
        folded::folded(&trace, &choice, args.shown.no_demangle, &mut out)?
    } else {
        text::text(&trace, &choice, &args, &mut out)?
    };
    out.flush()?;
    warn(&trace, &file, &damage);
    Ok(())
}

/// Returns the trace of the run in this folder.
///
/// # Errors
/// There is no run here, or no trace of it.
fn newest() -> Result<PathBuf> {
    let run = Path::new(DEFAULT_FILE);
    if !run.exists() {
        bail!("no trace named, and no {DEFAULT_FILE} in this folder; `gmon trace FILE` shows one");
    }
    let recording = recordings::parse(run, &files::read_any_kind(run)?)?;
    let found = beside(run, &gmon_export::load::recording(&recording, Detail::Functions));
    found.with_context(|| {
        format!(
            "no NAME.trace of the run in {DEFAULT_FILE} in this folder; `gmon trace FILE` shows a trace of another name, and \
             `gprofinject --trace FILE PROG` writes one"
        )
    })
}

/// Prints the times of functions, modules or threads, or the values of arguments.
fn statistics(args: TraceArgs, file: &Path) -> Result<()> {
    let trace = load(file)?;
    let choice = choice(&trace, file, &args, false)?;
    let Times { measured, damage, lost, is_too_deep, uncounted } =
        measured(&trace, &choice, args.form.values);
    let TraceArgs { form, function, by, sort, raw, paths, histogram, rows, shown, .. } = args;
    let common = TableArgs { function, rows, shown, ..TableArgs::default() };
    let run = gmon_export::load::recording(&measured, Detail::Functions);
    let mut out = standard_output();
    if form.values {
        if run.values.is_empty() {
            bail!(
                "{}: the trace has no values of arguments; `gprofinject --trace FILE --args 'FUNCTION@arg1/u64' PROG` writes them",
                file.display()
            );
        }
        let args = ValuesArgs { common, paths, histogram };
        values(&RunView::new(&args.common, &run, None)?, &args, &mut out)?;
    } else {
        let args = FlatArgs { common, by, sort: Some(sort), raw, ..FlatArgs::default() };
        flat(&RunView::new(&args.common, &run, None)?, &args, &mut out)?;
    }
    out.flush()?;
    warn(&trace, file, &damage);
    let path = file.display();
    if lost > 0 {
        let events = gmon::counted(lost, "event is", "events are");
        eprintln!("gmon: {path}: {events} missing; the numbers and times are of the others");
    }
    if uncounted > 0 {
        let values = gmon::counted(uncounted, "value is", "values are");
        eprintln!(
            "gmon: {path}: {values} missing: there are too many callers; -f does not help, --from and --to do"
        );
    }
    if is_too_deep {
        eprintln!("gmon: {path}: calls within more than a million others are left out");
    }
    Ok(())
}
