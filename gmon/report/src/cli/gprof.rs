//! `gmon gprof`: runs gprof on the whole of a run.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use gmon_export::Run;
use gmon_export::formats::pair;
use gmon_export::load::Detail;

use crate::cli::export_args::GprofArgs;
use crate::cli::run_args::RunArgs;
use crate::cli::{files, run};

/// Writes the files that gprof reads: NAME.syms and NAME.whole. Returns their names in the order in which gprof takes them.
///
/// # Errors
/// They cannot be written.
pub(crate) fn write(run: &Run, name: &Path) -> Result<[PathBuf; 2]> {
    let pair = pair(run)?;
    let authors = run::authors(run);
    let path = |ending: &str| {
        let mut name = name.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let [symbols, profile] = [path(".syms"), path(".whole")];
    files::replace(&symbols, &pair.symbols, &authors)?;
    files::replace(&profile, &pair.profile, &authors)?;
    Ok([symbols, profile])
}

/// Runs gprof. Returns its exit status.
///
/// # Errors
/// A file cannot be read, or gprof cannot be run.
pub(crate) fn run(args: GprofArgs) -> Result<ExitCode> {
    let GprofArgs { words, part, form } = args;
    // Files may come before gprof's options, or after them as gprof itself has them.
    let is_file = |word: &&OsString| Path::new(word).is_file();
    let first = words.iter().take_while(is_file).count().min(2);
    let (before, rest) = words.split_at(first);
    let last = if before.is_empty() { rest.iter().rev().take_while(is_file).count().min(2) } else { 0 };
    let (options, after) = rest.split_at(rest.len() - last);
    let files = before.iter().chain(after).map(PathBuf::from).collect();
    let options = options.iter().filter(|option| *option != "--");
    let run = run::load(&RunArgs { run: files, part, form }, Detail::Functions)?;
    let folder =
        tempfile::Builder::new().prefix("gmon-").tempdir().context("no folder for temporary files")?;
    let pair = write(&run, &folder.path().join("gmon"))?;
    let status = match Command::new("gprof").args(options).args(pair).status() {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "gprof: not found in PATH; it is a part of binutils, and `gmon flat` and `gmon graph` show the same"
            )
        }
        Err(error) => return Err(error).context("gprof"),
    };
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}
