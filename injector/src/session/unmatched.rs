//! Patterns of -I and --slow that match nothing: most are misspelled, and the program need not run for that.
//!
//! What is known before the start are the functions of the program and of the libraries that it needs. Further code may come later:
//! libraries that the program loads, and programs that it executes. So a pattern is refused only if it is
//!
//! * `MODULE!FUNCTION` with the whole name of a module that is known, or
//! * for all modules, in a program that executes no others. Libraries that are loaded later are rarely what such a pattern is for, and
//!   `*!FUNCTION` says that it is for any.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use gprofinject_image::headers;
use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::short;
use gprofinject_image::names::similar::similar;
use gprofinject_plan::Verdict;
use memchr::memmem;

use crate::options::HooksArg;
use crate::os::failure::Tipped;
use crate::os::loader::{self, Needed};
use crate::program::filters::{Filters, Pattern};
use crate::program::library;
use crate::program::planned::Planned;
use crate::program::subject::Subject;
use crate::session::settings::{Settings, SlowCalls};
use crate::session::words::quoted;

/// What a program executes others by.
const EXECUTES: [&str; 16] = [
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
    "execveat",
    "execvp",
    "execvpe",
    "fexecve",
    "popen",
    "posix_spawn",
    "posix_spawnp",
    "syscall.Exec",
    "syscall.forkExec",
    "system",
    "wordexp",
];

/// A library that the program needs.
struct Library {
    path: PathBuf,
    /// The names of its file and by which others need it.
    names: [String; 2],
    is_wanted: bool,
}

/// Checks that each pattern of -I matches a function, or may match one later.
///
/// # Errors
/// One does not.
pub(crate) fn check(program: &Path, planned: &Planned, settings: &Settings) -> Result<()> {
    check_one(&settings.filters, program, planned, settings)
}

/// Checks the same of each pattern of --slow, and that a function of the program that matches can be measured.
///
/// # Errors
/// One does not, or none can.
pub(crate) fn check_slow(program: &Path, planned: &Planned, settings: &Settings) -> Result<()> {
    let Some(SlowCalls { typed, wanted, .. }) = &settings.slow else { return Ok(()) };
    let own = names_of_module(program);
    let records = planned.plan.iter().flat_map(|plan| plan.records.iter());
    let measured: HashSet<u64> =
        records.filter(|record| record.exit != 0).map(|record| record.entry).collect();
    let mut why = None;
    let mut is_measured = false;
    for (function, verdict) in planned.functions() {
        if wanted.select(&own, function.names()) {
            is_measured |= measured.contains(&function.address);
            let reason = match verdict {
                Verdict::Refused(reason) => reason.to_string(),
                Verdict::Hooked(_) => "its exits cannot be hooked".to_owned(),
            };
            why = why.or(Some((function.name.to_owned(), reason)));
        }
    }
    check_one(wanted, program, planned, settings)?;
    match why.filter(|_| !is_measured && planned.plan.is_some() && wanted.unused_includes().next().is_none())
    {
        Some(_) if is_in_libraries(wanted, program, planned, settings) => Ok(()),
        Some((name, reason)) => {
            let name = short(&demangle(&name)).into_owned();
            Err(anyhow!("--slow '{}': {name} is not measured: {reason}", typed.join("' and '")))
        }
        None => Ok(()),
    }
}

/// Returns whether a library that the program needs has a function that matches.
fn is_in_libraries(filters: &Filters, program: &Path, planned: &Planned, settings: &Settings) -> bool {
    let libraries = if planned.wants_libraries() { needed(program, planned, settings) } else { Vec::new() };
    libraries.iter().filter(|library| library.is_wanted).any(|library| {
        let subject = settings.planner().library_subject(&library.path);
        let modules = library.names.each_ref().map(String::as_str);
        subject.functions().iter().any(|function| filters.select(&modules, function.names()))
    })
}

/// Returns the names by which patterns know the program.
fn names_of_module(program: &Path) -> [&str; 2] {
    ["", program.file_name().and_then(|name| name.to_str()).unwrap_or_default()]
}

