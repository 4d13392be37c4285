//! The hold on a program that counts: through it the injector copies the program's counters, pauses it and
//! resumes it.

use anyhow::{Result, anyhow, bail};

use crate::os::sys;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::planned::Planned;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::Layout;
use crate::target::agent::attachment::Attachment;
use crate::target::agent::choice::Switch;
use crate::target::agent::modules::Plans;
use crate::target::process::Process;
use crate::target::threads::helper;
use crate::target::threads::stopped::Pause;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::tracer;

/// What the injector knows of the program on which it has a hold.
#[derive(Clone, Copy)]
pub(crate) struct Known<'k> {
    /// The run folder, if there is an agent, and the name of the program's files there.
    pub(crate) files: Option<(&'k PrivateFolder, &'k str)>,
    pub(crate) planned: &'k Planned<'static, 'static>,
    /// The libraries of the run.
    pub(crate) libraries: &'k Numbered<Library>,
}

/// A hold on one program in one process. gprofinject has started the process with the agent or has attached
/// to it.
pub(crate) struct Grip {
    pid: i32,
    /// The attachment; `None` until something is asked of the agent in the process.
    attached: Option<Attachment>,
}

impl Grip {
    /// Returns a hold on a program that was started with the agent. It is opened when it is first needed.
    pub(crate) fn unopened(pid: i32) -> Grip {
        Grip { pid, attached: None }
    }

    /// Returns a hold on a process to which gprofinject has attached.
    pub(crate) fn attached(attached: Attachment) -> Grip {
        Grip { pid: attached.pid, attached: Some(attached) }
    }

    /// Returns the address of the `syscall` instruction by which an attached process makes system calls for gprofinject.
    pub(crate) fn own_call(&self) -> Option<u64> {
        self.attached.as_ref().map(Attachment::own_call)
    }

    /// Notes that the process has loaded a library, whose plan was placed for this question.
    pub(crate) fn note_library(&mut self, library: &Library, start: u64, arena: u64) {
        if let Some(attached) = &mut self.attached {
            attached.note_library(library, start, arena);
        }
    }

    /// Returns the agent in the process, or `None` if nothing is hooked there.
    fn open(&mut self, known: &Known) -> Result<Option<&mut Attachment>> {
        if self.attached.is_none() {
            let (Some(files), Some(plan)) = (known.files, &known.planned.plan) else { return Ok(None) };
            if plan.records.is_empty() && known.planned.libraries.is_none() {
                return Ok(None);
            }
            if known.planned.subject.image().is_some_and(|image| image.facts.go) {
                bail!("the hooks of a Go program stay in place until its end");
            }
            self.attached = Some(Attachment::started(&Process::open_started(self.pid)?, plan, files)?);
        }
        Ok(self.attached.as_mut())
    }

    /// Removes the patches, so that the program runs at its own speed. Returns the time for which its threads
    /// stood still, or `None` if nothing is hooked.
    ///
    /// # Errors
    /// The process cannot be stopped or written to.
    pub(crate) fn pause(&mut self, known: &Known) -> Result<Option<Pause>> {
        let Some(attached) = self.open(known)? else { return Ok(None) };
        attached.pause().map(Some)
    }

    /// Writes the patches again that [`Grip::pause`] has removed. Returns as that does.
    ///
    /// # Errors
    /// The process cannot be stopped or written to.
    pub(crate) fn resume(&mut self, known: &Known) -> Result<Option<Pause>> {
        let Some(attached) = self.open(known)? else { return Ok(None) };
        let plans = Plans { program: known.planned.plan.as_ref(), libraries: known.libraries };
        attached.resume(plans).map(Some)
    }

    /// Switches functions off or on. Returns as [`Grip::pause`] does.
    ///
    /// # Errors
    /// The process cannot be stopped or written to.
    pub(crate) fn switch(&mut self, known: &Known, switch: Switch<'_>) -> Result<Option<Pause>> {
        let Some(attached) = self.open(known)? else { return Ok(None) };
        let plans = Plans { program: known.planned.plan.as_ref(), libraries: known.libraries };
        attached.switch(plans, switch).map(Some)
    }

    /// Copies the program's counters to the file `made` in the run folder while its threads stand still. If
    /// they cannot be stopped, the result is `None`, and the copy may contain one part of a call without the
    /// other.
    ///
    /// # Errors
    /// The counters cannot be copied.
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

    /// Takes the agent out of a process to which gprofinject has attached. Returns `None` if there is nothing
    /// to take out, and otherwise the result of `Attachment::detach`.
    pub(crate) fn leave(&mut self) -> Option<Result<(Pause, bool)>> {
        self.attached.take().map(|mut attached| attached.detach())
    }
}
