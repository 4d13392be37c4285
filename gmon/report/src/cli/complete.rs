//! Answers to a shell that completes a command line: the functions, programs and modules of the run that the line names, and the
//! files that runs have left.
//!
//! The user sees nothing but the answer, so whatever fails is no answer. Files may be anybody's: only regular ones are opened, and a
//! time and a size bound what is read.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use gmon_export::load::Detail;
use gmon_run::{Program, Summary};
use gmon_trace::FILE_HEADER;
use gprofinject_usage::{Line, Place};

use crate::cli::run::{DEFAULT_FILE, Source};
use crate::cli::run_args::{PartArgs, RunArgs};
use crate::cli::run_view::RunView;
use crate::cli::table_args::TableArgs;
use crate::cli::text::{file_name, plain, splits};
use crate::cli::traces::load;
use crate::cli::traces::names::without_parameters;
use crate::cli::{files, run, text};

/// How long a user waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most answers that a shell gets.
const MOST: usize = 1000;
/// The size in bytes from which on a result is not read, and that of programs and traces.
const LARGE_RESULT: u64 = 64 << 20;
const LARGE: u64 = 1 << 30;
/// How many names of a folder are looked at, how many of its files are opened, and how many bytes of them are read.
const NAMES: usize = 20_000;
const FILES: usize = 500;
const BYTES: u64 = 4 << 20;

/// Prints what may stand at the cursor of a line, a line each; nothing if that is unknown.
pub(crate) fn answer(args: Vec<OsString>, command: clap::Command) {
    // A panic would say so on the user's terminal.
    std::panic::set_hook(Box::new(|_| {}));
    let (to, from) = mpsc::channel();
    let work = move || {
        let _ = to.send(answers(&args, command).unwrap_or_default());
    };
    if thread::Builder::new().spawn(work).is_err() {
        return;
    }
    // A thread that still works ends with this process.
    if let Ok(answers) = from.recv_timeout(PATIENCE) {
        let _ = io::stdout().lock().write_all(answers.as_bytes());
    }
}

/// Returns the answers as the shell takes them.
fn answers(args: &[OsString], command: clap::Command) -> Option<String> {
    let line = Line::parse(args)?;
    let place = Place::of(&line, command)?;
    let typed = line.typed.get(place.prefix.len()..)?;
    let words = match what(&place)? {
        What::Functions => functions(&place, typed).ok()?,
        What::Programs => programs(&place, |program| &program.name).ok()?,
        What::Labels => programs(&place, |program| &program.label).ok()?,
        What::Modules => modules(&place).ok()?,
        What::Files(wanted) => files_of(&place, wanted, typed),
    };
    let answer = |word: &String| line.answer(&format!("{}{word}", place.prefix));
    Some(bounded(words, typed).iter().filter_map(answer).map(|word| word + "\n").collect())
}

/// What a value is.
enum What {
    Functions,
    Programs,
    Labels,
    Modules,
    Files(Wanted),
}

/// The files that a command reads.
#[derive(Clone, Copy, Default)]
struct Wanted {
    recordings: bool,
    profiles: bool,
    traces: bool,
}

fn what(place: &Place) -> Option<What> {
    let both = Wanted { recordings: true, profiles: true, traces: false };
    // A gmon.out is of a program that comes before it.
    let has_program = || results(place).iter().any(is_elf);
    let of_run = || Wanted { profiles: has_program(), ..both };
    let what = match (place.command.as_str(), place.arg.as_str()) {
        (_, "function") => What::Functions,
        (_, "module") => What::Modules,
        (_, "program") if !place.is_path => What::Programs,
        (_, "label") => What::Labels,
        ("trace", "file") | (_, "trace") => What::Files(Wanted { traces: true, ..Wanted::default() }),
        ("merge", "files") => What::Files(both),
        ("check", "files") => What::Files(Wanted { recordings: false, ..both }),
        ("push", "files") => What::Files(Wanted { profiles: false, ..both }),
        (_, "run" | "words") | ("diff", "files") => What::Files(of_run()),
        _ => return None,
    };
    Some(what)
}

