//! Reads the files of a run, of whichever kind they are, into the analysis that tables, exports and comparisons take.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::{BuildId, Merger, Profile};
use gmon_export::html::{Listing, Of, listings, listings_of};
use gmon_export::load::{self, Detail, KnownProgram};
use gmon_export::{ProgramFunction, Run};
use gmon_run::Recording;
use gprofinject_image::debug::Authors;

use crate::cli::files;
use crate::cli::form_args::FormArgs;
use crate::cli::hints;
use crate::cli::recordings::{self, Selected};
use crate::cli::run_args::{PartArgs, RunArgs};

/// The file that is read if only a program is named.
pub(crate) const DEFAULT_PROFILE: &str = "gmon.out";
/// The file that is read if none is named.
pub(crate) const DEFAULT_FILE: &str = "gmon.pb.gz";

/// Returns the other users who have made the files of a run and its modules.
pub(crate) fn authors(run: &Run) -> Authors {
    Authors::among(files::owners().into_iter().chain(run.owners.iter().copied()))
}

/// The files of a run, read.
#[derive(Clone)]
pub(crate) enum Source {
    /// Everything that a run has recorded, or several.
    Recording {
        recording: Box<Recording>,
        /// The program or library of which the user has named the file, and its bytes.
        subject: Option<(PathBuf, Vec<u8>)>,
        /// Whether that is a library.
        is_library: bool,
        names: Vec<PathBuf>,
    },
    /// A program, its bytes and its profiles.
    Profile { program: PathBuf, bytes: Vec<u8>, profiles: Vec<(PathBuf, Profile)> },
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
    open_selected(&args.run, &args.part, &args.form)
}

/// Reads a run from a program and a result, or from a result that needs no program. Without patterns, the part is that of all programs.
///
/// # Errors
/// A file cannot be read, the files do not belong together, or no program matches.
pub(crate) fn load_files(paths: &[PathBuf], part: &PartArgs, form: &FormArgs, detail: Detail) -> Result<Run> {
    open_selected(paths, part, form)?.run(detail)
}

fn open_selected(paths: &[PathBuf], part: &PartArgs, form: &FormArgs) -> Result<Source> {
    let mut source = open_files(paths, form)?;
    select(&mut source, part)?;
    Ok(source)
}

/// Leaves out the programs that are not of the part.
fn select(source: &mut Source, part: &PartArgs) -> Result<()> {
    let option = if part.program.is_empty() { "--label" } else { "--program" };
    match source {
        Source::Recording { recording, .. } => {
            recordings::select_named(recording, &part.program)?;
            recordings::select_labelled(recording, &part.label)
        }
        Source::Profile { profiles, .. } if !(part.program.is_empty() && part.label.is_empty()) => {
            let name = profiles.first().map(|(name, _)| name.display().to_string()).unwrap_or_default();
            bail!("{option}: {name} is of one program only; {DEFAULT_FILE} has all of a run")
        }
        Source::Profile { .. } => Ok(()),
    }
}

/// Reads files in the one order that all commands take: a program or a library, or none, and results, which are summed.
fn open_files(paths: &[PathBuf], form: &FormArgs) -> Result<Source> {
    let mut subject = None;
    let mut read = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let bytes = files::read_any_kind(path).map_err(|error| {
            hints::function_for_file(paths, Path::new(DEFAULT_FILE)).map_or(error, anyhow::Error::msg)
        })?;
        let is_elf = files::is_elf(&bytes);
        if is_elf && index > 0 {
            let first = paths[0].display();
            bail!("{}: a program after {first}; a program comes before its results", path.display());
        }
        match is_elf {
            true => subject = Some((path.clone(), bytes)),
            false => read.push((path.clone(), bytes)),
        }
    }
    if read.is_empty() {
        // A program without a result is one of the newest run here.
        let has_recording = Path::new(DEFAULT_FILE).exists() || subject.is_none();
        let path = PathBuf::from(if has_recording { DEFAULT_FILE } else { DEFAULT_PROFILE });
        if let Some(other) = hints::of_another_run(Path::new(DEFAULT_PROFILE), &path) {
            eprintln!("gmon: {other}");
        }
        let bytes = files::read_any_kind(&path).map_err(|error| {
            anyhow::anyhow!("{error:#}; gprofinject writes it in the folder where it runs")
        })?;
        read.push((path, bytes));
    }
    of_one_kind(subject, read, form)
}

