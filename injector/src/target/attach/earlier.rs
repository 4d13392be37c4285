//! Removes from a process what an earlier gprofinject has left there.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::os::say::Voice;
use crate::store::logbook;
use crate::target::agent::attachment::Attachment;
use crate::target::named::{self, Named};
use crate::target::process::Process;
use crate::target::threads::helper;

/// Takes the agent out of a process if the gprofinject that had put it in was killed, or if the process has
/// inherited the agent from its parent.
///
/// # Errors
/// Another gprofinject profiles the process, the run folder belongs to another user or does not exist any
/// more, or the process cannot be left.
pub(crate) fn take_over(process: &Process, voice: Voice) -> Result<()> {
    let pid = process.pid;
    for named in named::folders(pid)? {
        let path = named.path().to_owned();
        let folder = match named {
            Named::Ours(folder) => folder,
            Named::Foreign(_, user) => bail!(foreign(pid, &path, user)),
            Named::Gone(_) => bail!(
                "process {pid} has been profiled, or was forked by a process that was; that is over ({} is gone), and \
                 what is left of it cannot be taken out: restart the process to profile it",
                path.display()
            ),
        };
        let is_looked_after = logbook::is_looked_after(&folder);
        if !is_looked_after && folder.exists() {
            // The helper of that run may still be leaving the process, or have just left it.
            helper::wait(pid)?;
            if !named::folders(pid)?.iter().any(|named| named.path() == path) {
                continue;
            }
        }
        let attached = Attachment::load(&folder)?;
        let is_child = attached.as_ref().is_some_and(|attached| !attached.is_of(process));
        let (_, clean) = match attached {
            Some(attached) if is_child => attached.detach_child(process),
            _ if is_looked_after => bail!(
                "process {pid} is profiled already (its counters are in {}); --dump, --reset, --pause and --resume \
                 control that",
                path.display()
            ),
            Some(mut attached) => attached.detach(),
            None => bail!(
                "process {pid} was started by a gprofinject that was killed, and is profiled still; its profile: \
                 gprofinject --recover {}",
                path.display()
            ),
        }
        .context("what an earlier gprofinject left could not be taken out")?;
        if !clean {
            bail!("what an earlier gprofinject left in process {pid} is still in use; try again");
        }
        voice.note(match is_child {
            true => "took out what the process had from the one that forked it, which is or was profiled"
                .to_owned(),
            false => format!(
                "took out what a gprofinject left that was killed; its profile: gprofinject --recover {}",
                path.display()
            ),
        });
    }
    Ok(())
}

/// Says that the run folder belongs to another user. Such a folder is not used: a user who can write to it
/// would decide what is written to the process, and where its profile goes.
pub(crate) fn foreign(pid: i32, folder: &Path, user: u32) -> String {
    format!(
        "process {pid} is, or says that it is, profiled by a gprofinject of user {user} ({}); run this as that user: sudo \
         -u '#{user}' gprofinject --pid {pid} ...",
        folder.display()
    )
}
