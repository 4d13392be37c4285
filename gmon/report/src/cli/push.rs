//! `gmon push`: sends profiles to a server that stores them, such as Grafana Pyroscope.

mod deliver;
mod request;
mod secrets;

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use gmon_run::{ReadError, Summary};

use crate::cli::push::deliver::Server;
use crate::cli::push::request::Upload;
use crate::cli::push_args::PushArgs;
use crate::cli::text::plain;
use crate::cli::{files, rank, recordings};

/// Sends each file.
///
/// # Errors
/// A file cannot be read, or the server does not take it.
pub(crate) fn run(args: &PushArgs) -> Result<()> {
    let server = Server::new(args)?;
    let mut out = io::stdout().lock();
    for file in &args.files {
        let upload = upload(args, file).with_context(|| file.display().to_string())?;
        server.send(&upload).with_context(|| file.display().to_string())?;
        let size = gmon::counted(upload.profile.len(), "byte", "bytes");
        writeln!(out, "{}: {size} sent as {}", file.display(), plain(&upload.name))?;
    }
    Ok(())
}

/// Reads a file, and says what is to be sent of it.
fn upload(args: &PushArgs, file: &Path) -> Result<Upload> {
    let bytes = files::read_any_kind(file)?;
    let summary = Summary::read(&bytes).map_err(|error| match error {
        ReadError::NotGzip(_) if bytes.starts_with(b"gmon") => anyhow!(
            "a gmon.out file, and the server takes profiles in pprof's format: gprofinject writes gmon.pb.gz beside it, \
             and `gmon export --to pprof` makes one of the program and its gmon.out"
        ),
        ReadError::NotGzip(_) => anyhow!("no profile in pprof's format, which begins with the bytes 1f 8b of gzip"),
        error => error.into(),
    })?;
    let program = match summary.is_ours {
        true => recordings::parse(file, &bytes)?.program().to_owned(),
        false => summary.program.clone(),
    };
    let name = match &args.name {
        Some(name) => request::application(name).with_context(|| format!("--name {}", plain(name)))?,
        None => default_name(&program)?,
    };
    let rank = rank::of_file(file).map(|rank| ("rank".to_owned(), rank.to_string()));
    let labels = rank.into_iter().chain(args.label.iter().cloned());
    Ok(Upload { name: request::name(&name, labels), profile: bytes, summary })
}

/// Returns the name of an application that has none, from the path of its program.
fn default_name(program: &str) -> Result<String> {
    let file = program.rsplit('/').next().unwrap_or_default();
    let name: String = file.chars().map(|c| if request::is_of_name(c) { c } else { '_' }).collect();
    if name.is_empty() {
        bail!("it does not say which program it is of; give it a name with --name NAME");
    }
    Ok(name)
}