/// Returns what results are that have been read: recordings, or profiles of a program.
fn of_one_kind(
    subject: Option<(PathBuf, Vec<u8>)>,
    read: Vec<(PathBuf, Vec<u8>)>,
    form: &FormArgs,
) -> Result<Source> {
    if let Some((path, _)) = read.iter().find(|(_, bytes)| !files::is_gzip(bytes) && !files::is_gmon(bytes)) {
        bail!(
            "{}: neither a program nor a profile (gmon.out) nor everything of a run ({DEFAULT_FILE})",
            path.display()
        );
    }
    let is_recording = |(_, bytes): &&(PathBuf, Vec<u8>)| files::is_gzip(bytes);
    match (read.iter().find(is_recording), read.iter().find(|file| !is_recording(file))) {
        (Some((one, _)), Some((other, _))) => {
            bail!(
                "{} and {} are of different kinds, expected results of one kind",
                one.display(),
                other.display()
            )
        }
        (Some(_), None) => {
            let build_id = match &subject {
                Some((path, bytes)) => files::parse_program(path, bytes)?.build_id,
                None => BuildId::UNKNOWN,
            };
            recorded(subject, build_id, read)
        }
        (None, _) => {
            let Some((program, bytes)) = subject else {
                let path = read.first().map(|(path, _)| path.as_path()).unwrap_or(Path::new(""));
                bail!("{}", hints::no_program(path));
            };
            let parsed = files::parse_program(&program, &bytes)?;
            let parse = |(path, found): (PathBuf, Vec<u8>)| {
                let profile = profile(&path, &found, form, Some(&parsed))?;
                Ok((path, profile))
            };
            let profiles = read.into_iter().map(parse).collect::<Result<_>>()?;
            Ok(Source::Profile { program, bytes, profiles })
        }
    }
}

/// Reads recordings, and leaves out all programs but the one that the user has named by its file.
fn recorded(
    subject: Option<(PathBuf, Vec<u8>)>,
    build_id: BuildId,
    files: Vec<(PathBuf, Vec<u8>)>,
) -> Result<Source> {
    let mut is_library = false;
    let mut sum: Option<Recording> = None;
    let mut names = Vec::new();
    for (path, bytes) in files {
        let mut read = recordings::parse(&path, &bytes)?;
        if let Some((name, _)) = &subject {
            is_library |= recordings::select(&mut read, &path, build_id, name)? == Selected::Library;
        }
        match &mut sum {
            None => sum = Some(read),
            Some(sum) => sum.merge(read).with_context(|| path.display().to_string())?,
        }
        names.push(path);
    }
    Ok(Source::Recording { recording: Box::new(sum.unwrap_or_default()), subject, is_library, names })
}

impl Source {
    /// Returns the part of the run that processes with such labels have done.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn labelled(&self, label: &str) -> Result<Source> {
        let mut part = self.clone();
        select(&mut part, &PartArgs { label: vec![label.to_owned()], ..PartArgs::default() })?;
        Ok(part)
    }

    /// Returns the run.
    ///
    /// # Errors
    /// A program is not that of its profile.
    pub(crate) fn run(&self, detail: Detail) -> Result<Run> {
        match self {
            Source::Recording { recording, .. } => Ok(load::recording(recording, detail)),
            Source::Profile { program, bytes, profiles } => {
                let name = profiles.first().map(|(name, _)| name.display().to_string()).unwrap_or_default();
                load::program(program, bytes, &self.profile()?, detail)
                    .with_context(|| format!("{name} of {}", program.display()))
            }
        }
    }

    /// Returns the sum of the profiles of a program; nothing if this is a recording.
    fn profile(&self) -> Result<Profile> {
        let mut merger = Merger::default();
        if let Source::Profile { profiles, .. } = self {
            for (name, profile) in profiles {
                merger.add(profile.clone()).with_context(|| name.display().to_string())?;
            }
        }
        Ok(merger.finish())
    }

    /// Returns the names of the results.
    pub(crate) fn names(&self) -> Vec<&Path> {
        match self {
            Source::Recording { names, .. } => names.iter().map(PathBuf::as_path).collect(),
            Source::Profile { profiles, .. } => profiles.iter().map(|(name, _)| name.as_path()).collect(),
        }
    }

    /// Returns the path of the library that the user has named by its file.
    pub(crate) fn library(&self) -> Option<&Path> {
        match self {
            Source::Recording { subject, is_library, .. } => {
                subject.as_ref().filter(|_| *is_library).map(|(path, _)| path.as_path())
            }
            Source::Profile { .. } => None,
        }
    }

    /// Returns the instructions of a run's functions with their counts: of all whose basic blocks were counted, or else of those with the
    /// most time.
    ///
    /// # Errors
    /// A program's instructions cannot be read.
    pub(crate) fn listings(&self, run: &Run) -> Result<Vec<Listing>> {
        match self {
            Source::Recording { recording, .. } => Ok(listings_of(recording, run)),
            Source::Profile { program, bytes, .. } => {
                let (profile, hits) = (self.profile()?, BTreeMap::new());
                let of = Of { module: 0, path: program, bytes, profile: &profile, hits: &hits };
                listings(&of, run).with_context(|| program.display().to_string())
            }
        }
    }

    /// Returns what each function has done in each program of a recording of several.
    pub(crate) fn by_program(&self) -> Vec<ProgramFunction> {
        match self {
            Source::Recording { recording, .. } => load::by_program(recording),
            Source::Profile { .. } => Vec::new(),
        }
    }

    /// Returns the path of the program.
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            Source::Recording { recording, .. } => {
                recording.first_module().map(|module| PathBuf::from(&module.path)).unwrap_or_default()
            }
            Source::Profile { program, .. } => program.clone(),
        }
    }
}

