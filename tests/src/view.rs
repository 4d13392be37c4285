//! The view of the whole process, as gprof reads it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon_export::formats::pair;
use gmon_export::load::{self, Detail};
use gmon_run::{Program, Recording};

/// Writes the files that `gmon export --to gprof` makes of a recording: `NAME.syms` and `NAME.whole` beside `NAME.pb.gz`. Returns their
/// names in the order in which gprof takes them.
///
/// # Errors
/// The recording cannot be read, or the files cannot be written.
pub fn written(recording: &Path) -> Result<[PathBuf; 2]> {
    written_of(recording, |_| true)
}

/// Does the same for some of the run's programs.
///
/// # Errors
/// The recording cannot be read, or the files cannot be written.
pub fn written_of(recording: &Path, is_wanted: impl Fn(&Program) -> bool) -> Result<[PathBuf; 2]> {
    let mut read = read(recording)?;
    read.retain_programs(is_wanted);
    let pair = pair(&load::recording(&read, Detail::Functions))?;
    let name =
        recording.to_str().and_then(|name| name.strip_suffix(".pb.gz")).context("a name with .pb.gz")?;
    let paths = ["syms", "whole"].map(|ending| PathBuf::from(format!("{name}.{ending}")));
    for (path, bytes) in paths.iter().zip([pair.symbols, pair.profile]) {
        std::fs::write(path, bytes)?;
    }
    Ok(paths)
}

/// Reads a recording.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Recording> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Recording::read(&bytes).with_context(|| path.display().to_string())
}
