//! Reads the files of a run, of whichever kind they are, into the one model that tables, exports and comparisons take.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::Profile;
use gmon_export::load::{self, Detail, KnownProgram};
use gmon_export::{Run, origins};
use gprofinject_image::debug::Authors;

use crate::cli::files;
use crate::cli::form_args::FormArgs;
use crate::cli::measured;
use crate::cli::run_args::RunArgs;

/// The file that is read if only a program is named.
pub(crate) const DEFAULT_PROFILE: &str = "gmon.out";
/// The ending of the profile of a whole process, and that of its symbols.
const WHOLE: &str = "whole";
const SYMBOLS: &str = "syms";

/// Returns the other users who have made the files of a run and its modules.
pub(crate) fn authors(run: &Run) -> Authors {
    Authors::among(files::owners().into_iter().chain(run.owners.iter().copied()))
}

/// Reads the run that the arguments name.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn load(args: &RunArgs, detail: Detail) -> Result<Run> {
    load_files(&args.run, &args.form, detail)
}

/// Reads a run from a program and a result, or from a result that needs no program.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn load_files(paths: &[PathBuf], form: &FormArgs, detail: Detail) -> Result<Run> {
    let (first, second) = match paths {
        [first] => (first.as_path(), None),
        [first, second, ..] => (first.as_path(), Some(second.as_path())),
        [] => bail!("no files, expected a program and its profile"),
    };
    let bytes = files::read_any_kind(first)?;
    let elf = files::is_elf(&bytes);
    let result = match second {
        Some(second) if elf => second,
        Some(second) => bail!(
            "{}: not a program, expected the program before its result {}",
            first.display(),
            second.display()
        ),
        None if elf && is_symbols(&bytes) => bail!(
            "{}: the symbols of a whole process, expected its profile, {}",
            first.display(),
            first.with_extension(WHOLE).display()
        ),
        None if elf => Path::new(DEFAULT_PROFILE),
        None => return without_program(first, &bytes, form, detail),
    };
    let found = files::read_any_kind(result)?;
    if files::is_gzip(&found) {
        let read = measured::parse(result, &found)?;
        if !is_symbols(&bytes) {
            measured::fits(&read, result, files::parse_program(first, &bytes)?.build_id, first)?;
        }
        return Ok(load::measured(&read));
    }
    if !files::is_gmon(&found) {
        bail!(
            "{}: neither a profile (gmon.out, gmon.whole) nor measured times (gmon.pb.gz)",
            result.display()
        );
    }
    if is_symbols(&bytes) {
        let profile = profile(result, &found, form, None)?;
        return load::process(&bytes, &profile, detail).with_context(|| result.display().to_string());
    }
    if result.extension().is_some_and(|ending| ending == WHOLE) {
        return without_program(result, &found, form, detail);
    }
    let program = files::parse_program(first, &bytes)?;
    let profile = profile(result, &found, form, Some(&program))?;
    load::program(first, &bytes, &profile, detail)
        .with_context(|| format!("{} of {}", result.display(), first.display()))
}

/// Reads the functions of a run, with their calls and self times, from one result. `program` is that of a gmon.out.
///
/// # Errors
/// The file cannot be read, or is not of the program.
pub(crate) fn functions(path: &Path, form: &FormArgs, program: Option<&KnownProgram>) -> Result<Run> {
    let bytes = files::read_any_kind(path)?;
    match program.filter(|_| files::is_gmon(&bytes)) {
        Some(program) if path.extension().is_none_or(|ending| ending != WHOLE) => {
            let profile = profile(path, &bytes, form, Some(program.program()))?;
            program.functions(&profile).with_context(|| path.display().to_string())
        }
        _ => without_program(path, &bytes, form, Detail::Functions),
    }
}

/// Reads a result that says everything itself, or whose symbols are beside it.
fn without_program(path: &Path, bytes: &[u8], form: &FormArgs, detail: Detail) -> Result<Run> {
    if files::is_gzip(bytes) {
        return Ok(load::measured(&measured::parse(path, bytes)?));
    }
    if !files::is_gmon(bytes) {
        bail!(
            "{}: neither a program nor a profile (gmon.out, gmon.whole) nor measured times (gmon.pb.gz)",
            path.display()
        );
    }
    if path.extension().is_none_or(|ending| ending != WHOLE) {
        bail!("{}: the names are in the program, expected `PROG {0}`", path.display());
    }
    let beside = path.with_extension(SYMBOLS);
    let symbols = files::read_elf(&beside).context("the symbols of a .whole file are beside it")?;
    if !is_symbols(&symbols) {
        bail!("{}: not the symbols of a whole process", beside.display());
    }
    let profile = profile(path, bytes, form, None)?;
    load::process(&symbols, &profile, detail)
        .with_context(|| format!("{} and {}", path.display(), beside.display()))
}

/// Reads a profile from the bytes of its file.
///
/// # Errors
/// They are not those of a profile.
pub(crate) fn profile(
    path: &Path,
    bytes: &[u8],
    form: &FormArgs,
    program: Option<&gmon::Program>,
) -> Result<Profile> {
    let options = form.resolve(bytes, program);
    let reading = options.read(bytes).with_context(|| path.display().to_string())?;
    Ok(reading.profile)
}

/// Whether an ELF file is the symbols of a whole process.
fn is_symbols(bytes: &[u8]) -> bool {
    origins::is_symbols(bytes)
}
