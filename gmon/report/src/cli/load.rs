//! Reads the programs and libraries of a run whose basic blocks were counted, with their debug information and their counts.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::{Block, BuildId, Format, Merger, Profile};
use gmon_export::load::profile_of;
use gmon_run::Recording;
use gprofinject_image::debug::{Lines, LinesError, module_file};
use gprofinject_image::instructions::Code;
use gprofinject_image::signatures::DebugInfo;

use crate::cli::files;
use crate::cli::missing::Missing;
use crate::cli::report_args::ReportArgs;
use crate::cli::run::{self, Source};
use crate::cli::text::{chosen_path, plain};

/// Everything from which the report of a module is made.
pub(crate) struct Loaded {
    /// The path of the program or library.
    pub(crate) path: PathBuf,
    pub(crate) code: Code,
    pub(crate) lines: Option<Lines>,
    pub(crate) profile: Profile,
    /// The samples of CPU time by address, and the CPU time of a sample in nanoseconds; none if basic blocks were counted.
    pub(crate) samples: BTreeMap<u64, u64>,
    pub(crate) period_ns: u64,
    /// The names of the results.
    pub(crate) results: Vec<String>,
}

/// A module with counts, and its debug information as it is.
pub(crate) struct CountedModule<'s> {
    /// The path of the program or library.
    pub(crate) path: PathBuf,
    pub(crate) code: Code,
    pub(crate) profile: Profile,
    /// The bytes of its file.
    pub(crate) bytes: Cow<'s, [u8]>,
    /// The path and the bytes of the separate file with its debug information, if it has none itself.
    pub(crate) debug: Option<(PathBuf, Vec<u8>)>,
    /// Its indexes in the recording.
    pub(crate) indexes: Vec<u32>,
}

/// A module whose basic blocks were counted, or that has samples of CPU time in a run that has counted none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The one of which the user has named the file.
    Named(PathBuf),
    /// The module with this index in the recording, at its path.
    Recorded(u32, PathBuf),
}

impl Counted {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Counted::Named(path) | Counted::Recorded(_, path) => path,
        }
    }
}

/// Returns the modules that the user has selected: programs first, of which that one comes first that was started, and then by name.
///
/// # Errors
/// Basic blocks were not counted, or those of no such module. Without counts, modules with samples do as well if `has_samples` is set.
pub(crate) fn counted(args: &ReportArgs, source: &Source, has_samples: bool) -> Result<Vec<Counted>> {
    let all = match source {
        Source::Profile { program, .. } => vec![Counted::Named(program.clone())],
        Source::Recording { recording, .. } if recording.blocks.is_empty() && !has_samples => Vec::new(),
        Source::Recording { subject: Some((path, _)), .. } => vec![Counted::Named(path.clone())],
        Source::Recording { recording, .. } => recorded(recording),
    };
    if all.is_empty() {
        let of = match args.files.part.program.is_empty() {
            true => String::new(),
            false => format!(" of {}", args.files.part.program.join(" or ")),
        };
        bail!(
            "{}: no counts of basic blocks{}{of} in it; `gprofinject --count lines PROG` counts them, and --libs those of libraries",
            results(source).join(", "),
            if has_samples { " and no samples of CPU time" } else { "" },
        );
    }
    let is_chosen = |module: &&Counted| chosen_path(&args.module, &module.path().to_string_lossy());
    let chosen: Vec<Counted> = all.iter().filter(is_chosen).cloned().collect();
    if chosen.is_empty() {
        let names: BTreeSet<_> = all.iter().map(|module| file_name(module.path())).collect();
        let names: Vec<_> = names.iter().map(|name| plain(name)).collect();
        bail!(
            "no module with counts of basic blocks is called {}; there are {}",
            args.module.join(" or "),
            names.join(", ")
        );
    }
    if args.debug_file.is_some() && chosen.len() > 1 {
        bail!(
            "--debug-file: of one module, but {} have counts; --module selects one, and so does its file before {}",
            chosen.len(),
            results(source).first().map_or("the run", String::as_str)
        );
    }
    Ok(chosen)
}

