//! `gmon export`: writes a run in the format of another tool.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use gmon_export::formats::{Format, write};
use gmon_export::load::Detail;

use crate::cli::export_args::{ExportArgs, To};
use crate::cli::report_args::SourceArgs;
use crate::cli::text::plain;
use crate::cli::{compilers, files, gprof, html, run};

/// Writes the run.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn run(args: &ExportArgs) -> Result<()> {
    let format = match args.to {
        To::Compiler(compiler) => return compilers::run(args, compiler),
        _ if !args.module.is_empty() || args.debug_file.is_some() => {
            bail!("--module, --debug-file: only of profiles for compilers")
        }
        To::File(format) => format,
        To::Gprof => {
            let output = args.output.as_deref().unwrap_or(Path::new("gmon"));
            let run = run::load(&args.files, Detail::Functions)?;
            let [symbols, profile] = gprof::write(&run, output)?;
            let pair = format!("{} {}", symbols.display(), profile.display());
            eprintln!("gmon: wrote two files: gprof {}", plain(&pair));
            return Ok(());
        }
    };
    if args.output.is_none() && !format.is_text() && io::stdout().is_terminal() {
        bail!("--to {format}: not text, and standard output is a terminal; -o FILE says where to write it");
    }
    if format == Format::Html {
        let sources = SourceArgs::default();
        let page = html::page(&args.files, Some(&sources).filter(|_| !args.no_lines), None)?;
        return match &args.output {
            Some(path) => files::replace(path, &page.bytes, &page.authors),
            None => Ok(io::stdout().lock().write_all(&page.bytes)?),
        };
    }
    let detail = if args.no_lines { Detail::Functions } else { Detail::Lines };
    let run = run::load(&args.files, detail)?;
    if format.has_stacks() && run.nodes.is_empty() {
        eprintln!(
            "gmon: no call paths and no sampled stacks in this run, so stacks in {format} have a function and its caller only; \
             `gprofinject --paths` records paths"
        );
    }
    let Some(path) = &args.output else {
        let mut out = BufWriter::new(io::stdout().lock());
        write(&run, format, &mut out)?;
        return Ok(out.flush()?);
    };
    let mut bytes = Vec::new();
    if format.is_text() && path.extension().is_some_and(|ending| ending == "gz") {
        let mut out = GzEncoder::new(&mut bytes, Compression::default());
        write(&run, format, &mut out)?;
        out.finish()?;
    } else {
        write(&run, format, &mut bytes).with_context(|| format!("--to {format}"))?;
    }
    files::replace(path, &bytes, &run::authors(&run))
}