/// The program or the library of which the user has named the file, read once for many results.
pub(crate) struct Subject {
    pub(crate) path: PathBuf,
    pub(crate) known: KnownProgram,
}

/// Reads the functions of a run, with their calls and self times, from one of several results; of a library that is the subject, those
/// in it. Returns the run without arcs.
///
/// # Errors
/// The file cannot be read, or is not of the program, or no program matches the patterns.
pub(crate) fn functions(path: &Path, args: &RunArgs, subject: Option<&Subject>) -> Result<Run> {
    let bytes = files::read_any_kind(path)?;
    let mut source = match subject {
        Some(Subject { known, .. }) if files::is_gmon(&bytes) => {
            let profile = profile(path, &bytes, &args.form, Some(known.program()))?;
            return known.functions(&profile).with_context(|| path.display().to_string());
        }
        Some(subject) if files::is_gzip(&bytes) => {
            let build_id = subject.known.program().build_id;
            // Only its name is asked for here.
            recorded(Some((subject.path.clone(), Vec::new())), build_id, vec![(path.to_owned(), bytes)])?
        }
        _ => of_one_kind(None, vec![(path.to_owned(), bytes)], &args.form)?,
    };
    select(&mut source, &args.part)?;
    let mut run = source.run(Detail::Functions)?;
    run.arcs.clear();
    if let Some(name) = source.library().and_then(Path::file_name) {
        let is_it: Vec<bool> =
            run.modules.iter().map(|module| Path::new(&module.path).file_name() == Some(name)).collect();
        run.functions.retain(|function| {
            function.module.is_some_and(|module| is_it.get(module as usize).copied().unwrap_or(false))
        });
    }
    Ok(run)
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

/// Returns the modules of a recording of which basic blocks were counted, or those with samples of CPU time if none were counted.
pub(crate) fn modules_with_counts(recording: &Recording) -> BTreeSet<u32> {
    if !recording.blocks.is_empty() {
        return recording.blocks.iter().map(|block| block.module).collect();
    }
    let functions = recording.hits.iter().filter_map(|hits| recording.functions.get(hits.function as usize));
    functions.map(|function| function.module).collect()
}

/// Returns the modules of a recording that are a file and have counts of basic blocks, or samples if no basic blocks were counted: those with its build-id, or the one with
/// its path and its bytes if its build-id is not known. There are several if the run has used copies of the file.
///
/// # Errors
/// There are none, or only those of another build.
pub(crate) fn modules_of(
    recording: &Recording,
    build_id: BuildId,
    bytes: &[u8],
    path: &Path,
) -> Result<Vec<u32>> {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_named_so = |module: &gmon_run::Module| Path::new(&module.path) == absolute;
    let is_it = |module: &gmon_run::Module| match module.build_id.as_slice() {
        [] => is_named_so(module) && module.is_of(bytes),
        id => build_id.is_known() && BuildId::new(id) == build_id,
    };
    let counted = modules_with_counts(recording);
    let with = |index: u32| recording.modules.get(index as usize).map(|module| (index, module));
    let counted: Vec<_> = counted.into_iter().filter_map(with).collect();
    let found: Vec<u32> =
        counted.iter().filter(|(_, module)| is_it(module)).map(|(index, _)| *index).collect();
    match found.is_empty() {
        false => Ok(found),
        true if counted.iter().any(|(_, module)| is_named_so(module)) => {
            bail!("the counts of {} are of another build of it: rebuilt since the run", path.display())
        }
        true => bail!(
            "no counts of basic blocks of {} in it; `gprofinject --count lines PROG` counts them, and --libs those of libraries",
            path.display()
        ),
    }
}
