//! `--dump`, `--reset`, `--pause` and `--resume`: requests to the other gprofinject that profiles the
//! process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};

use crate::options::Verb;
use crate::os::sys;
use crate::session::message::{Answer, PATTERN_MAX, Request};
use crate::store::private_folder::PrivateFolder;
use crate::store::{listener, logbook};
use crate::target::attach::earlier::foreign;
use crate::target::named::{self, Named};
use crate::target::process::Process;

/// Asks the gprofinject that profiles a process to do something. Returns its answer.
///
/// # Errors
/// No gprofinject of this user profiles the process, or it could not do what was asked.
pub(crate) fn control(
    pid: i32,
    verb: Verb,
    output: Option<PathBuf>,
    pattern: Option<String>,
) -> Result<String> {
    // The process may be traced by the gprofinject that profiles it.
    let named = match named::folders(pid) {
        Ok(named) if !named.is_empty() => named,
        _ => Process::open(pid).map(|_| Vec::new())?,
    };
    if let [Named::Foreign(path, user)] = named.as_slice() {
        bail!(foreign(pid, path, *user));
    }
    let folders: Vec<PrivateFolder> = named.into_iter().filter_map(Named::ours).collect();
    let output = output.map(std::path::absolute).transpose()?;
    if output.is_some() && verb != Verb::Dump {
        bail!("--output says where --dump goes, and nothing else here");
    }
    if pattern.as_ref().is_some_and(|pattern| pattern.len() > PATTERN_MAX) {
        bail!("the pattern is too long: {PATTERN_MAX} bytes at most");
    }
    ask(&folders, &Request { pid, verb, output, pattern, wants: None }).map(|(text, _)| text)
}

/// Returns the run folder of the gprofinject of this user that profiles a process, if there is one.
pub(crate) fn holder(pid: i32) -> Option<PrivateFolder> {
    let folders = named::folders(pid).ok()?.into_iter().filter_map(Named::ours);
    folders.into_iter().find(logbook::is_looked_after)
}

/// Asks the gprofinject that looks after one of `folders`, which are run folders of this user that the
/// process has mapped.
pub(crate) fn ask(folders: &[PrivateFolder], request: &Request) -> Result<(String, Option<OwnedFd>)> {
    let pid = request.pid;
    let folder = folders
        .iter()
        .find(|folder| logbook::is_looked_after(folder))
        .with_context(|| match folders.first() {
            Some(folder) => format!(
                "the gprofinject that profiled process {pid} was killed; its profile: gprofinject --recover {}",
                folder.path().display()
            ),
            None => format!("process {pid} is not profiled; gprofinject --pid {pid} starts a profile"),
        })?;
    let (answer, file) = listener::ask(folder, &request.packet()?).map_err(|error: io::Error| {
        anyhow!("the gprofinject that profiles process {pid} does not answer: {}", sys::reason(&error))
    })?;
    match Answer::parse(&answer) {
        Some(Answer::Done(text)) => Ok((text, file)),
        Some(Answer::Failed(reason)) => bail!(reason),
        None => bail!("the gprofinject that profiles process {pid} did not answer"),
    }
}
