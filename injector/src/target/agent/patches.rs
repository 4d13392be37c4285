//! The patches: writes them, removes them, and writes them again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::attach::{Command, Order, WORDS};
use zerocopy::IntoBytes;

use crate::os::{proc, sys};
use crate::target::agent::attachment::{Attachment, Moved, Stage, Step};
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
    /// Writes the patches, with all threads stopped for as short a time as possible. `moved` returns the
    /// place of an overwritten instruction's copy. Returns the time for which the threads stood still.
    ///
    /// # Errors
    /// The threads cannot be stopped in places that allow it, or the process cannot be written to.
    pub(crate) fn arm(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.order(|attachment, _| {
            attachment
                .with_retries(PATIENCE, |attachment, tracer, until| attachment.arm_now(moved, tracer, until))
        })
    }

    fn arm_now(&mut self, moved: &Moved<'_>, tracer: &Tracer, until: Instant) -> Result<Step<Pause>> {
        let memory = Memory::open(self.pid)?;
        let mappings = proc::mappings(self.pid)?;
        let libc = libc_code(&mappings).context("the process executes another program now")?;
        let libc = libc.lo..libc.hi;
        let way = (moved, &Overwritten::new(&self.patches));
        let mut stopped = self.all(tracer)?;
        if let Step::Later(error) = self.make_room(&mut stopped, &memory, &mappings, &libc, way, until)? {
            return Ok(Step::Later(error));
        }
        let (Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest)) = &mut self.stage else {
            bail!("the agent has not prepared");
        };
        for thread in stopped.threads.iter().filter(|thread| thread.registers.fs_base != 0) {
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
    pub(crate) fn resume(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.order(|attachment, _| attachment.resume_running(moved))
    }

    fn resume_running(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.with_retries(PATIENCE, |attachment, tracer, until| {
            let memory = Memory::open(attachment.pid)?;
            let mappings = proc::mappings(attachment.pid)?;
            let way = (moved, &Overwritten::new(&attachment.patches));
            let mut stopped = attachment.all(tracer)?;
            let room = attachment.make_room(&mut stopped, &memory, &mappings, &(0..0), way, until)?;
            if let Step::Later(error) = room {
                return Ok(Step::Later(error));
            }
            attachment
                .command(&mut stopped, &memory, Command::Resume)
                .map_err(|error| anyhow!("the patches could not be written: {}", sys::reason(&error)))?;
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
        // A thread may be inside a patch: in a sled, in a cave, or at a call in its place.
        let mut mappings = proc::mappings(self.pid)?;
        loop {
            for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
                deadline::check()?;
                thread.fresh = self.is_in_patch(thread, memory, &mappings);
            }
            let is_busy = |thread: &Thread| thread.fresh;
            if !stopped.threads.iter().any(is_busy) {
                break;
            }
            if Instant::now() > until || !stopped.run_some(is_busy, stopped.turn().0, until)? {
                return Ok(Step::Later(anyhow!("a thread does not leave the patched code; try again")));
            }
            mappings = proc::mappings(self.pid)?;
        }
        self.command(stopped, memory, Command::Pause)
            .map_err(|error| anyhow!("the patches could not be removed: {}", sys::reason(&error)))?;
        self.set_paused(true);
        Ok(Step::Done(()))
    }
}