/// Returns the modules of a recording that have counts, or samples if none has counts: programs first, and of libraries with samples those
/// with the most.
fn recorded(recording: &Recording) -> Vec<Counted> {
    // What an interpreter executes, or was made at run time, is in no file.
    let is_file =
        |index: &u32| recording.modules.get(*index as usize).is_some_and(|module| !module.is_generated());
    let counted = run::modules_with_counts(recording).into_iter().filter(is_file);
    let started = recording.programs.first().map(|program| program.module);
    let programs: BTreeSet<u32> = recording.programs.iter().map(|program| program.module).collect();
    let mut samples: HashMap<u32, u64> = HashMap::new();
    for hits in recording.hits.iter().filter(|_| recording.blocks.is_empty()) {
        let Some(function) = recording.functions.get(hits.function as usize) else { continue };
        let sum = samples.entry(function.module).or_default();
        *sum = sum.saturating_add(hits.samples);
    }
    let mut all: Vec<_> = counted
        .filter_map(|index| {
            let path = &recording.modules.get(index as usize)?.path;
            let most = Reverse(samples.get(&index).copied().unwrap_or(0));
            let kind = (Some(index) != started, !programs.contains(&index));
            let rank = (kind, most, file_name(Path::new(path)), path);
            Some((rank, index))
        })
        .collect();
    all.sort();
    all.into_iter().map(|((.., path), index)| Counted::Recorded(index, PathBuf::from(path))).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the names of the results.
pub(crate) fn results(source: &Source) -> Vec<String> {
    source.names().iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Reads a module, with its lines.
///
/// # Errors
/// The same as those of [`load_counts`].
pub(crate) fn load(args: &ReportArgs, source: &Source, module: &Counted) -> Result<Loaded> {
    let CountedModule { path, code, profile, bytes, debug, indexes } = load_counts(args, source, module)?;
    let lines = lines(args, &path, &bytes, debug.as_ref())?;
    let (samples, period_ns) = match source {
        Source::Recording { recording, .. } if recording.blocks.is_empty() => {
            (samples(recording, &indexes), recording.sample_period_ns)
        }
        _ => (BTreeMap::new(), 0),
    };
    Ok(Loaded { path, code, lines, profile, samples, period_ns, results: results(source) })
}

/// Reads a module and its counts, and finds its debug information.
///
/// # Errors
/// A file cannot be read, or the counts are of another build of the module. The error is a [`Missing`] if it is about a file that the
/// user has not named.
pub(crate) fn load_counts<'s>(
    args: &ReportArgs,
    source: &'s Source,
    module: &Counted,
) -> Result<CountedModule<'s>> {
    let path = module.path();
    let (bytes, profiles, indexes) = read_module(source, module)?;
    let read = || -> Result<CountedModule<'s>> {
        let mut code = Code::parse(&bytes).with_context(|| path.display().to_string())?;
        let debug = find_debug(args, path, &bytes, &mut code)?;
        let profile = sum(&code, path, profiles, &results(source))?;
        Ok(CountedModule { path: path.to_owned(), code, profile, bytes, debug, indexes })
    };
    match module {
        // The file that was found may be damaged, and the others can be shown nevertheless.
        Counted::Recorded(..) if args.debug_file.is_none() => {
            read().map_err(|error| Missing::Module(format!("{error:#}")).into())
        }
        _ => read(),
    }
}

/// Finds the separate file with the debug information of a module, if the module itself has none.
fn find_debug(
    args: &ReportArgs,
    module: &Path,
    bytes: &[u8],
    code: &mut Code,
) -> Result<Option<(PathBuf, Vec<u8>)>> {
    if let Some(path) = &args.debug_file {
        let debug = files::read_elf(path)?;
        if !DebugInfo::is_in(&debug) {
            return Err(LinesError::None).with_context(|| path.display().to_string());
        }
        let build_id = files::parse_program(path, &debug)?.build_id;
        if code.build_id.agree(build_id).is_err() {
            bail!("{}: its build-id is not that of {}", path.display(), module.display());
        }
        code.take_symbols(&debug).with_context(|| path.display().to_string())?;
        return Ok(Some((path.clone(), debug)));
    }
    if DebugInfo::is_in(bytes) {
        return Ok(None);
    }
    let mut found = gprofinject_image::debug::debug_files(module, bytes);
    let found = found.find(|file| DebugInfo::is_in(&file.bytes) && code.take_symbols(&file.bytes).is_ok());
    Ok(found.map(|file| (file.path, file.bytes)))
}

/// The bytes of a module's file, what each program has counted in it, and the indexes of the module in the recording.
type ModuleCounts<'s> = (Cow<'s, [u8]>, Vec<Profile>, Vec<u32>);

