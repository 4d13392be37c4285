//! `gmon html`: writes a report for a browser.

use std::path::Path;

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_export::html::{self, Extras, Listing, SourceLines};
use gmon_export::load::Detail;
use gmon_export::{Run, html::listings};

use crate::cli::run::DEFAULT_PROFILE;
use crate::cli::run_args::HtmlArgs;
use crate::cli::sources::Sources;
use crate::cli::{files, run};

/// The file name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Writes the report.
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
    let detail = if args.no_source { Detail::Functions } else { Detail::Lines };
    let run = run::load(&args.files, detail)?;
    let listings = if args.no_source { Vec::new() } else { instructions(args, &run)? };
    let mut sources = Sources::new(&args.sources, &args.files.run[0])?;
    let mut read = |path: &str| -> Option<SourceLines> { sources.read(path) };
    let source: Option<&mut dyn FnMut(&str) -> Option<SourceLines>> =
        if args.no_source { None } else { Some(&mut read) };
    let mut page = Vec::new();
    html::write(&run, &mut Extras { source, listings }, &mut page).context("the report")?;
    target.write(&page).with_context(|| name.to_string())?;
    sources.complain();
    if let Some(file) = target.file() {
        let size = page.len().div_ceil(1000);
        eprintln!(
            "gmon: wrote {} ({size} kB); open it in a browser",
            file.display().to_string().escape_debug()
        );
    }
    Ok(())
}

/// Returns the instructions with their counts, if the run counted basic blocks.
fn instructions(args: &HtmlArgs, run: &Run) -> Result<Vec<Listing>> {
    let program = &args.files.run[0];
    if !run.has_instructions {
        return Ok(Vec::new());
    }
    let result = args.files.run.get(1).map_or(Path::new(DEFAULT_PROFILE), |path| path);
    let bytes = files::read_elf(program)?;
    let names = files::parse_program(program, &bytes)?;
    let profile = run::profile(result, &files::read_any(result)?, &args.files.form, Some(&names))?;
    listings(program, &bytes, &profile, run).with_context(|| program.display().to_string())
}
