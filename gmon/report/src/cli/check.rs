//! `gmon check`: looks for what is wrong in the files of a run, or for what exceeds a budget.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gmon::{Program, Severity};
use gmon_run::Recording;

use crate::cli::args::CheckArgs;
use crate::cli::run::{DEFAULT_FILE, DEFAULT_PROFILE};
use crate::cli::text::{Out, plain, standard_output};
use crate::cli::{budget, files, records};

/// Checks the files, or a run against a budget, or prints records. Returns whether something is wrong.
///
/// # Errors
/// A file cannot be read, or the run does not have what the budget bounds.
pub(crate) fn run(args: &CheckArgs) -> Result<bool> {
    if let Some(file) = &args.budget {
        return budget::run(file, args);
    }
    let program = args.program.as_deref().map(files::read_program).transpose()?;
    let paths = paths(args)?;
    let mut found = false;
    let mut out = standard_output();
    if args.records {
        records::records(args, &paths, program.as_ref(), &mut out)?;
    } else {
        for path in &paths {
            found |= check(args, path, program.as_ref(), &mut out)?;
        }
    }
    out.flush()?;
    Ok(found)
}

/// Returns the files that the user has named, or those of the newest run here.
///
/// # Errors
/// No file is named, and there is none here.
fn paths(args: &CheckArgs) -> Result<Vec<PathBuf>> {
    if !args.files.is_empty() {
        return Ok(args.files.clone());
    }
    // A recording has no records.
    let names = if args.records { &[DEFAULT_PROFILE][..] } else { &[DEFAULT_PROFILE, DEFAULT_FILE] };
    let here: Vec<PathBuf> = names.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    if here.is_empty() {
        bail!("no {} in this folder; `gprofinject PROG` writes it", names.join(" or "));
    }
    Ok(here)
}

/// Prints what is wrong with a file. Returns whether that is an error.
fn check(args: &CheckArgs, path: &Path, program: Option<&Program>, out: &mut Out) -> Result<bool> {
    let bytes = files::read_any_kind(path)?;
    let path = path.display();
    if files::is_gzip(&bytes) {
        let read = Recording::read(&bytes);
        if let Err(error) = &read {
            writeln!(out, "{}", plain(&format!("{path}: error: {error}")))?;
        }
        return Ok(read.is_err());
    }
    let mut found = false;
    let options = args.form.resolve(&bytes, program);
    for finding in gmon::check(&bytes, &options, program) {
        found |= finding.severity == Severity::Error;
        writeln!(out, "{}", plain(&format!("{path}: {finding}")))?;
    }
    Ok(found)
}
