//! A process that already runs, to which gprofinject attaches for its profile.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::os::child::Ending;
use crate::os::failure::Failure;
use crate::os::say::Voice;
use crate::os::signals::{self, Arrived};
use crate::os::sys::Handle;
use crate::program::planned::Planned;
use crate::program::resolve::Program;
use crate::sampling::perf::Scope;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::AgentState;
use crate::store::run_folder::FIRST;
use crate::store::trouble::trouble;
use crate::target::agent::attachment::Attachment;
use crate::target::agent::detours;
use crate::target::agent::libraries;
use crate::target::agent::modules::{self, Plans};
use crate::target::attach::earlier::take_over;
use crate::target::contract::{Patience, Ready, Readying, Target};
use crate::target::grip::Grip;
use crate::target::loaded::{self, Mapped};
use crate::target::process::Process;
use crate::target::threads::memory::Memory;
use gprofinject_abi::region::Trouble;

/// A process that already runs, and what of gprofinject is in it.
pub(crate) struct Running {
    process: Process,
    handle: Handle,
    /// For how long the process is profiled; `None` means until it ends or a signal ends the profile.
    duration: Option<Duration>,
    /// When that time is over. `None` means never, or that the profile has not begun.
    until: Option<Instant>,
    hooks: Hooks,
    /// The code that was mapped before the libraries were planned.
    code: BTreeSet<(u64, u64)>,
    /// Why gprofinject could not leave the process.
    stuck: Option<anyhow::Error>,
}

/// What gprofinject has put into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hooks {
    /// Nothing.
    None,
    Armed,
    /// The hooks have been in place and have been removed.
    Out,
    /// Memory of the agent is still there.
    Stay,
}

impl Running {
    /// Returns a process that can be attached to and contains nothing from an earlier gprofinject.
    pub(crate) fn new(process: Process, duration: Option<Duration>) -> Running {
        let handle = Handle::of(process.pid);
        Running {
            process,
            handle,
            duration,
            until: None,
            hooks: Hooks::None,
            code: BTreeSet::new(),
            stuck: None,
        }
    }

    fn has_ended(&self) -> bool {
        self.handle.has_ended_now() || !self.process.lives()
    }

    /// Removes what a failed attempt to write the hooks has left.
    fn back_out(&mut self, mut made: Attachment) {
        let out = made.detach();
        let is_out = matches!(out, Ok((_, true))) || !self.process.lives();
        self.hooks = if is_out { Hooks::Out } else { Hooks::Stay };
    }
}

impl Target for Running {
    fn pid(&self) -> i32 {
        self.process.pid
    }

    fn scope(&self) -> Scope {
        Scope::Running(self.process.pid)
    }

