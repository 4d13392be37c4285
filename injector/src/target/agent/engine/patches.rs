//! The patches: written, taken away, written once more.

use crate::os::proc;
use crate::target::agent::engine::*;

/// A thread did not stop in time.
#[derive(Debug)]
struct Unstopped(String);

impl fmt::Display for Unstopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unstopped {}

impl Attached {
    /// Writes the patches, with all threads stopped for as short a time as possible. `moved` tells where an
    /// overwritten instruction stands (runtime addresses).
    pub(crate) fn arm(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.order(|attached, _| {
            attached.with_moments(PATIENCE, |attached, tracer, until| attached.arm_now(moved, tracer, until))
        })
    }

    /// All threads stand still only for a short time: when it is over, they go on before it is tried once more.
    pub(super) fn with_moments<T: Send>(
        &mut self,
        patience: Duration,
        mut work: impl FnMut(&mut Attached, &Tracer, Instant) -> Result<Step<T>> + Send,
    ) -> Result<T> {
        let mut pause = FIRST_PAUSE;
        let start = Instant::now();
        let stands = [STAND; FEW].into_iter().chain(std::iter::repeat(LONG_STAND));
        for stand in stands {
            let end = start.elapsed() > patience || deadline::has_passed();
            match tracer::apart(self.pid, |tracer| work(self, tracer, Instant::now() + stand)) {
                Ok(Step::Done(result)) => return Ok(result),
                Err(error) if end || !error.is::<Unstopped>() => return Err(error),
                Ok(Step::Later(error)) if end => return Err(error),
                Ok(Step::Later(_)) | Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        bail!("out of patience")
    }

    fn arm_now(&mut self, moved: &Moved<'_>, tracer: &Tracer, until: Instant) -> Result<Step<Pause>> {
        let memory = Memory::open(self.pid)?;
        let mappings = proc::mappings(self.pid)?;
        let libc = libc_code(&mappings).context("the process executes another program now")?;
        let libc = libc.lo..libc.hi;
        let way = (moved, &Overwritten::new(&self.patched));
        let mut stopped = self.all(tracer)?;
        if let Step::Later(error) = self.make_room(&mut stopped, &memory, &mappings, &libc, way, until)? {
            return Ok(Step::Later(error));
        }
        let words: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for thread in stopped.threads.iter().filter(|thread| thread.registers.fs_base != 0) {
            memory.write(thread.registers.fs_base + WORDS, &words)?;
        }
        // A library may have gone since.
        self.detours.retain(|d| d.stands(&memory, &d.before));
        for detoured in &self.detours {
            memory.write(detoured.at, &detoured.after)?;
        }
        if let Err(error) = self.command(&mut stopped, &memory, ARM) {
            for detoured in &self.detours {
                let _ = memory.write(detoured.at, &detoured.before);
            }
            let step = memory.word(self.order + offset_of!(Order, step) as u64).unwrap_or(0);
            return Err(anyhow!(
                "the patches could not be written: {} (step {step})",
                crate::os::sys::reason(&error)
            ));
        }
        self.paused = false;
        Ok(Step::Done(Pause { took: stopped.elapsed(), threads: stopped.threads.len() }))
    }

    /// Writes the patches once more, which [`Attached::pause`] has taken away.
    pub(crate) fn resume(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.order(|attached, _| attached.resume_running(moved))
    }

    fn resume_running(&mut self, moved: &Moved<'_>) -> Result<Pause> {
        self.with_moments(PATIENCE, |attached, tracer, until| {
            let memory = Memory::open(attached.pid)?;
            let mappings = proc::mappings(attached.pid)?;
            let way = (moved, &Overwritten::new(&attached.patched));
            let mut stopped = attached.all(tracer)?;
            let room = attached.make_room(&mut stopped, &memory, &mappings, &(0..0), way, until)?;
            if let Step::Later(error) = room {
                return Ok(Step::Later(error));
            }
            attached.command(&mut stopped, &memory, RESUME).map_err(|error| {
                anyhow!("the patches could not be written: {}", crate::os::sys::reason(&error))
            })?;
            attached.paused = false;
            Ok(Step::Done(Pause { took: stopped.elapsed(), threads: stopped.threads.len() }))
        })
    }

    pub(super) fn all(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::all(self.pid, tracer).map_err(|error| {
            let refusal = refusal(self.pid, &error);
            match error.raw_os_error() {
                Some(libc::ETIMEDOUT) => Unstopped(refusal).into(),
                _ => anyhow!(refusal),
            }
        })?;
        self.is_in(&stopped).map(|()| stopped)
    }

    pub(super) fn one(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::one(self.pid, tracer).map_err(|error| anyhow!(refusal(self.pid, &error)))?;
        self.is_in(&stopped).map(|()| stopped)
    }

    /// What is known of its memory is still so.
    fn is_in(&self, stopped: &Stopped) -> Result<()> {
        const ELF: [u8; 4] = *b"\x7fELF";
        // Without random addresses it may look the same.
        let is_there = || -> io::Result<bool> {
            Ok(self.image.is_empty() || Memory::open(self.pid)?.bytes(self.image.start, ELF.len())? == ELF)
        };
        if stopped.auxiliary != self.auxiliary || !is_there().unwrap_or(false) {
            bail!("process {} executes another program now", self.pid);
        }
        Ok(())
    }

    /// Takes the patches away; the agent stays. What is on the stacks returns through it.
    pub(crate) fn pause(&mut self) -> Result<Pause> {
        self.order(|attached, _| attached.pause_running())
    }

    fn pause_running(&mut self) -> Result<Pause> {
        self.with_moments(PATIENCE, |attached, tracer, until| {
            let memory = Memory::open(attached.pid)?;
            let mut stopped = attached.all(tracer)?;
            Ok(match attached.pause_stopped(&mut stopped, &memory, until)? {
                Step::Done(()) => {
                    Step::Done(Pause { took: stopped.elapsed(), threads: stopped.threads.len() })
                }
                Step::Later(error) => Step::Later(error),
            })
        })
    }

    pub(super) fn pause_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        until: Instant,
    ) -> Result<Step<()>> {
        if self.paused {
            return Ok(Step::Done(()));
        }
        // In a row of short functions, in a cave, or at a call in its place.
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
        self.command(stopped, memory, PAUSE).map_err(|error| {
            anyhow!("the patches could not be taken away: {}", crate::os::sys::reason(&error))
        })?;
        self.paused = true;
        Ok(Step::Done(()))
    }
}
