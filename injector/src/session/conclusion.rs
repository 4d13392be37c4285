//! The end of a run: what it has left is written, and said in a few lines.

use std::path::Path;

use anyhow::Result;
use gmon::output::Target as File;
use gmon::visible;

use crate::options::CountArg;
use crate::os::columns;
use crate::os::say::{Level, NAME, Voice};
use crate::os::sys;
use crate::profile::counted::Finished;
use crate::program::planned::Planned;
use crate::program::profilee::Profilee;
use crate::program::resolve::Program;
use crate::sampling::sampler::Method;
use crate::session::browser;
use crate::session::digest::Digest;
use crate::session::family::Family;
use crate::session::outcome::Run;
use crate::session::results::{Item, Results, Said};
use crate::session::settings::Settings;
use crate::session::summary::Facts;
use crate::session::words::{self, quoted, quoted_file};
use crate::store::output::Output;

/// The recording that gmon reads if none is named.
const USUAL: &str = "gmon.pb.gz";

/// What the user has asked for.
pub(crate) struct Asked<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) program: &'a Program,
}

/// What is written at the end.
pub(crate) struct Files<'f> {
    pub(crate) output: &'f Output,
    pub(crate) stats: Option<&'f File>,
    pub(crate) profilee: &'f Profilee,
    /// What the first program has counted, and its gmon.out.
    pub(crate) first: &'f Finished,
    pub(crate) bytes: &'f [u8],
}

/// Reports which executed programs are not in any profile, or not as the user asked. `make` may have executed
/// many of them.
pub(crate) fn say_what_was_not_followed(family: &Family, voice: Voice) {
    let mut notes = family.unfollowed.iter();
    if let Some(first) = notes.next() {
        voice.note(first);
    }
    let more = notes.len();
    notes.for_each(|note| voice.detail(note));
    if more > 0 && voice.0 < Level::Verbose {
        voice.note(format_args!("and {} of this kind (-v)", gmon::counted(more, "more note", "more notes")));
    }
}

/// Warns of patterns of the user that have matched nothing.
pub(crate) fn say_what_matched_nothing(asked: &Asked, planned: &Planned) {
    let Asked { settings, program } = asked;
    let of_functions = settings.filters.unused().filter(|_| planned.wants_libraries());
    let of_arguments = settings.args.iter().flat_map(|args| args.unused());
    for pattern in of_functions.chain(of_arguments) {
        settings.voice.warn(format_args!(
            "{pattern} matches no function of {} or its libraries",
            program.binary.display()
        ));
    }
    if let Some(pattern) = settings.libs.unused_outermost().next() {
        settings.voice.warn(format_args!(
            "--outermost '{pattern}' matches neither the program nor a library that was loaded; ldd shows the names of libraries"
        ));
    }
    if let Some(pattern) = settings.libs.unused().next().filter(|_| planned.wants_libraries()) {
        settings.voice.warn(format_args!(
            "--libs '{pattern}' matches no library that was loaded; ldd shows the names of libraries"
        ));
    }
}