    fn bias(&self, planned: &Planned) -> Option<u64> {
        let headers = planned.plan.as_ref().map_or(0, |plan| plan.phdr());
        Some(self.process.program_headers().wrapping_sub(headers))
    }

    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        // The next attempt finds out whether the process has ended.
        if error.is::<PlaceTaken>() { error } else { self.process.failed(error) }
    }

    fn loaded(&mut self) -> Mapped {
        let mappings =
            Memory::open(self.process.pid).and_then(|memory| detours::loaded(&memory, &self.process));
        self.code = mappings.map(|mappings| modules::code(&mappings)).unwrap_or_default();
        loaded::libraries(&self.process)
    }

    fn make_ready(&mut self, readying: &Readying) -> Result<Ready> {
        let Readying { folder, planned, libraries: all, wanted, voice, .. } = *readying;
        let pid = self.process.pid;
        let mut unhooked = Vec::new();
        let (Some(folder), Some(plan)) = (folder, &planned.plan) else {
            return Ok(Ready { grip: Grip::unopened(pid), agent: None, unhooked });
        };
        if planned.subject.kind.is_musl() && !wanted.iter().any(|wanted| wanted.is_needed) {
            return Err(libraries::unhookable("it was not found"));
        }
        let mut made = loop {
            let made = Attachment::prepare(&self.process, planned, plan, (folder.private(), FIRST), wanted);
            if let Some(made) = made? {
                break made;
            }
            take_over(&self.process, voice)?;
        };
        let armed = check_prepared(&folder.region(FIRST), plan.role.is_standalone()).and_then(|()| {
            if !wanted.is_empty() {
                let paths = wanted.iter().map(|wanted| wanted.library.binary.clone());
                let loaded = made.load_libraries(wanted)?;
                unhooked.extend(paths.zip(loaded).filter_map(|(path, why)| Some((path, why?))));
            }
            // Any library of musl's may have to be led to the agent, so all of them have to be known.
            let code = planned.subject.kind.is_musl().then_some(&self.code);
            made.arm(Plans { program: planned.plan.as_ref(), libraries: all }, code)
        });
        match armed {
            Ok(pause) => voice.detail(format_args!("attached to process {pid}: {pause}")),
            Err(error) => {
                self.back_out(made);
                return Err(error);
            }
        }
        self.hooks = Hooks::Armed;
        let agent = made.agent_code();
        Ok(Ready { grip: Grip::attached(made), agent, unhooked })
    }

    fn begin(&mut self, voice: Voice) -> Result<()> {
        let pid = self.process.pid;
        voice.note(match self.duration {
            Some(duration) => {
                format!("attached to process {pid} for {} s (Ctrl-C: until now)", duration.as_secs_f64())
            }
            None => format!("attached to process {pid}; Ctrl-C to leave it and write the profile"),
        });
        // A duration that the clock cannot represent counts as endless.
        self.until = self.duration.and_then(|duration| Instant::now().checked_add(duration));
        Ok(())
    }

    fn allows_threads(&self) -> bool {
        false
    }

    fn ending(&mut self) -> Option<Ending> {
        self.has_ended().then_some(Ending::Exited(0))
    }

    fn patience(&self) -> Patience {
        const OFTEN: Duration = Duration::from_millis(500);
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => Patience::Over,
            left => Patience::AtMost(left.map_or(OFTEN, |left| left.min(OFTEN))),
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.handle.descriptor()
    }

    fn hear(&mut self, arrived: Arrived) -> bool {
        if arrived.signal == libc::SIGTSTP {
            signals::stop(arrived.signal);
        }
        !signals::END_WANTED.contains(&arrived.signal)
    }

    fn leave(
        &mut self,
        grip: Option<&mut Grip>,
        ending: Option<Ending>,
        voice: Voice,
    ) -> Result<(), Failure> {
        let pid = self.process.pid;
        if ending.is_some() {
            self.hooks = Hooks::Out;
            return Ok(());
        }
        let Some(left) = grip.and_then(Grip::leave) else { return Ok(()) };
        self.hooks = match left {
            Ok((_, false)) | Err(_) if self.process.ends() => Hooks::Out,
            Ok((pause, is_clean)) => {
                voice.detail(format_args!("left process {pid}: {pause}"));
                if !is_clean {
                    voice.warn(format_args!(
                        "a thread or a coroutine of process {pid} does not come out of the agent, whose memory stays; \
                         gprofinject --pid {pid} --duration 0 takes it out, later"
                    ));
                }
                if is_clean { Hooks::Out } else { Hooks::Stay }
            }
            Err(error) => {
                self.stuck = Some(error.context(format!(
                    "process {pid} could not be left: its hooks stay; gprofinject --pid {pid} --duration 0 tries once \
                     more"
                )));
                Hooks::Stay
            }
        };
        Ok(())
    }

    fn is_clean(&self) -> bool {
        self.hooks != Hooks::Stay
    }

    fn was_hooked(&self) -> bool {
        true
    }

    fn not_entered(&self) -> Option<&str> {
        None
    }

    fn result(self, ending: Ending) -> Result<Ending, Failure> {
        match self.stuck {
            Some(error) => Err(error.into()),
            None => Ok(ending),
        }
    }
}

/// Returns the file that a process runs, and the name to show for it.
///
/// # Errors
/// The injector may not examine the process.
pub(crate) fn program(process: &Process) -> Result<Program> {
    let pid = process.pid;
    let link = fs::read_link(process.binary()).with_context(|| {
        format!("process {pid} cannot be examined; run gprofinject as its user, or as root")
    })?;
    Ok(match link.to_string_lossy().strip_suffix(" (deleted)") {
        // The file may have been replaced since; its contents can still be read through the process.
        Some(shown) => Program::running(process.binary(), shown.into()),
        None => {
            let path = called(process, &link).unwrap_or(link);
            Program::running(path.clone(), path.into())
        }
    })
}

/// Returns the path by which a process has executed its file, if that is a link to the file beside it: `redis-server` leads to
/// `redis-check-rdb`, of which a user has never heard. The process chooses this name, as it chooses that of the file: the file's contents
/// are read through the process, whatever the path leads to here.
fn called(process: &Process, file: &Path) -> Option<PathBuf> {
    let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).ok()?;
    let name =
        name.strip_suffix('\n').filter(|name| !name.is_empty() && !name.contains('/') && *name != "..")?;
    let path = file.with_file_name(name);
    let inside = fs::metadata(format!("/proc/{}/root{}", process.pid, path.display())).ok()?;
    let executed = fs::metadata(process.binary()).ok()?;
    ((inside.dev(), inside.ino()) == (executed.dev(), executed.ino())).then_some(path)
}

/// While the hooks were planned, the process has mapped something where they were to be. Nothing is left in the process.
#[derive(Debug, thiserror::Error)]
#[error(
    "nothing was hooked: there was no memory near the program's code, because the process has mapped something there meanwhile; try again"
)]
pub(crate) struct PlaceTaken;

/// Checks that the agent has prepared everything. `was_free`: the place of the hooks was free when they were planned.
fn check_prepared(region: &RegionFile, was_free: bool) -> Result<()> {
    let report = region.report().context("the counters cannot be read")?;
    // A reason that no agent has is something that the process has written there. If the agent has not prepared everything, it does not begin.
    if report.state != AgentState::SettingUp
        && (report.state != AgentState::Refused || report.trouble.get().is_some())
    {
        if was_free && report.trouble == Trouble::Arena.code() && report.errno == libc::EEXIST {
            return Err(PlaceTaken.into());
        }
        let trouble = trouble(&report);
        bail!("nothing was hooked: {}", trouble.unwrap_or_else(|| "the agent did not begin".to_owned()));
    }
    Ok(())
}
