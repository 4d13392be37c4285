//! `gmon html`: writes a report for a browser.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_export::Run;
use gmon_export::html::{self, Extras, Timeline};
use gmon_export::load::Detail;
use gprofinject_image::debug::Authors;

use crate::cli::browser;
use crate::cli::export_args::HtmlArgs;
use crate::cli::files::{self, restricted};
use crate::cli::report_args::SourceArgs;
use crate::cli::run::{self, Source};
use crate::cli::run_args::RunArgs;
use crate::cli::sources::Sources;
use crate::cli::text::plain;
use crate::cli::traces::timeline::{beside, timeline};

/// The file name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// A report, and what is known of it.
pub(crate) struct Page {
    pub(crate) bytes: Vec<u8>,
    /// The other users who have made what it is about.
    pub(crate) authors: Authors,
    /// The trace whose time line it has.
    trace: Option<PathBuf>,
}

/// Writes the report to its file, and opens it if the user wants that.
///
/// # Errors
/// A file cannot be read or written, or the files do not belong together.
pub(crate) fn run(args: &HtmlArgs) -> Result<()> {
    let target = target(&args.output)?;
    let page = page(&args.files, Some(&args.sources).filter(|_| !args.no_source), args.trace.as_deref())?;
    let trace = page
        .trace
        .as_deref()
        .map(|trace| format!(" with the time line of {}", plain(&trace.display().to_string())));
    write(&args.output, target, &page.bytes, &page.authors, args.open, &trace.unwrap_or_default())
}

/// Returns the target for a report, before a large run is read.
///
/// # Errors
/// It cannot be written.
pub(crate) fn target(output: &Path) -> Result<Target> {
    let target = match output.as_os_str() == STANDARD_OUTPUT {
        true => Target::standard_output(),
        false => Target::check(output),
    };
    target.with_context(|| output.display().to_string())
}

/// Writes a report, says where it is, and opens it if the user wants that. `remark` is what is said of its contents.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(
    output: &Path,
    target: Target,
    page: &[u8],
    authors: &Authors,
    open: bool,
    remark: &str,
) -> Result<()> {
    files::spare_input(output)?;
    let target = restricted(target, authors);
    target.write(page).with_context(|| output.display().to_string())?;
    let Some(file) = target.file() else { return Ok(()) };
    let (name, size) = (plain(&file.display().to_string()), page.len().div_ceil(1000));
    let wrote = format!("gmon: wrote {name} ({size} kB){remark}");
    match open.then(|| browser::open(file)) {
        None => eprintln!("{wrote}; open it in a browser"),
        Some(None) => eprintln!("{wrote}"),
        Some(Some(why)) => eprintln!("{wrote}; {}", plain(&why)),
    }
    Ok(())
}

/// Returns the report. Without `sources`, it has neither source lines nor disassembly. Without `trace`, its time line is that of the
/// run's own trace, if this is beside the run's file.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn page(files: &RunArgs, sources: Option<&SourceArgs>, trace: Option<&Path>) -> Result<Page> {
    let source = run::open(files)?;
    let run = source.run(if sources.is_some() { Detail::Lines } else { Detail::Functions })?;
    let (trace, timeline) = traced(&source, &run, trace)?;
    let mut extras = Extras { programs: source.by_program(), timeline, ..Extras::default() };
    let mut bytes = Vec::new();
    let Some(sources) = sources else {
        html::write(&run, &mut extras, &mut bytes)?;
        return Ok(Page { bytes, authors: run::authors(&run), trace });
    };
    extras.listings = source.listings(&run)?;
    let sources = Sources::new(sources, &source.program(), run::authors(&run))?;
    let mut sources = sources.interpreted_in(&run);
    let mut read = |path: &str| sources.read(path);
    html::write(&run, &mut Extras { source: Some(&mut read), ..extras }, &mut bytes)?;
    sources.complain();
    Ok(Page { bytes, authors: run::authors(&run), trace })
}

/// Returns the trace of a run, and its time line.
///
/// # Errors
/// The trace that the user has named cannot be read.
fn traced(source: &Source, run: &Run, named: Option<&Path>) -> Result<(Option<PathBuf>, Option<Timeline>)> {
    if let Some(path) = named {
        return Ok((Some(path.to_owned()), Some(timeline(path)?)));
    }
    let found = match source.names().as_slice() {
        [one] => beside(one, run),
        _ => None,
    };
    // A trace that the user has not named does no harm.
    let read = found.and_then(|path| timeline(&path).ok().map(|timeline| (path, timeline)));
    Ok(read.unzip())
}
