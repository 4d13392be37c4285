//! How a program that counts is reached while it runs: to copy its counters, to pause it, and to let it go on.

use anyhow::{Result, anyhow};

use crate::os::sys;
use crate::program::planned::Planned;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::Layout;
use crate::target::agent::attachment::Attachment;
use crate::target::process::Process;
use crate::target::threads::helper;
use crate::target::threads::stopped::Pause;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::tracer;

/// A hold on one program in one process. The process may have been started with the agent, or attached to.
pub(crate) struct Grip {
    pid: i32,
    /// None: the agent in the process has not been looked for yet, since nothing has been asked of it.
    attached: Option<Attachment>,
}

impl Grip {
    /// A hold on a program that was started with the agent. It is opened when it is needed for the first time.
    pub(crate) fn unopened(pid: i32) -> Grip {
        Grip { pid, attached: None }
    }

    /// A hold on a process that was attached to.
    pub(crate) fn attached(attached: Attachment) -> Grip {
        Grip { pid: attached.pid, attached: Some(attached) }
    }

    /// The agent in the process; None: nothing is hooked there.
    fn open(&mut self, folder: Option<&PrivateFolder>, planned: &Planned) -> Result<Option<&mut Attachment>> {
        if self.attached.is_none() {
            let (Some(folder), Some(plan)) = (folder, &planned.plan) else { return Ok(None) };
            if plan.records.is_empty() {
                return Ok(None);
            }
            self.attached = Some(Attachment::started(&Process::open(self.pid)?, plan, folder)?);
        }
        Ok(self.attached.as_mut())
    }

    /// Takes the patches away, so that the program runs at its own speed. Returns how long its threads stood still; None:
    /// nothing is hooked.
    pub(crate) fn pause(
        &mut self,
        folder: Option<&PrivateFolder>,
        planned: &Planned,
    ) -> Result<Option<Pause>> {
        let Some(attached) = self.open(folder, planned)? else { return Ok(None) };
        attached.pause().map(Some)
    }

    /// Writes the patches again that [`Grip::pause`] has taken away.
    pub(crate) fn resume(
        &mut self,
        folder: Option<&PrivateFolder>,
        planned: &Planned,
    ) -> Result<Option<Pause>> {
        let Some(attached) = self.open(folder, planned)? else { return Ok(None) };
        let moved = attached.moved(planned);
        attached.resume(&moved).map(Some)
    }

    /// Copies the program's counters to the file `made` in the run folder while its threads stand still. Where they cannot
    /// be stopped, the copy may have one part of a call and not the other, and the answer is None.
    pub(crate) fn copy(
        &self,
        folder: &PrivateFolder,
        region: &RegionFile,
        layout: &Layout,
        made: &str,
    ) -> Result<Option<Pause>> {
        let pid = self.pid;
        let copied = helper::carry_out(pid, Some(folder), |_| {
            tracer::apart(pid, |tracer| {
                let region = region.open(layout).map_err(|error| sys::reason(&error))?;
                let stopped = Stopped::all(pid, tracer).ok();
                region.copy_to(folder, made).map_err(|error| sys::reason(&error))?;
                let still = |stopped: Stopped| stopped.pause();
                Ok::<Option<Pause>, String>(stopped.map(still))
            })
        })?;
        copied.map_err(|error| anyhow!("the counters cannot be copied: {error}"))
    }

    /// Takes the agent out of a process that was attached to. None: there is nothing to be taken out.
    pub(crate) fn leave(&mut self) -> Option<Result<(Pause, bool)>> {
        self.attached.take().map(|mut attached| attached.detach())
    }
}
