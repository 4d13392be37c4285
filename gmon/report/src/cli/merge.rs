//! `gmon merge`: sums gmon.out files, or gmon.pb.gz files, on all processors.

mod counts;
mod program;
mod recorded;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gprofinject_image::debug::Authors;
use gprofinject_image::instructions::Code;

use crate::cli::args::MergeArgs;
use crate::cli::fold::{self, Sum};
use crate::cli::merge::counts::Counts;
use crate::cli::merge::program::Program;
use crate::cli::merge::recorded::Recorded;
use crate::cli::{files, recordings};

/// Sums the files and writes the sum.
///
/// # Errors
/// A file cannot be read or written, or the profiles cannot be summed.
pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let program = match &args.program {
        Some(path) => {
            let code = Code::parse(&files::read_elf(path)?).with_context(|| path.display().to_string())?;
            Some(Program { path, code })
        }
        None => None,
    };
    let threads = args.threads.map_or_else(fold::processors, usize::from);
    let sum =
        fold::sum(&in_folders(&args.files, &args.output)?, threads, || Merge::new(args, program.as_ref()))?;
    for note in &sum.notes {
        eprintln!("gmon: {note}");
    }
    files::replace_any(&args.output, &sum.bytes(&args.output)?, &Authors::default())
}

/// Returns files, with those results in place of each folder that are of the kind of the output, sorted by their names. There may be
/// more of them than a command line has room for.
fn in_folders(paths: &[PathBuf], output: &Path) -> Result<Vec<PathBuf>> {
    const RECORDING: &str = ".pb.gz";
    let is_recording = |path: &Path| path.to_string_lossy().ends_with(RECORDING);
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match is_recording(output) {
            true => is_recording(path),
            false => name.starts_with("gmon.out") && !is_recording(path),
        }
    };
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let list = std::fs::read_dir(path).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()
        });
        let mut list = list.with_context(|| path.display().to_string())?;
        // An earlier sum is none of its own parts.
        let is_output = |file: &PathBuf| std::path::absolute(file).ok() == std::path::absolute(output).ok();
        list.retain(|file| is_wanted(file) && file.is_file() && !is_output(file));
        if list.is_empty() {
            let kind = if is_recording(output) { "*.pb.gz" } else { "gmon.out*" };
            bail!("{}: no {kind} in this folder, as {} is to be", path.display(), output.display());
        }
        list.sort();
        files.extend(list);
    }
    Ok(files)
}

/// The sum of files of one of both kinds.
struct Merge<'a> {
    args: &'a MergeArgs,
    program: Option<&'a Program<'a>>,
    kind: Kind,
    /// What is to be said about the files.
    notes: Vec<String>,
}

enum Kind {
    /// There was no file yet.
    Unknown,
    Counts(Counts),
    Recorded(Recorded),
}

impl<'a> Merge<'a> {
    fn new(args: &'a MergeArgs, program: Option<&'a Program<'a>>) -> Merge<'a> {
        Merge { args, program, kind: Kind::Unknown, notes: Vec::new() }
    }

    fn bytes(self, path: &Path) -> Result<Vec<u8>> {
        match self.kind {
            Kind::Recorded(sum) => Ok(sum.bytes()),
            Kind::Counts(counts) => counts.bytes().with_context(|| path.display().to_string()),
            Kind::Unknown => Counts::default().bytes(),
        }
    }
}

impl Sum for Merge<'_> {
    fn add(&mut self, _: usize, file: &Path) -> Result<()> {
        let bytes = files::read_any_kind(file)?;
        let name = || file.display().to_string();
        let is_measured = files::is_gzip(&bytes);
        match &mut self.kind {
            Kind::Recorded(_) if !is_measured => {
                bail!("{}: no gmon.pb.gz, as the files before it are; sum each kind by itself", name())
            }
            Kind::Counts(_) if is_measured => {
                bail!("{}: a gmon.pb.gz among gmon.out files; sum each kind by itself", name())
            }
            Kind::Unknown if is_measured => self.kind = Kind::Recorded(Recorded::new(self.args.keep_threads)),
            Kind::Unknown => self.kind = Kind::Counts(Counts::default()),
            _ => {}
        }
        match &mut self.kind {
            Kind::Recorded(sum) => {
                let mut run = recordings::parse(file, &bytes)?;
                if let Some(program) = self.program {
                    recordings::select(&mut run, file, program.code.build_id, program.path)?;
                }
                sum.add(run).with_context(name)
            }
            Kind::Counts(counts) => {
                let reading = self.args.form.options().read(&bytes).with_context(name)?;
                if reading.ambiguous_width {
                    let note = "makes sense as 32-bit too, read as 64-bit; --width decides";
                    self.notes.push(format!("{}: {note}", file.display()));
                }
                match self.program {
                    Some(program) => counts.add_aligned(reading.profile, file, program),
                    None => counts.add(reading.profile, file),
                }
            }
            Kind::Unknown => Ok(()),
        }
    }

    fn join(&mut self, later: Self) -> Result<()> {
        self.notes.extend(later.notes);
        match (&mut self.kind, later.kind) {
            (_, Kind::Unknown) => Ok(()),
            (kind @ Kind::Unknown, later) => {
                *kind = later;
                Ok(())
            }
            (Kind::Counts(sum), Kind::Counts(later)) => sum.join(later, self.program),
            (Kind::Recorded(sum), Kind::Recorded(later)) => sum.join(later),
            _ => bail!("both kinds of files"),
        }
    }
}
