//! Reads the files of a run, of whichever kind they are, into the one model that tables, exports and comparisons take.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::{BuildId, Profile};
use gmon_export::Run;
use gmon_export::html::{Listing, listings};
use gmon_export::load::{self, Detail, KnownProgram};
use gmon_run::Recording;
use gprofinject_image::debug::{Authors, module_file};

use crate::cli::files;
use crate::cli::form_args::FormArgs;
use crate::cli::recordings;
use crate::cli::run_args::RunArgs;

/// The file that is read if only a program is named.
const DEFAULT_PROFILE: &str = "gmon.out";
/// The file that is read if none is named.
pub(crate) const DEFAULT_FILE: &str = "gmon.pb.gz";

/// Returns the other users who have made the files of a run and its modules.
pub(crate) fn authors(run: &Run) -> Authors {
    Authors::among(files::owners().into_iter().chain(run.owners.iter().copied()))
}

/// The files of a run, read.
pub(crate) enum Source {
    /// Everything that a run has recorded.
    Recording(Box<Recording>),
    /// A program, its bytes, its profile and the name of that.
    Profile { program: PathBuf, bytes: Vec<u8>, profile: Box<Profile>, name: PathBuf },
}

/// Reads the run that the arguments name.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn load(args: &RunArgs, detail: Detail) -> Result<Run> {
    open(args)?.run(detail)
}

/// Reads the files that the arguments name.
///
/// # Errors
/// A file cannot be read, or the files do not belong together.
pub(crate) fn open(args: &RunArgs) -> Result<Source> {
    match args.run.as_slice() {
        [] => open_selected(&[PathBuf::from(DEFAULT_FILE)], &args.program, &args.form)
            .context("gprofinject writes this file in the folder where it runs"),
        files => open_selected(files, &args.program, &args.form),
    }
}

/// Reads a run from a program and a result, or from a result that needs no program. Without patterns, it is that of all programs.
///
/// # Errors
/// A file cannot be read, the files do not belong together, or no program matches.
pub(crate) fn load_files(
    paths: &[PathBuf],
    programs: &[String],
    form: &FormArgs,
    detail: Detail,
) -> Result<Run> {
    open_selected(paths, programs, form)?.run(detail)
}

fn open_selected(paths: &[PathBuf], programs: &[String], form: &FormArgs) -> Result<Source> {
    let mut source = open_files(paths, form)?;
    match &mut source {
        Source::Recording(recording) => recordings::select_named(recording, programs)?,
        Source::Profile { name, .. } if !programs.is_empty() => {
            bail!("--program: {} is of one program only; {DEFAULT_FILE} has all of a run", name.display())
        }
        Source::Profile { .. } => {}
    }
    Ok(source)
}

fn open_files(paths: &[PathBuf], form: &FormArgs) -> Result<Source> {
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
        None if elf => Path::new(DEFAULT_PROFILE),
        None => return without_program(first, &bytes),
    };
    let found = files::read_any_kind(result)?;
    let program = files::parse_program(first, &bytes)?;
    if files::is_gzip(&found) {
        let mut read = recordings::parse(result, &found)?;
        recordings::select(&mut read, result, program.build_id, first)?;
        return Ok(Source::Recording(Box::new(read)));
    }
    if !files::is_gmon(&found) {
        bail!("{}: neither a profile (gmon.out) nor everything of a run ({DEFAULT_FILE})", result.display());
    }
    let profile = Box::new(profile(result, &found, form, Some(&program))?);
    Ok(Source::Profile { program: first.to_owned(), bytes, profile, name: result.to_owned() })
}

impl Source {
    /// Returns the run.
    ///
    /// # Errors
    /// A program is not that of its profile.
    pub(crate) fn run(&self, detail: Detail) -> Result<Run> {
        match self {
            Source::Recording(recording) => Ok(load::recording(recording, detail)),
            Source::Profile { program, bytes, profile, name } => {
                load::program(program, bytes, profile, detail)
                    .with_context(|| format!("{} of {}", name.display(), program.display()))
            }
        }
    }

