//! The files for other tools (`--export`): checked before the program runs, and written after it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_export::formats::{self, Format};
use gmon_export::load::{self, Detail};
use gmon_export::{Run, html};
use gmon_run::Recording;
use gprofinject_image::debug::Authors;

use crate::options::Export;
use crate::os::sys;

/// Files that have passed the check.
#[derive(Debug)]
pub(crate) struct Exports(Vec<Place>);

#[derive(Debug)]
struct Place {
    format: Format,
    path: PathBuf,
    target: Target,
}

impl Exports {
    /// Checks that all files can be written.
    ///
    /// # Errors
    /// One cannot.
    pub(crate) fn check(exports: &[Export]) -> Result<Exports> {
        let check = |Export { format, file }: &Export| {
            let target = if file == Path::new("-") { Target::standard_output() } else { Target::check(file) };
            let target = target.with_context(|| {
                let file = file.display();
                format!("cannot write to {file}; name another file with --export {format}=FILE")
            })?;
            Ok(Place { format: *format, path: file.clone(), target })
        };
        exports.iter().map(check).collect::<Result<_>>().map(Exports)
    }

    /// Whether nothing is to be exported.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the files that are regular ones.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|place| place.target.file())
    }

    /// Writes what the first program has counted.
    ///
    /// Returns what went wrong.
    pub(crate) fn write(&self, recording: &Recording) -> Vec<String> {
        let run = &load::recording(recording, Detail::Lines);
        let write = |place: &Place| {
            trouble(&place.path, encoded(recording, run, place).and_then(|bytes| place.target.write(&bytes)))
        };
        self.0.iter().filter_map(write).collect()
    }

    /// Writes what another program or process has counted: `.SUFFIX` is added to the names of the files. A pipe or a device takes
    /// one export only.
    ///
    /// Returns what went wrong.
    pub(crate) fn write_other(&self, suffix: &str, recording: &Recording) -> Vec<String> {
        let run = &load::recording(recording, Detail::Lines);
        let write = |place: &Place| {
            let mut name = place.path.clone().into_os_string();
            name.push(format!(".{suffix}"));
            let path = PathBuf::from(name);
            let write = |bytes: Vec<u8>| Target::check(&path)?.write(&bytes);
            trouble(&path, encoded(recording, run, place).and_then(write))
        };
        self.0.iter().filter(|place| !place.target.is_stream()).filter_map(write).collect()
    }
}

fn encoded(recording: &Recording, run: &Run, place: &Place) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if place.format == Format::Html {
        let authors = Authors::among(run.owners.iter().copied());
        // Everyone may read the report, so root shows no files of other users in it: `gmon html` does, in one that only root may read.
        let is_shown = authors.is_empty() || sys::ids().euid != 0;
        html::with_extras(recording, run, &authors, is_shown, |extras| html::write(run, extras, &mut bytes))?;
    } else {
        formats::write(run, place.format, &mut bytes)?;
    }
    Ok(bytes)
}

fn trouble(path: &Path, result: std::io::Result<()>) -> Option<String> {
    let error = result.err()?;
    Some(format!("cannot write {}: {}", path.display(), sys::reason(&error)))
}