fn check_one(filters: &Filters, program: &Path, planned: &Planned, settings: &Settings) -> Result<()> {
    let is_idle = settings.hooks == Some(HooksArg::None) || planned.subject.kind.unhookable().is_some();
    if is_idle || planned.obstacle.is_some() || filters.unused_includes().next().is_none() {
        return Ok(());
    }
    let libraries = match planned.wants_libraries() {
        true => needed(program, planned, settings),
        false => Vec::new(),
    };
    let mut subjects = vec![planned.subject];
    for library in libraries.iter().filter(|library| library.is_wanted) {
        if filters.unused_includes().next().is_none() {
            return Ok(());
        }
        let subject = settings.planner().library_subject(&library.path);
        let modules = [library.names[0].as_str(), library.names[1].as_str()];
        for function in subject.functions().iter() {
            filters.select(&modules, function.names());
        }
        subjects.push(subject);
    }
    let executes = settings.follow && executes(planned.subject);
    let own = names_of_module(program);
    for pattern in filters.unused_includes() {
        let known =
            libraries.iter().find(|library| pattern.is_for(&library.names.each_ref().map(String::as_str)));
        let is_known = pattern.is_for(&own) || known.is_some();
        let may_match_later = match pattern.names_a_module() {
            true => pattern.is_for_several_modules() || !is_known,
            false => executes,
        };
        if !may_match_later {
            let module = known.filter(|_| pattern.names_a_module());
            return Err(refusal(pattern, program, module, &subjects, settings).into());
        }
    }
    Ok(())
}

/// Returns what is wrong with a pattern, and what helps.
fn refusal(
    pattern: &Pattern,
    program: &Path,
    module: Option<&Library>,
    subjects: &[&Subject],
    settings: &Settings,
) -> Tipped {
    const NAMED: usize = 3;
    let program = program.display();
    if let Some(library) = module.filter(|library| !library.is_wanted) {
        let [name, _] = &library.names;
        return Tipped {
            message: format!(
                "{pattern} matches nothing: {name} is left out by --libs {}",
                settings.libs.typed()
            ),
            tip: format!("add --libs {}", quoted(OsStr::new(name))),
        };
    }
    let names = subjects.iter().flat_map(|subject| names_of(subject));
    let near = similar(&[pattern.of_functions().to_owned()], names);
    let near: Vec<String> = near.iter().take(NAMED).map(|name| format!("'{name}'")).collect();
    let tip = match (near.is_empty(), pattern.names_a_module()) {
        (false, _) => format!("similar names: {}", near.join(", ")),
        (true, true) => format!("gprofinject --list {program} shows the functions"),
        (true, false) => {
            let later = format!("*!{}", pattern.typed());
            format!(
                "for a library that is loaded later, write {} {}",
                pattern.option(),
                quoted(OsStr::new(&later))
            )
        }
    };
    let libraries = if settings.libs.wants_any() { " or its libraries" } else { "" };
    Tipped { message: format!("{pattern} matches no function of {program}{libraries}"), tip }
}

/// Returns the libraries that the program needs, as far as they can be found.
fn needed(program: &Path, planned: &Planned, settings: &Settings) -> Vec<Library> {
    let interpreter = planned.subject.kind.interpreter().unwrap_or_default();
    let needed = loader::needed(program, interpreter).unwrap_or_default();
    let files = needed.into_iter().filter_map(|needed| match needed {
        Needed::File(path) => Some(path),
        Needed::Missing(_) => None,
    });
    files
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let soname = library::soname(&path).unwrap_or_else(|| name.clone());
            let is_wanted = settings.libs.wants(&name, || Some(soname.clone()));
            Library { path, names: [name, soname], is_wanted }
        })
        .collect()
}

/// Returns the names of functions as users write them.
fn names_of(subject: &Subject) -> impl Iterator<Item = String> {
    let names = subject.functions().iter().map(|function| function.name).filter(|name| !name.is_empty());
    names.map(|name| short(&demangle(name)).into_owned())
}

/// Whether a program can execute others: it imports a function for that, or has one of its own, or nobody knows.
fn executes(subject: &Subject) -> bool {
    let names = EXECUTES.iter();
    match headers::dynamic_strings(subject.bytes) {
        Some(strings) => {
            let mut ends = names.map(|name| format!("{name}\0"));
            ends.any(|name| memmem::find(strings, name.as_bytes()).is_some())
        }
        None => {
            let is_stripped = subject.functions().iter().all(|function| function.name.is_empty());
            let mut own = subject.functions().iter().flat_map(|function| function.names());
            is_stripped || own.any(|name| EXECUTES.contains(&name))
        }
    }
}