/// Returns the files of the run that the line has before the cursor.
fn results(place: &Place) -> Vec<PathBuf> {
    ["run", "words", "files"].iter().flat_map(|arg| place.values(arg)).map(PathBuf::from).collect()
}

/// Reads the run that a line names, or the newest one.
fn source(place: &Place, programs: Vec<String>) -> Result<Source> {
    let part = PartArgs { program: programs, ..PartArgs::default() };
    let mut named = results(place);
    if named.iter().all(is_elf) {
        let newest = if Path::new(DEFAULT_FILE).exists() { DEFAULT_FILE } else { "gmon.out" };
        named.push(newest.into());
    }
    for path in &named {
        check_size(path, if is_elf(path) { LARGE } else { LARGE_RESULT })?;
    }
    let mut source = run::open(&RunArgs { run: named, part, ..RunArgs::default() })?;
    if let Source::Recording { recording, .. } = &mut source {
        // Only names and sums are asked for.
        recording.blocks.clear();
        recording.arcs.clear();
        recording.nodes.clear();
        recording.stacks.clear();
    }
    Ok(source)
}

/// Returns the names of functions as the tables have them, those with the most time first.
fn functions(place: &Place, typed: &str) -> Result<Vec<String>> {
    let names = match place.command.as_str() {
        "trace" => functions_of_trace(place)?,
        _ => {
            let source = source(place, place.values("program").map(str::to_owned).collect())?;
            let run = source.run(Detail::Functions)?;
            let args = TableArgs::default();
            let view = RunView::new(&args, &run, source.library())?;
            let mut order: Vec<u32> = view.chosen().collect();
            let cost = |&index: &u32| {
                let function = &run.functions[index as usize];
                (function.self_ns, function.calls)
            };
            order.sort_by_cached_key(|index| std::cmp::Reverse(cost(index)));
            let names = view.names(order.iter().copied());
            order.iter().map(|&index| names.of(index).to_owned()).collect()
        }
    };
    // Patterns have an exclamation mark between module and function, and options begin with a dash.
    let names: Vec<String> =
        names.into_iter().filter(|name| !splits(name) && !name.starts_with('-')).collect();
    if typed.is_empty() || names.iter().any(|name| name.starts_with(typed)) {
        return Ok(names);
    }
    // The last components are names too.
    let ends =
        names.iter().flat_map(|name| name.match_indices("::").map(|(at, _)| name[at + 2..].to_owned()));
    Ok(ends.filter(|end| end.starts_with(typed)).collect())
}

fn functions_of_trace(place: &Place) -> Result<Vec<String>> {
    let Some(path) = place.values("file").next().map(Path::new) else { return Ok(Vec::new()) };
    check_size(path, LARGE)?;
    let trace = load::load(path)?;
    let names = trace.functions.iter().filter(|function| !function.name.is_empty());
    Ok(names.map(|function| without_parameters(&text::demangled(&function.name))).collect())
}

fn programs(place: &Place, of: fn(&Program) -> &String) -> Result<Vec<String>> {
    match source(place, Vec::new())? {
        Source::Recording { recording, .. } => {
            let names: BTreeSet<_> = recording.programs.iter().map(|program| plain(of(program))).collect();
            Ok(names.into_iter().filter(|name| !name.is_empty()).collect())
        }
        Source::Profile { .. } => Ok(Vec::new()),
    }
}

fn modules(place: &Place) -> Result<Vec<String>> {
    let source = source(place, place.values("program").map(str::to_owned).collect())?;
    let run = source.run(Detail::Functions)?;
    Ok(run.modules.iter().map(|module| file_name(&module.path)).collect())
}

