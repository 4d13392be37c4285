//! The patches: writes them, removes them, and writes them again.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use gprofinject_abi::attach::{Command, Order, WORDS};
use zerocopy::IntoBytes;

use crate::os::{proc, sys};
use crate::target::agent::attachment::{Attachment, Stage, Step};
use crate::target::agent::modules::{self, Plans};
use crate::target::agent::overwritten::Overwritten;
use crate::target::agent::room::libc_code;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::{Pause, Stopped};
use crate::target::threads::thread::Thread;
use crate::target::threads::tracer::Tracer;

/// For how long writing or removing the patches is tried.
const PATIENCE: Duration = Duration::from_secs(3);

impl Attachment {
    /// Writes the patches, with all threads stopped for as short a time as possible. Returns the time for which
    /// the threads stood still.
    ///
    /// # Errors
    /// The threads cannot be stopped in places that allow it, or the process cannot be written to. If `code` is given, it is
    /// also an error if the process has mapped other code of files.
    pub(crate) fn arm(&mut self, plans: Plans<'_>, code: Option<&BTreeSet<(u64, u64)>>) -> Result<Pause> {
        self.order(|attachment, _| {
            attachment.with_retries(PATIENCE, |attachment, tracer, until| {
                attachment.arm_now(plans, code, tracer, until)
            })
        })
    }