    /// Returns the instructions of a run with their counts, if basic blocks were counted.
    ///
    /// # Errors
    /// A program's instructions cannot be read.
    pub(crate) fn listings(&self, run: &Run) -> Result<Vec<Listing>> {
        if !run.has_instructions {
            return Ok(Vec::new());
        }
        match self {
            Source::Recording(recording) => {
                let counted: BTreeSet<u32> = recording.blocks.iter().map(|block| block.module).collect();
                let mut all = Vec::new();
                for own in counted {
                    let Some(module) = recording.modules.get(own as usize) else { continue };
                    let path = Path::new(&module.name);
                    let is_it = |known: &gmon_export::Module| {
                        (&known.path, &known.build_id) == (&module.name, &module.build_id)
                    };
                    let index = run.modules.iter().position(is_it);
                    if let Some(index) = index
                        && path.is_absolute()
                        && let Some((bytes, _)) = module_file(path, &module.build_id)
                        && module.is_of(&bytes)
                    {
                        let profile = load::profile_of(recording, own);
                        let found = listings(index as u32, path, &bytes, &profile, run);
                        all.extend(found.with_context(|| module.name.clone())?);
                    }
                }
                Ok(all)
            }
            Source::Profile { program, bytes, profile, .. } => {
                listings(0, program, bytes, profile, run).with_context(|| program.display().to_string())
            }
        }
    }

    /// Returns the path of the program.
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            Source::Recording(recording) => {
                recording.first_module().map(|module| PathBuf::from(&module.name)).unwrap_or_default()
            }
            Source::Profile { program, .. } => program.clone(),
        }
    }
}

/// Reads the functions of a run, with their calls and self times, from one result. `program` is that of a gmon.out.
///
/// # Errors
/// The file cannot be read, or is not of the program.
pub(crate) fn functions(path: &Path, form: &FormArgs, program: Option<&KnownProgram>) -> Result<Run> {
    let bytes = files::read_any_kind(path)?;
    match program.filter(|_| files::is_gmon(&bytes)) {
        Some(program) => {
            let profile = profile(path, &bytes, form, Some(program.program()))?;
            program.functions(&profile).with_context(|| path.display().to_string())
        }
        None => without_program(path, &bytes)?.run(Detail::Functions),
    }
}

/// Reads a result that says everything itself.
fn without_program(path: &Path, bytes: &[u8]) -> Result<Source> {
    if files::is_gzip(bytes) {
        return Ok(Source::Recording(Box::new(recordings::parse(path, bytes)?)));
    }
    if files::is_gmon(bytes) {
        bail!("{}: the names are in the program, expected `PROG {0}`", path.display());
    }
    bail!(
        "{}: neither a program nor a profile (gmon.out) nor everything of a run ({DEFAULT_FILE})",
        path.display()
    );
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

/// Returns the counts of basic blocks that a recording has of a module: the one with this build-id, or the one with this path and these
/// bytes if its build-id is not known.
///
/// # Errors
/// There are none, or only those of another build.
pub(crate) fn blocks_of(
    recording: &Recording,
    build_id: BuildId,
    bytes: &[u8],
    path: &Path,
) -> Result<Profile> {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_named_so = |module: &gmon_run::Module| Path::new(&module.name) == absolute;
    let is_it = |module: &gmon_run::Module| match module.build_id.as_slice() {
        [] => is_named_so(module) && module.is_of(bytes),
        id => build_id.is_known() && BuildId::new(id) == build_id,
    };
    let found =
        recording.modules.iter().position(is_it).map(|index| load::profile_of(recording, index as u32));
    if let Some(profile) = found.filter(|profile| !profile.blocks.is_empty()) {
        return Ok(profile);
    }
    let of_other = |block: &gmon_run::Block| {
        let module = recording.modules.get(block.module as usize);
        module.is_some_and(|module| is_named_so(module) && !is_it(module))
    };
    match recording.blocks.iter().any(of_other) {
        true => bail!("the counts of {} are of another build of it: rebuilt since the run", path.display()),
        false => bail!(
            "no counts of basic blocks of {} in it; `gprofinject --count lines PROG` counts them, and --libs those of libraries",
            path.display()
        ),
    }
}
