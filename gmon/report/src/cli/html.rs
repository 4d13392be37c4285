//! `gmon html`: writes a report for a browser.

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_export::html::{self, Extras};
use gmon_export::load::Detail;
use gprofinject_image::debug::Authors;

use crate::cli::files::restricted;
use crate::cli::report_args::SourceArgs;
use crate::cli::run;
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
    let source = run::open(files)?;
    let Some(sources) = sources else {
        let run = source.run(Detail::Functions)?;
        html::write(&run, &mut Extras::default(), &mut page)?;
        return Ok((page, run::authors(&run)));
    };
    let run = source.run(Detail::Lines)?;
    let listings = source.listings(&run)?;
    let mut sources = Sources::new(sources, &source.program(), run::authors(&run))?;
    let mut read = |path: &str| sources.read(path);
    html::write(&run, &mut Extras { source: Some(&mut read), listings }, &mut page)?;
    sources.complain();
    Ok((page, run::authors(&run)))
}
