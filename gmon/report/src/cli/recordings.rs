//! Reads gmon.pb.gz files.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use gmon::BuildId;
use gmon_run::{Program, ReadError, Recording};

use crate::cli::{files, text};

/// Reads what a run has recorded.
///
/// # Errors
/// The bytes are no such file; the message says what it seems to be.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Recording> {
    Recording::read(bytes).map_err(|error| {
        let what = match &error {
            ReadError::NotGzip(_) if bytes.starts_with(b"gm") => {
                Some("a gmon.out file, expected a gmon.pb.gz, which gprofinject writes beside it")
            }
            ReadError::NotGzip(_) if files::is_elf(bytes) || bytes.starts_with(b"\x7fE") => {
                Some("a program, expected a gmon.pb.gz; the program comes before the files")
            }
            ReadError::NotGzip(_) => Some("neither a program nor a gmon.pb.gz"),
            _ => None,
        };
        let path = path.display();
        match what {
            Some(what) => anyhow::anyhow!("{path}: {what}"),
            None => anyhow::Error::from(error).context(path.to_string()),
        }
    })
}

/// What a file that the user has named is in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    Program,
    Library,
}

/// Leaves out all programs of a recording but those with this build-id, or with this path if their build-ids are not known. If that
/// says nothing of any of them, all stay; so they do if it is a library's.
///
/// # Errors
/// No program has this build-id.
pub(crate) fn select(
    recording: &mut Recording,
    file: &Path,
    build_id: BuildId,
    path: &Path,
) -> Result<Selected> {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let modules = &recording.modules;
    let id_of = |program: &Program| {
        modules.get(program.module as usize).map_or(BuildId::UNKNOWN, |module| BuildId::new(&module.build_id))
    };
    let is_same = |program: &Program| match build_id.is_known() && id_of(program).is_known() {
        true => id_of(program) == build_id,
        false => modules.get(program.module as usize).is_some_and(|m| Path::new(&m.path) == absolute),
    };
    let wanted: Vec<bool> = recording.programs.iter().map(is_same).collect();
    if wanted.contains(&true) {
        let mut wanted = wanted.into_iter();
        recording.retain_programs(|_| wanted.next().unwrap_or(false));
        return Ok(Selected::Program);
    }
    let is_library = |module: &gmon_run::Module| match build_id.is_known() && !module.build_id.is_empty() {
        true => BuildId::new(&module.build_id) == build_id,
        false => Path::new(&module.path) == absolute,
    };
    if recording.modules.iter().any(is_library) {
        return Ok(Selected::Library);
    }
    let others = recording.programs.iter().map(|program| (program, build_id.agree(id_of(program))));
    let mut first = None;
    for (program, agreed) in others {
        match agreed {
            Ok(_) => return Ok(Selected::Program),
            Err(stale) => first = first.or(Some((program, stale))),
        }
    }
    let Some((program, stale)) = first else { return Ok(Selected::Program) };
    let (file, path, first, other) = (file.display(), path.display(), stale.first, stale.other);
    let is_named_so = absolute.file_name().is_some_and(|name| *name == *program.name);
    match recording.programs.len() == 1 || is_named_so {
        true => {
            bail!(
                "{file}: of the program with build-id {other}.., but {path} has {first}..: rebuilt since the run"
            )
        }
        false => {
            bail!("{file}: none of its programs has the build-id of {path}, {first}..: rebuilt since the run")
        }
    }
}

/// Leaves out what processes have done whose label none of the patterns matches. Without patterns, all stay.
///
/// # Errors
/// No process has such a label.
pub(crate) fn select_labelled(recording: &mut Recording, patterns: &[String]) -> Result<()> {
    if patterns.is_empty() {
        return Ok(());
    }
    let is_wanted = |program: &Program| text::chosen_label(patterns, &program.label);
    if !recording.programs.iter().any(is_wanted) {
        if !recording.has_labels() {
            bail!(
                "--label: no process of this run has a label; GPROFINJECT_LABEL in its environment gives it one"
            );
        }
        const NAMED: usize = 20;
        let labels: BTreeSet<_> =
            recording.programs.iter().map(|program| text::plain(&program.label)).collect();
        let more = match labels.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let labels: Vec<_> = labels.into_iter().filter(|label| !label.is_empty()).take(NAMED).collect();
        bail!("no process has the label {}; there are {}{more}", patterns.join(" or "), labels.join(", "));
    }
    recording.retain_programs(is_wanted);
    Ok(())
}

/// Leaves out the programs that none of the patterns matches by its name or the number of its process. Without patterns, all stay.
///
/// # Errors
/// No program matches.
pub(crate) fn select_named(recording: &mut Recording, patterns: &[String]) -> Result<()> {
    if patterns.is_empty() {
        return Ok(());
    }
    let is_wanted = |program: &Program| {
        let pid = program.pid.to_string();
        text::chosen_path(patterns, &program.name) || program.pid > 0 && patterns.contains(&pid)
    };
    if !recording.programs.iter().any(is_wanted) {
        let names: BTreeSet<_> =
            recording.programs.iter().map(|program| text::plain(&program.name)).collect();
        let names: Vec<_> = names.into_iter().collect();
        bail!("no program is called {}; there are {}", patterns.join(" or "), names.join(", "));
    }
    recording.retain_programs(is_wanted);
    Ok(())
}
