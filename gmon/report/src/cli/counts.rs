//! `gmon lines` and `gmon asm`: what the counts of basic blocks say, module by module.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use gmon_run::PYTHON;
use gprofinject_image::debug::Authors;

use crate::cli::files;
use crate::cli::load;
use crate::cli::missing::{Lacking, Missing};
use crate::cli::report_args::{AsmArgs, By, Column, LinesArgs, ReportArgs, RowsArgs};
use crate::cli::reports::python::Python;
use crate::cli::reports::{asm, blocks, coverage, lines, sampled, sums};
use crate::cli::run::{self, Source};
use crate::cli::text::{Out, standard_output};
use crate::cli::view::{Frame, View};

/// Prints the source with counts, or what is asked for in its place.
///
/// # Errors
/// Options do not go together, files cannot be read, or there is nothing to show.
pub(crate) fn lines(args: &LinesArgs) -> Result<()> {
    check(args)?;
    let common = &args.common;
    match (args.by, args.coverage, args.lcov.as_deref()) {
        (Some(By::Function), ..) => {
            each(common, "gmon-lines-by-function", |view, out| sums::functions(view, args, out))
        }
        (Some(By::File), ..) => each(common, "gmon-lines-by-file", |view, out| sums::files(view, args, out)),
        (None, false, None) => {
            let source = run::open(&common.files)?;
            let of_counts = [
                ("--apart", args.apart),
                ("--all-counts", args.all_counts),
                ("--instructions", args.instructions),
            ];
            let is_python = |module: &String| module == PYTHON;
            if let Some((option, _)) = of_counts.iter().find(|(_, is_given)| *is_given)
                && common.module.iter().any(is_python)
            {
                bail!("{option}: of counts of basic blocks, but lines of Python functions have samples only");
            }
            let python = match &source {
                Source::Recording { recording, is_library: false, .. } => Python::of(recording, args),
                _ => Ok(None),
            };
            let write = |view: &View, out: &mut Out| match view.loaded.is_sampled() {
                true => sampled::lines(view, args, out),
                false => lines::lines(view, args, out),
            };
            each_of(&source, common, "gmon-lines", python, write)
        }
        (None, true, None) => each(common, "gmon-coverage", coverage::coverage),
        (None, false, Some(path)) if path == Path::new("-") => each(common, "", coverage::lcov),
        (None, has_table, Some(path)) => {
            let mut trace = Vec::new();
            each(common, "gmon-coverage", |view, out| {
                coverage::lcov(view, &mut trace)?;
                if has_table { coverage::coverage(view, out) } else { Ok(()) }
            })?;
            files::replace(path, &trace, &Authors::among(files::owners()))
        }
    }
}

/// Prints the disassembly with counts, or the basic blocks.
///
/// # Errors
/// Options do not go together, files cannot be read, or there is nothing to show.
pub(crate) fn asm(args: &AsmArgs) -> Result<()> {
    match args.blocks {
        true if args.syntax.is_some() => bail!("--syntax: --blocks prints no instructions"),
        true => each(&args.common, "gmon-blocks", |view, out| blocks::blocks(view, args, out)),
        false => {
            needs("--blocks", args.sort.is_some(), &args.rows)?;
            each(&args.common, "gmon-asm", |view, out| match view.loaded.is_sampled() {
                true => sampled::asm(view, args, out),
                false => asm::asm(view, args, out),
            })
        }
    }
}

/// Checks that the options go together.
fn check(args: &LinesArgs) -> Result<()> {
    let sources = &args.sources;
    let of_source = [
        ("--apart", args.apart),
        ("--all-counts", args.all_counts),
        ("--instructions", args.instructions),
        ("--source-dir", !sources.source_dir.is_empty()),
        ("--substitute-path", !sources.substitute_path.is_empty()),
    ];
    let modes = [("--by", args.by.is_some()), ("--coverage", args.coverage), ("--lcov", args.lcov.is_some())];
    let mut given = modes.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let mode = given.next();
    if let (Some(by @ "--by"), Some(other)) = (mode, given.next()) {
        bail!("{other} and {by} are different reports; give one of them");
    }
    if let Some(mode) = mode
        && let Some((option, _)) = of_source.iter().find(|(_, is_given)| *is_given)
    {
        bail!("{option}: with {mode}, no source is shown");
    }
    if args.by.is_none() {
        needs("--by function or --by file", args.sort.is_some(), &args.rows)?;
    }
    if args.by == Some(By::File) && args.sort == Some(Column::Address) {
        bail!("--sort address: files have none");
    }
    match args.lcov.as_deref() {
        Some(path) if path == Path::new("-") && args.coverage => {
            bail!("--coverage and --lcov - would both be written to standard output; give one of them")
        }
        Some(_) if args.common.shown.json && !args.coverage => {
            bail!("--json: --lcov writes lcov's format; --coverage --json prints JSON")
        }
        _ => Ok(()),
    }
}

/// Checks that there are no options of tables where no table is printed.
fn needs(mode: &str, sorts: bool, rows: &RowsArgs) -> Result<()> {
    match (sorts, rows.limit) {
        (true, _) => bail!("--sort: only with {mode}"),
        (_, Some(_)) => bail!("-n: only with {mode}"),
        _ => Ok(()),
    }
}

/// Makes a report of each module of the run that was counted and that the user has selected. Others are shown if one cannot be.
fn each(
    args: &ReportArgs,
    schema: &'static str,
    write: impl FnMut(&View, &mut Out) -> Result<()>,
) -> Result<()> {
    each_of(&run::open(&args.files)?, args, schema, Ok(None), write)
}

/// Does the same for a run that was read, and shows first what is known of lines of Python, if that is asked for.
fn each_of(
    source: &Source,
    args: &ReportArgs,
    schema: &'static str,
    python: Result<Option<Python>, Missing>,
    mut write: impl FnMut(&View, &mut Out) -> Result<()>,
) -> Result<()> {
    // Other reports are sums of counts.
    let has_samples = matches!(schema, "gmon-lines" | "gmon-asm");
    let modules = match (load::counted(args, source, has_samples), &python) {
        // There may be nothing else.
        (Err(_), Ok(Some(_)) | Err(_)) => Vec::new(),
        (modules, _) => modules?,
    };
    let is_only = modules.len() + usize::from(!matches!(python, Ok(None))) == 1;
    let frame = Frame::new(schema, args.shown.json, !is_only);
    let mut lacking = Lacking::default();
    let mut shown = 0;
    let mut out = standard_output();
    match python {
        Ok(Some(python)) => {
            python.write(&load::results(source), &frame, &mut out)?;
            shown += 1;
        }
        Ok(None) => {}
        Err(missing) => lacking.add(missing, is_only),
    }
    for module in &modules {
        let mut report = || {
            // A module is dropped before the next one is read.
            let loaded = load::load(args, source, module)?;
            write(&View::new(args, &loaded, &frame)?, &mut out)
        };
        match report().map_err(anyhow::Error::downcast::<Missing>) {
            Ok(()) => shown += 1,
            Err(Ok(missing)) => lacking.add(missing, is_only),
            Err(Err(error)) => return Err(error),
        }
    }
    if shown == 0 {
        return lacking.fail();
    }
    frame.end(&mut out)?;
    out.flush()?;
    lacking.complain();
    Ok(())
}
