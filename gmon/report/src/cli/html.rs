//! `gmon html`: writes a report for a browser.

use std::path::Path;

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_export::Run;
use gmon_export::html::{self, Extras, Listing, listings};
use gmon_export::load::Detail;
use gprofinject_image::debug::Authors;

use crate::cli::files::{parse_program, read_any, read_elf, restricted};
use crate::cli::report_args::SourceArgs;
use crate::cli::run::{self, DEFAULT_PROFILE};
use crate::cli::run_args::{HtmlArgs, RunArgs};
use crate::cli::sources::Sources;
use crate::cli::text::plain;

/// The file name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Writes the report to its file.
///
/// # Errors
/// A file cannot be read or written, or the files do not belong together.
pub(crate) fn run(args: &HtmlArgs) -> Result<()> {
    let name = args.output.display();
    // What cannot be written is said before a large run is read.
    let target = match args.output.as_os_str() == STANDARD_OUTPUT {
        true => Target::standard_output(),
        false => Target::check(&args.output),
    };
    let target = target.with_context(|| name.to_string())?;
    let (page, authors) = page(&args.files, Some(&args.sources).filter(|_| !args.no_source))?;
    let target = restricted(target, &authors);
    target.write(&page).with_context(|| name.to_string())?;
    if let Some(file) = target.file() {
        let (file, size) = (file.display().to_string(), page.len().div_ceil(1000));
        eprintln!("gmon: wrote {} ({size} kB); open it in a browser", plain(&file));
    }
    Ok(())
}

/// Returns the report, and the other users who have made what it is about. Without `sources`, it has neither source lines nor
/// disassembly.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn page(files: &RunArgs, sources: Option<&SourceArgs>) -> Result<(Vec<u8>, Authors)> {
    let mut page = Vec::new();
    let Some(sources) = sources else {
        let run = run::load(files, Detail::Functions)?;
        html::write(&run, &mut Extras::default(), &mut page)?;
        return Ok((page, run::authors(&run)));
    };
    let run = run::load(files, Detail::Lines)?;
    let listings = instructions(files, &run)?;
    let mut sources = Sources::new(sources, &files.run[0], run::authors(&run))?;
    let mut read = |path: &str| sources.read(path);
    html::write(&run, &mut Extras { source: Some(&mut read), listings }, &mut page)?;
    sources.complain();
    Ok((page, run::authors(&run)))
}

/// Returns the instructions with their counts, if the run counted basic blocks.
fn instructions(files: &RunArgs, run: &Run) -> Result<Vec<Listing>> {
    if !run.has_instructions {
        return Ok(Vec::new());
    }
    let program = &files.run[0];
    let result = files.run.get(1).map_or(Path::new(DEFAULT_PROFILE), |path| path);
    let bytes = read_elf(program)?;
    let names = parse_program(program, &bytes)?;
    let profile = run::profile(result, &read_any(result)?, &files.form, Some(&names))?;
    listings(program, &bytes, &profile, run).with_context(|| program.display().to_string())
}
