//! The files for other tools (`--export`): checked before the program runs, and written after it. `gmon export` makes them.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use gmon::output::Target;
use gmon_export::formats::Format;
use gmon_run::Recording;

use crate::options::Export;
use crate::os::{memory_files, reporter, sys};

/// Files that have passed the check.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// The command gmon.
    gmon: PathBuf,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    format: Format,
    path: PathBuf,
    target: Target,
}

impl Exports {
    /// Checks that all files can be written, and that there is a gmon that makes them.
    ///
    /// # Errors
    /// One cannot, or there is none.
    pub(crate) fn check(exports: &[Export]) -> Result<Exports> {
        if exports.is_empty() {
            return Ok(Exports::default());
        }
        let check = |Export { format, file }: &Export| {
            let target = if file == Path::new("-") { Target::standard_output() } else { Target::check(file) };
            let target = target.with_context(|| {
                let file = file.display();
                format!("cannot write to {file}; name another file with --export {format}=FILE")
            })?;
            Ok(Place { format: *format, path: file.clone(), target })
        };
        let places = exports.iter().map(check).collect::<Result<_>>()?;
        Ok(Exports { gmon: reporter::find("--export")?, places })
    }

    /// Whether nothing is to be exported.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the files that are regular ones.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().filter_map(|place| place.target.file())
    }

    /// Writes what the first program has counted.
    ///
    /// Returns what went wrong.
    pub(crate) fn write(&self, recording: &Recording) -> Vec<String> {
        let run = recording.write();
        let write = |place: &Place| {
            let made = self.made(recording, &run, place);
            trouble(&place.path, made.and_then(|bytes| Ok(place.target.write(&bytes)?)))
        };
        self.places.iter().filter_map(write).collect()
    }

    /// Writes what another program or process has counted: `.SUFFIX` is added to the names of the files. A pipe or a device takes
    /// one export only.
    ///
    /// Returns what went wrong.
    pub(crate) fn write_other(&self, suffix: &str, recording: &Recording) -> Vec<String> {
        let run = recording.write();
        let write = |place: &Place| {
            let mut name = place.path.clone().into_os_string();
            name.push(format!(".{suffix}"));
            let path = PathBuf::from(name);
            let write = |bytes: Vec<u8>| Ok(Target::check(&path)?.write(&bytes)?);
            trouble(&path, self.made(recording, &run, place).and_then(write))
        };
        self.places.iter().filter(|place| !place.target.is_stream()).filter_map(write).collect()
    }

    /// Returns what gmon makes of a recording, whose file is `run`.
    fn made(&self, recording: &Recording, run: &[u8], place: &Place) -> Result<Vec<u8>> {
        let mut file = memory_files::empty_memory_file(Path::new("run"))?;
        file.write_all(run)?;
        let mut command = Command::new(&self.gmon);
        command.args(["export", "--to", &place.format.to_string()]);
        // Everyone may read the report, so root shows no files of other users in it: `gmon html` does, in one that only root may read.
        if place.format == Format::Html && sys::ids().euid == 0 && has_other_owners(recording) {
            command.arg("--no-lines");
        }
        let output = command.arg("/dev/stdin").stdin(Stdio::from(file)).output();
        let output = output.with_context(|| self.gmon.display().to_string())?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim_end())),
        }
    }
}

/// Whether files of a recording belong to other users than root.
fn has_other_owners(recording: &Recording) -> bool {
    let owner = |path: &str| std::fs::metadata(path).map_or(0, |file| file.uid());
    recording.modules.iter().any(|module| owner(&module.path) != 0)
}

fn trouble(path: &Path, result: Result<()>) -> Option<String> {
    let error = result.err()?;
    let reason = error.downcast_ref().map_or_else(|| format!("{error:#}"), sys::reason);
    Some(format!("cannot write {}: {reason}", path.display()))
}