/// Returns the files of a kind in the folder of what was typed, the newest first.
fn files_of(place: &Place, wanted: Wanted, typed: &str) -> Vec<String> {
    let (folder, start) =
        typed.rsplit_once('/').map_or(("", typed), |(folder, start)| (&typed[..=folder.len()], start));
    let Ok(entries) = fs::read_dir(if folder.is_empty() { "." } else { folder }) else { return Vec::new() };
    let others: HashSet<PathBuf> = results(place).into_iter().collect();
    let mut found: Vec<(SystemTime, String)> = Vec::new();
    let mut budget = Budget { files: FILES, bytes: BYTES };
    for entry in entries.flatten().take(NAMES) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{folder}{name}");
        let is_hidden = name.starts_with('.') && start.is_empty();
        // An answer that begins with a dash would be an option.
        if !name.starts_with(start) || is_hidden || path.starts_with('-') || others.contains(Path::new(&path))
        {
            continue;
        }
        if budget.is_wanted(Path::new(&path), wanted) {
            let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
            found.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    found.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    found.into_iter().map(|(_, path)| path).collect()
}

/// How much of the files in a folder may still be read.
struct Budget {
    files: usize,
    bytes: u64,
}

impl Budget {
    /// Whether a file is of a kind that is wanted.
    fn is_wanted(&mut self, path: &Path, wanted: Wanted) -> bool {
        let Some(files) = self.files.checked_sub(1) else { return false };
        self.files = files;
        let Ok(bytes) = files::read_start(path) else { return false };
        let is_pprof = files::is_gzip(&bytes) && path.to_string_lossy().ends_with(".pb.gz");
        wanted.profiles && files::is_gmon(&bytes)
            || wanted.traces && bytes.starts_with(&FILE_HEADER)
            || wanted.recordings && is_pprof && self.is_recording(path)
    }

    /// Whether a profile in pprof's format is a recording. One that is too large to be looked at may be one.
    fn is_recording(&mut self, path: &Path) -> bool {
        let Ok(metadata) = fs::metadata(path) else { return false };
        let Some(left) = self.bytes.checked_sub(metadata.len()) else { return true };
        self.bytes = left;
        let is_ours = |bytes: Vec<u8>| Summary::read(&bytes).is_ok_and(|summary| summary.is_ours);
        files::read_any_kind(path).is_ok_and(is_ours)
    }
}

fn is_elf(path: impl AsRef<Path>) -> bool {
    files::read_start(path.as_ref()).is_ok_and(|bytes| files::is_elf(&bytes))
}

/// Refuses what is no regular file, or larger than this.
fn check_size(path: &Path, largest: u64) -> Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > largest {
        bail!("{}: not read for this", path.display());
    }
    Ok(())
}

/// Returns those words that begin as what was typed, each once, and about [`MOST`] of them. A shell inserts the beginning that all answers
/// share. So the first and the last word in alphabetical order are always among the answers: what these two share, all words share.
fn bounded(words: Vec<String>, typed: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut words: Vec<String> = words
        .into_iter()
        .filter(|word| !word.is_empty() && word.starts_with(typed) && seen.insert(word.clone()))
        .collect();
    if words.len() > MOST {
        let ends = [words.iter().min().cloned(), words.iter().max().cloned()];
        words.truncate(MOST);
        for end in ends.into_iter().flatten() {
            if !words.contains(&end) {
                words.push(end);
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_bounded() {
        let words = |count: usize| (0..count).rev().map(|n| format!("a{n:05}")).collect::<Vec<_>>();
        assert_eq!(bounded(vec!["ab".into(), "b".into(), "ab".into(), "a".into()], "a"), ["ab", "a"]);
        let few = bounded(words(5 * MOST), "a");
        assert_eq!(few.len(), MOST + 1);
        assert_eq!((few[0].as_str(), few[MOST].as_str()), ("a04999", "a00000"));
        assert_eq!(bounded(words(5 * MOST), "b"), [""; 0]);
    }
}