/// Writes the profile, the recording and the facts about the run, and prints the report. The process of the profile is `pid`.
///
/// # Errors
/// The profile cannot be written.
pub(crate) fn conclude(
    run: &Run,
    asked: &Asked,
    files: &Files,
    mut results: Results,
    pid: u32,
) -> Result<()> {
    let voice = asked.settings.voice;
    let Files { output, stats, profilee, first, bytes } = *files;
    for loss in run.losses() {
        voice.warn(loss);
    }
    run.details(voice);
    if let Some(Err(error)) = stats.map(|target| run.stats().write(target)) {
        voice.warn(sys::plain(&format!("{error:#}")));
    }
    let subject = run.planned.subject;
    let is_seen = subject.kind.is_readable()
        && (subject.kind.unhookable().is_none() || run.sampler != Method::None.name());
    let mut said = Said::default();
    results.took(run.duration);
    let written = is_seen
        .then(|| results.first(profilee, first, run.processes, &mut said, || output.write(pid, bytes)));
    if let Some(slowest) = run.watched.and_then(|watched| watched.slowest.as_ref()) {
        results.slowest(slowest);
    }
    results.unfollowed(run.unfollowed);
    let digest = results.digest(asked.settings.measure.is_some_and(|measure| measure.is_result));
    let recording = results.finish(pid, &mut said);
    let recording = recording.unwrap_or_else(|error| {
        said.troubles.push(format!("{error:#}"));
        None
    });
    let recording = recording.as_deref();
    run.list_others(recording, voice);
    said.troubles.iter().for_each(|trouble| voice.warn(trouble));
    say_trace(run, asked, &digest);
    run.watched.into_iter().for_each(|watched| words::say_slowest(watched, voice));
    if written.is_none() {
        voice.warn(format_args!("no profile of {}", asked.program.binary.display()));
    }
    let item = written.transpose();
    if let Ok(Some(item)) = &item {
        let remark = run.placed.remark(&asked.program.shown.to_string_lossy());
        remark.into_iter().for_each(|remark| voice.detail(remark));
        said.notes.iter().for_each(|note| voice.note(note));
        item.commands(recording).into_iter().for_each(|command| voice.detail(command));
    }
    run.advise(voice);
    let next = next(run, asked.settings, &digest, item.as_ref().ok().and_then(Option::as_ref), recording);
    sum_up(run, asked, &digest, next);
    if let Some(gmon) = &asked.settings.opener {
        browser::open(gmon, recording, voice);
    }
    item.map(drop)
}

/// Prints the lines at the end.
fn sum_up(run: &Run, asked: &Asked, digest: &Digest, next: Option<String>) {
    let Asked { settings, program } = *asked;
    let name = match settings.command.first() {
        Some(typed) => file_name(Path::new(typed)),
        None => file_name(&program.binary),
    };
    let command: Vec<_> = settings.command.iter().map(|word| quoted(word)).collect();
    let command = if command.is_empty() { name.clone() } else { command.join(" ") };
    let facts = Facts {
        name: visible(&name).into_owned(),
        command: visible(&command).into_owned(),
        duration: run.duration,
        ending: run.ending,
        digest,
        blocks: run.executed_blocks(),
        remarks: run.remarks(digest).into_iter().map(|remark| visible(&remark).into_owned()).collect(),
        next,
    };
    let columns = columns::of_standard_error();
    let lines = match columns.map(|columns| columns.saturating_sub(columns::width(NAME))) {
        Some(columns) => facts.lines(columns),
        None => facts.log(),
    };
    lines.into_iter().for_each(|line| settings.voice.note(line));
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the command that shows what was measured, if it is in any file. `item` is the first program's.
fn next(
    run: &Run,
    settings: &Settings,
    digest: &Digest,
    item: Option<&Item>,
    recording: Option<&Path>,
) -> Option<String> {
    if let Some(trace) = run.traced.and_then(|traced| traced.files.first()) {
        return Some(format!("gmon trace {}", quoted_file(trace)));
    }
    let Some(recording) = recording else { return item.and_then(|item| item.commands(None)) };
    let counts = settings.filters.count().filter(|_| digest.has_blocks);
    let report = match (counts, settings.measure) {
        (Some(CountArg::Lines), None) => Some("lines"),
        (Some(CountArg::Blocks), None) => Some("asm"),
        (None, Some(_)) if has_slow(run) => Some("paths --slow"),
        (None, Some(measure)) if digest.has_values && measure.paths.is_some() => Some("values --paths"),
        (None, Some(_)) if digest.has_values => Some("values"),
        (None, Some(_)) if digest.has_paths => Some("paths"),
        // The browser has views of all that was measured.
        _ => None,
    };
    let file = (recording != Path::new(USUAL)).then(|| quoted_file(recording));
    // The word after gmon is a command.
    let report = report.or(file.as_ref().map(|_| "flat"));
    let words = [Some("gmon".to_owned()), report.map(str::to_owned), file];
    Some(words.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

/// Returns whether any slow calls were kept.
fn has_slow(run: &Run) -> bool {
    let slowest = run.watched.and_then(|watched| watched.slowest.as_ref());
    slowest.is_some_and(|slowest| !slowest.slow.calls.is_empty())
}

/// Says what was traced, if anything was, and what is missing.
fn say_trace(run: &Run, asked: &Asked, digest: &Digest) {
    let Some(traced) = run.traced else { return };
    words::say_trace(traced, run.untraced(digest.all.calls), run.planned.measure, asked.settings.voice);
}