/// Reads the file of a module, and what each program of the run has counted in it.
fn read_module<'s>(source: &'s Source, module: &Counted) -> Result<ModuleCounts<'s>> {
    let path = module.path();
    Ok(match (source, module) {
        (Source::Recording { recording, .. }, Counted::Recorded(index, _)) => {
            let bytes = find(recording, *index, path)?;
            (Cow::Owned(bytes), by_program(recording, &[*index]), vec![*index])
        }
        (Source::Recording { recording, subject, .. }, Counted::Named(_)) => {
            let bytes = subject.as_ref().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
            let build_id = files::parse_program(path, bytes)?.build_id;
            let found = run::modules_of(recording, build_id, bytes, path);
            let indexes = found.with_context(|| results(source).join(", "))?;
            (Cow::Borrowed(bytes), by_program(recording, &indexes), indexes)
        }
        (Source::Profile { bytes, profiles, .. }, _) => {
            (Cow::Borrowed(bytes.as_slice()), without_samples(profiles)?, Vec::new())
        }
    })
}

/// Reads the file of a module at the path that a recording contains.
fn find(recording: &Recording, index: u32, path: &Path) -> Result<Vec<u8>> {
    let module = recording.modules.get(index as usize);
    let is_it = |bytes: &[u8]| module.is_some_and(|module| module.is_of(bytes));
    let build_id = module.map(|module| module.build_id.as_slice()).unwrap_or_default();
    let found = if path.is_absolute() { module_file(path, build_id) } else { None };
    match found.filter(|(bytes, _)| is_it(bytes)) {
        Some((bytes, owner)) => {
            files::add_owner(owner);
            Ok(bytes)
        }
        None => {
            let reason = match path.metadata() {
                // Opening anything else might wait for another process.
                Ok(metadata) if !metadata.is_file() => "is no file any more".to_owned(),
                Ok(_) => match File::open(path) {
                    Ok(_) => "rebuilt since the run".to_owned(),
                    Err(error) => error.to_string(),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => "is no longer there".to_owned(),
                Err(error) => error.to_string(),
            };
            let text =
                format!("{}: {reason}; a copy of that build can be named in its place", path.display());
            Err(Missing::Module(text).into())
        }
    }
}

/// Returns the samples in some modules of a recording by address.
fn samples(recording: &Recording, modules: &[u32]) -> BTreeMap<u64, u64> {
    let mut samples: BTreeMap<u64, u64> = BTreeMap::new();
    for hits in recording.hits.iter().filter(|hits| hits.address > 0) {
        let function = recording.functions.get(hits.function as usize);
        if function.is_some_and(|function| modules.contains(&function.module)) {
            let sum = samples.entry(hits.address).or_default();
            *sum = sum.saturating_add(hits.samples);
        }
    }
    samples
}

/// Returns what each program of a recording has counted in some of its modules.
fn by_program(recording: &Recording, modules: &[u32]) -> Vec<Profile> {
    let mut programs: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    for block in recording.blocks.iter().filter(|block| modules.contains(&block.module)) {
        let count = programs.entry(block.program).or_default().entry(block.address).or_default();
        *count = count.saturating_add(block.executions);
    }
    let calls = modules.iter().map(|&module| Profile { blocks: Vec::new(), ..profile_of(recording, module) });
    let mut profiles: Vec<Profile> = calls.collect();
    let build_id = profiles.first().map_or(BuildId::UNKNOWN, |profile| profile.build_id);
    profiles.extend(programs.into_values().map(|blocks| Profile {
        blocks: blocks.into_iter().map(|(addr, count)| Block { addr, count }).collect(),
        build_id,
        ..Profile::new(Format::LITTLE_64)
    }));
    profiles
}

/// Returns what the reports need of profiles. They do not use samples, and histograms need not fit together.
fn without_samples(profiles: &[(PathBuf, Profile)]) -> Result<Vec<Profile>> {
    let needed = profiles.iter().map(|(name, profile)| {
        if profile.blocks.is_empty() {
            bail!(
                "{}: no counts of basic blocks in it; `gprofinject --count lines PROG` makes such a profile",
                name.display()
            );
        }
        Ok(Profile { histograms: Vec::new(), ..profile.clone() })
    });
    needed.collect()
}

/// Sums profiles, whose records may begin at different addresses. Each has a name, or all have the same.
fn sum(code: &Code, path: &Path, mut profiles: Vec<Profile>, names: &[String]) -> Result<Profile> {
    let name = |index: usize| Path::new(names.get(index).or(names.first()).map_or("", String::as_str));
    for (index, profile) in profiles.iter().enumerate() {
        fits(code, path, profile, name(index))?;
    }
    gmon_blocks::align(&mut profiles, code);
    let mut merger = Merger::default();
    for (index, profile) in profiles.into_iter().enumerate() {
        merger.add(profile).with_context(|| name(index).display().to_string())?;
    }
    Ok(merger.finish())
}

/// Checks that a profile is of this build of this program.
///
/// # Errors
/// It is of another one.
pub(crate) fn fits(code: &Code, program: &Path, profile: &Profile, file: &Path) -> Result<()> {
    let (program, file) = (program.display(), file.display());
    if let Err(stale) = code.build_id.agree(profile.build_id) {
        let (first, other) = (stale.first, stale.other);
        bail!(
            "{file}: of the program with build-id {other}.., but {program} has {first}..: rebuilt since the run"
        );
    }
    if profile.format != code.format() && !profile.is_empty() {
        bail!("{file}: a {} profile, but {program} is {}", profile.format, code.format());
    }
    let strays = || profile.blocks.iter().filter(|block| code.section_at(block.addr).is_none());
    if let Some(first) = strays().next() {
        let (number, all, at) = (strays().count(), profile.blocks.len(), first.addr);
        let number = gmon::counted(number, "basic block lies", "basic blocks lie");
        bail!(
            "{file}: {number} outside the code of {program}, of {all} in all, the first at {at:#x}: another program's?"
        );
    }
    Ok(())
}

/// Returns the line information of a module, which is in its own file or in the separate one. A file that was found without being asked for may
/// be unusable; then there is no line information.
fn lines(
    args: &ReportArgs,
    module: &Path,
    bytes: &[u8],
    debug: Option<&(PathBuf, Vec<u8>)>,
) -> Result<Option<Lines>> {
    let (file, read) = match debug {
        Some((file, debug)) => (file.as_path(), Lines::of(debug, module, Some(file))),
        None => (module, Lines::of(bytes, module, None)),
    };
    match read {
        Ok(lines) => Ok(Some(lines)),
        Err(error) if args.debug_file.is_some() => Err(error).with_context(|| file.display().to_string()),
        Err(LinesError::None) => Ok(None),
        Err(error) => {
            let error = format!("{}: {:#}", file.display(), anyhow::Error::from(error));
            eprintln!("gmon: {}; going on without lines", plain(&error));
            Ok(None)
        }
    }
}

impl Loaded {
    /// Returns the samples in a range of addresses, which is empty if its end is not after its start.
    pub(crate) fn samples_of(&self, start: u64, end: u64) -> impl Iterator<Item = (&u64, &u64)> {
        self.samples.range(start..end.max(start))
    }

    /// Returns the CPU time of so many samples, in nanoseconds.
    pub(crate) fn time_of(&self, samples: u64) -> u64 {
        samples.saturating_mul(self.period_ns)
    }

    /// Whether there are samples in place of counts.
    pub(crate) fn is_sampled(&self) -> bool {
        self.profile.blocks.is_empty() && self.period_ns > 0
    }

    /// Returns the line information for reports that need it.
    ///
    /// # Errors
    /// There is none: [`Missing::Lines`].
    pub(crate) fn need_lines(&self) -> Result<&Lines> {
        self.lines.as_ref().ok_or_else(|| {
            let what = match self.code.build_id == BuildId::UNKNOWN {
                true => "",
                false => ", nor a separate debug file with this build-id",
            };
            Missing::Lines { path: self.path.clone(), what }.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use gmon_run::{Function, Hits, Module, Program};

    use super::*;

    #[test]
    fn libraries_with_the_most_samples_come_first() {
        let module = |name: &str| Module { path: format!("/lib/{name}"), ..Module::default() };
        let function = |module| Function { module, ..Function::default() };
        let hits = |function, samples| Hits { function, samples, ..Hits::default() };
        let mut recording = Recording {
            modules: ["p", "a.so", "b.so", "c.so"].map(module).into(),
            programs: vec![Program::default()],
            functions: (0..4).chain([2]).map(function).collect(),
            hits: vec![hits(3, 7), hits(1, 5), hits(0, 1), hits(2, 3), hits(4, 3)],
            ..Recording::default()
        };
        let names = |recording: &Recording| {
            recorded(recording).iter().map(|module| file_name(module.path())).collect::<Vec<_>>()
        };
        assert_eq!(names(&recording), ["p", "c.so", "b.so", "a.so"]);
        // Counts are in the order of the names.
        let block = |module| gmon_run::Block { module, ..gmon_run::Block::default() };
        recording.blocks = (0..4).map(block).collect();
        assert_eq!(names(&recording), ["p", "a.so", "b.so", "c.so"]);
    }
}
