//! `gmon diff`: prints what has changed between two runs.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gmon_export::Run;
use gmon_export::html::write_difference;
use gmon_export::load::Detail;
use gprofinject_image::debug::Authors;

use crate::cli::comparison::Comparison;
use crate::cli::diff_args::DiffArgs;
use crate::cli::reports::difference;
use crate::cli::text::standard_output;
use crate::cli::{files, html, run};

/// Prints the differences. Returns whether something has become worse by more than the threshold.
///
/// # Errors
/// A file cannot be read, or the runs cannot be compared.
pub(crate) fn run(args: &DiffArgs) -> Result<bool> {
    let [old, new] = both(args)?;
    let comparison = Comparison::new(&old, &new, args.sort, args.threshold)?;
    if let Some(output) = &args.html {
        page(&old, &new, output, args.open)?;
        return Ok(comparison.is_worse());
    }
    let mut out = standard_output();
    if args.json {
        difference::json(&comparison, args.rows(0), &mut out)?;
    } else {
        difference::text(&comparison, args, &mut out)?;
    }
    out.flush()?;
    Ok(comparison.is_worse())
}

/// Writes the page that compares the runs.
///
/// # Errors
/// It cannot be written.
fn page(old: &Run, new: &Run, output: &Path, open: bool) -> Result<()> {
    let target = html::target(output)?;
    let mut bytes = Vec::new();
    write_difference(old, new, &mut bytes)?;
    let owners = old.owners.iter().chain(&new.owners).copied();
    let authors = Authors::among(files::owners().into_iter().chain(owners));
    html::write(output, target, &bytes, &authors, open, "")
}

/// Reads both runs. A program is that of all results after it, up to the next program.
fn both(args: &DiffArgs) -> Result<[Run; 2]> {
    let mut program: Option<&PathBuf> = None;
    let mut runs = Vec::new();
    for path in &args.files {
        if files::is_elf(&files::read_start(path)?) {
            program = Some(path);
            continue;
        }
        let paths: Vec<PathBuf> = program.into_iter().chain([path]).cloned().collect();
        runs.push(run::load_files(&paths, &args.part, &args.form, Detail::Functions)?);
    }
    match <[Run; 2]>::try_from(runs) {
        Ok(runs) => Ok(runs),
        Err(runs) => bail!(
            "{} named, expected two: the old one and the new one",
            gmon::counted(runs.len(), "result is", "results are")
        ),
    }
}
