//! `--top` and `--plain` for a process that another gprofinject profiles.

use std::io::Error;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, anyhow};

use crate::cli::ask;
use crate::live::model::Subject;
use crate::live::snapshot::{Snapshot, Wants};
use crate::live::view::{Look, Source, View, Wish};
use crate::options::Verb;
use crate::os::signals::{self, Signals};
use crate::os::sys;
use crate::os::terminal;
use crate::session::message::Request;
use crate::store::logbook;
use crate::store::private_folder::PrivateFolder;

/// Checks that there is a place for a view.
///
/// # Errors
/// There is no terminal, or gprofinject is in the background there.
pub(crate) fn check(look: Option<Look>) -> Result<()> {
    let Some(Look { is_plain: false, .. }) = look else { return Ok(()) };
    terminal::check().map_err(|error: Error| {
        let why = match error.raw_os_error() {
            Some(libc::ENXIO | libc::ENOENT) => "there is none".to_owned(),
            _ => sys::reason(&error),
        };
        anyhow!("--top needs a terminal, and {why}; --plain prints a table from time to time without one")
    })
}

/// Shows what a process counts that another gprofinject profiles, until the user leaves or the profile ends.
///
/// # Errors
/// There is no terminal, or the other gprofinject does not answer.
pub(crate) fn watch(pid: i32, look: Look, folder: PrivateFolder) -> Result<()> {
    let mut source = Others { folder, pid };
    // The first answer shows whether it is possible at all.
    source.snapshot(None, Wants::default())?;
    let text = std::io::stdout().as_fd().try_clone_to_owned()?;
    let signals = Signals::take().context("cannot take over signals")?;
    let mut view = View::new(look, Subject::Others, None, text)?;
    loop {
        let descriptors: Vec<i32> =
            std::iter::once(signals.as_fd().as_raw_fd()).chain(view.descriptor()).collect();
        sys::wait_readable(&descriptors, Some(view.patience()));
        while let Some(arrived) = signals.next() {
            if signals::END_WANTED.contains(&arrived.signal) {
                return Ok(());
            }
            if arrived.signal == libc::SIGTSTP {
                signals::stop(arrived.signal);
            }
        }
        if view.turn(&mut source) != Wish::GoOn {
            return Ok(());
        }
        if !logbook::is_looked_after(&source.folder) {
            drop(view);
            return Err(anyhow!("process {pid} is not profiled any more"));
        }
    }
}

/// The processes of another gprofinject's run.
struct Others {
    folder: PrivateFolder,
    pid: i32,
}

impl Source for Others {
    fn snapshot(&mut self, pid: Option<i32>, wants: Wants) -> Result<Snapshot> {
        /// Another gprofinject may have made it as long as it likes.
        const MOST: u64 = 256 << 20;
        let pid = pid.unwrap_or(self.pid);
        let request = Request { pid, verb: Verb::Look, output: None, pattern: None, wants: Some(wants) };
        let (_, file) = ask::ask(std::slice::from_ref(&self.folder), &request)?;
        let file = file.context("the gprofinject that profiles the process has sent no snapshot")?;
        let bytes = sys::read_whole(&file.into(), MOST)?;
        serde_json::from_slice(&bytes).context("another version of gprofinject looks after this process")
    }

    fn ask(&mut self, pid: i32, verb: Verb, pattern: Option<String>) -> Result<String> {
        let request = Request { pid, verb, output: None, pattern, wants: None };
        ask::ask(std::slice::from_ref(&self.folder), &request).map(|(text, _)| text)
    }
}