    fn arm_now(
        &mut self,
        plans: Plans<'_>,
        code: Option<&BTreeSet<(u64, u64)>>,
        tracer: &Tracer,
        until: Instant,
    ) -> Result<Step<Pause>> {
        let memory = Memory::open(self.pid)?;
        let mappings = proc::mappings(self.pid)?;
        let libc = match libc_code(&mappings) {
            Some(libc) => libc.lo..libc.hi,
            None if self.is_standalone => 0..0,
            None => bail!("the process executes another program now"),
        };
        let modules = self.planned_modules(plans);
        let mut stopped = self.all(tracer)?;
        self.check_filters(&stopped)?;
        let is_new = |found: &(u64, u64)| {
            !self.arenas.contains(found.0) && code.is_some_and(|code| !code.contains(found))
        };
        if code.is_some() && modules::code(&proc::mappings(self.pid)?).iter().any(is_new) {
            bail!("the process has just loaded a library; try again");
        }
        let room = self.make_room(&mut stopped, &memory, &libc, &modules, until)?;
        if let Step::Later(error) = room {
            return Ok(Step::Later(error));
        }
        if self.is_standalone {
            self.check_gs(&stopped)?;
        }
        // Threads of Go get stacks for slow paths as well.
        if self.is_standalone || self.go.is_some() {
            self.give_records(&mut stopped, &memory)?;
        }
        let is_standalone = self.is_standalone;
        let (Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest)) = &mut self.stage else {
            bail!("the agent has not prepared");
        };
        for thread in stopped.threads.iter().filter(|thread| !is_standalone && thread.registers.fs_base != 0)
        {
            memory.write(thread.registers.fs_base + WORDS, guest.words.as_bytes())?;
        }
        // A library may have been unloaded since.
        guest.detours.retain(|d| d.stands(&memory, &d.before));
        for detoured in &guest.detours {
            memory.write(detoured.at, &detoured.after)?;
        }
        let order = guest.image.order;
        if let Err(error) = self.command(&mut stopped, &memory, Command::Arm) {
            for detoured in self.detours() {
                let _ = memory.write(detoured.at, &detoured.before);
            }
            if error.raw_os_error() == Some(libc::EAGAIN) {
                return Ok(Step::Later(loads()));
            }
            let step = memory.record::<Order>(order).map_or(0, |order| order.step);
            return Err(anyhow!("the patches could not be written: {} (step {step})", sys::reason(&error)));
        }
        self.set_paused(false);
        Ok(Step::Done(stopped.pause()))
    }

    /// Writes the patches again that [`Attachment::pause`] has removed. Returns the time for which the
    /// threads stood still.
    ///
    /// # Errors
    /// As for [`Attachment::arm`].
    pub(crate) fn resume(&mut self, plans: Plans<'_>) -> Result<Pause> {
        self.order(|attachment, _| attachment.resume_running(plans))
    }

    fn resume_running(&mut self, plans: Plans<'_>) -> Result<Pause> {
        self.with_retries(PATIENCE, |attachment, tracer, until| {
            let memory = Memory::open(attachment.pid)?;
            let mut modules = attachment.planned_modules(plans);
            let mut stopped = attachment.all(tracer)?;
            if !modules.are_those_of(attachment) {
                modules = attachment.planned_modules(plans);
            }
            let room = attachment.make_room(&mut stopped, &memory, &(0..0), &modules, until)?;
            if let Step::Later(error) = room {
                return Ok(Step::Later(error));
            }
            if !modules.are_those_of(attachment) {
                return Ok(Step::Later(loads()));
            }
            if let Err(error) = attachment.command(&mut stopped, &memory, Command::Resume) {
                let what = "the patches could not be written";
                return refused(what, &error).map(Step::Later);
            }
            attachment.set_paused(false);
            Ok(Step::Done(stopped.pause()))
        })
    }

    /// Removes the patches; the agent stays, and the frames on the stacks return through it. Returns the time
    /// for which the threads stood still.
    ///
    /// # Errors
    /// As for [`Attachment::arm`].
    pub(crate) fn pause(&mut self) -> Result<Pause> {
        self.order(|attachment, _| attachment.pause_running())
    }

    fn pause_running(&mut self) -> Result<Pause> {
        self.with_retries(PATIENCE, |attachment, tracer, until| {
            let memory = Memory::open(attachment.pid)?;
            let mut stopped = attachment.all(tracer)?;
            Ok(match attachment.pause_stopped(&mut stopped, &memory, until)? {
                Step::Done(()) => Step::Done(stopped.pause()),
                Step::Later(error) => Step::Later(error),
            })
        })
    }

    /// Removes the patches from a process whose threads are stopped.
    pub(super) fn pause_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        until: Instant,
    ) -> Result<Step<()>> {
        if self.is_paused() {
            return Ok(Step::Done(()));
        }
        let modules = self.patched_modules(memory);
        if let Step::Later(error) = self.leave_patches(stopped, memory, &modules.overwritten, until)? {
            return Ok(Step::Later(error));
        }
        if !modules.are_those_of(self) {
            return Ok(Step::Later(loads()));
        }
        if let Err(error) = self.command(stopped, memory, Command::Pause) {
            return refused("the patches could not be removed", &error).map(Step::Later);
        }
        self.set_paused(true);
        Ok(Step::Done(()))
    }
}

impl Attachment {
    /// Lets stopped threads run until none is inside a patch: in a sled, in a cave, or at a call in its place.
    pub(super) fn leave_patches(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        overwritten: &Overwritten,
        until: Instant,
    ) -> Result<Step<()>> {
        let mut mappings = proc::mappings(self.pid)?;
        loop {
            for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
                deadline::check()?;
                thread.fresh = self.is_in_patch(thread, memory, &mappings, overwritten);
            }
            let is_busy = |thread: &Thread| thread.fresh;
            if !stopped.threads.iter().any(is_busy) {
                return Ok(Step::Done(()));
            }
            if Instant::now() > until || !stopped.run_some(is_busy, stopped.turn().0, until)? {
                return Ok(Step::Later(anyhow!("a thread does not leave the patched code; try again")));
            }
            mappings = proc::mappings(self.pid)?;
        }
    }
}

pub(super) fn loads() -> anyhow::Error {
    anyhow!("a thread loads or unloads a library just now; try again")
}

/// Returns the reason if the agent has refused an order only because of what the threads do now.
///
/// # Errors
/// There is another reason.
fn refused(what: &str, error: &io::Error) -> Result<anyhow::Error> {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(loads()),
        _ => Err(anyhow!("{what}: {}", sys::reason(error))),
    }
}
