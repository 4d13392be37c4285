//! A program that gprofinject starts for its profile.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, getpid, getppid, getsid};

use crate::os::child::{self, Ending, reap};
use crate::os::failure::Failure;
use crate::os::limits::{self, Limits};
use crate::os::say::Voice;
use crate::os::scheduling::{self, Scheduling};
use crate::os::signals::{self, Arrived};
use crate::os::sys;
use crate::program::planned::Planned;
use crate::program::resolve::Program;
use crate::program::subject::Subject;
use crate::sampling::perf::Scope;
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::contract::{Patience, Ready, Readying, Target};
use crate::target::grip::Grip;
use crate::target::launch::spawn::{self, Child, Held};
use crate::target::launch::standing::Standing;
use crate::target::launch::streams::Streams;
use crate::target::launch::usher::{self, Entrance, Usher};
use crate::target::launch::witness::Witness;
use crate::target::loaded::Mapped;

/// What the injector has inherited and the program must inherit in the same way.
pub(crate) struct Inherited {
    /// The descriptors that were open, without the standard ones. The injector keeps them for the program
    /// only.
    pub(crate) descriptors: Vec<i32>,
    pub(crate) limits: Limits,
    pub(crate) scheduling: Scheduling,
}

/// The stages of the child.
enum Stage {
    /// The child waits to execute the program.
    Held(Held),
    Released(Child),
    Ended,
}

/// A program that gprofinject has started, or is about to start.
pub(crate) struct Launched {
    pid: i32,
    stage: Stage,
    /// What the program is among process groups.
    standing: Standing,
    /// The file to execute.
    path: PathBuf,
    /// Whether the program changes its user. The kernel then removes the child's perf events when it executes
    /// the program.
    changes_ids: bool,
    /// Finds out which signals were sent to the whole process group.
    witness: Option<Witness>,
    /// What a standalone program needs to be hooked.
    entrance: Option<Entrance>,
    /// Puts the agent into a standalone program.
    usher: Option<Usher>,
    /// See [`Target::not_entered`].
    not_entered: Option<String>,
}

/// Executes the program in place of gprofinject, without a profile. Returns only if that fails.
pub(crate) fn replace(program: &Program, inherited: &Inherited) -> Failure {
    match spawn::replace(program, inherited.limits, inherited.scheduling) {
        Ok(errno) => not_executed(&program.path, errno),
        Err(error) => anyhow!("cannot start the program: {}", sys::reason(&error)).into(),
    }
}

/// Returns why a program could not be executed.
fn not_executed(path: &Path, errno: i32) -> Failure {
    let hint = if errno == libc::ENOEXEC { " (this kernel does not run such programs)" } else { "" };
    Failure::exec(errno, anyhow!("{}: {}{hint}", path.display(), sys::errno_text(errno)))
}

impl Launched {
    /// Forks the child that will execute the program, and closes what was open for the program only.
    ///
    /// # Errors
    /// No further process can be created, or the program cannot get these arguments.
    pub(crate) fn hold(
        (program, folder, signals): (&Program, Option<&RunFolder>, signals::Inherited),
        subject: &Subject,
        inherited: &Inherited,
        streams: &Streams,
        standing: Standing,
    ) -> Result<Launched> {
        child::remember_earlier();
        let preloaded = folder.filter(|_| !subject.kind.is_standalone());
        let given = spawn::Given {
            limits: inherited.limits,
            scheduling: inherited.scheduling,
            streams,
            standing: &standing,
        };
        let held = spawn::hold(program, preloaded, signals, &given).map_err(|error| {
            let why = match error.raw_os_error() {
                Some(libc::EAGAIN) if scheduling::is_deadline() => {
                    " (SCHED_DEADLINE, which nobody can leave here, allows no new processes without chrt --reset-on-fork)".to_owned()
                }
                Some(libc::EAGAIN) => limits::behind_processes(),
                _ => String::new(),
            };
            anyhow!("cannot start a process: {}{why}", sys::reason(&error))
        })?;
        sys::release(&inherited.descriptors);
        Ok(Launched {
            pid: held.pid(),
            stage: Stage::Held(held),
            standing,
            path: program.path.clone(),
            changes_ids: subject.kind.changes_ids(),
            witness: None,
            entrance: None,
            usher: None,
            not_entered: None,
        })
    }

    /// Passes a signal on to the program if the program would have received it without gprofinject.
    fn pass_on(&mut self, arrived: Arrived) {
        let own = Pid::as_raw(Some(getpid()));
        let (parent, session) = (Pid::as_raw(getppid()), Pid::as_raw(getsid(None).ok()));
        // The kernel sends these signals to the injector for its own writes, to a file at its size limit or
        // to a pipe that nobody reads. They look as if the injector had sent them.
        if arrived.sender == own && matches!(arrived.signal, libc::SIGXFSZ | libc::SIGPIPE) {
            return;
        }
        let leader = session == own;
        let to_group =
            arrived.sent && self.witness.as_mut().is_some_and(|witness| witness.saw(arrived.signal));
        let is_apart = self.standing.is_apart();
        let to_us_alone = match arrived.signal {
            libc::SIGCHLD => false,
            // What gprofinject's group gets, the program's group would have got.
            libc::SIGTTIN | libc::SIGTTOU if is_apart && !arrived.sent => false,
            _ if is_apart && (to_group || !arrived.sent && arrived.signal != libc::SIGALRM) => {
                return self.standing.send(self.pid, arrived.signal);
            }
            _ if arrived.sent => !to_group,
            // An alarm that was set before the injector was executed.
            libc::SIGALRM => true,
            // When a terminal hangs up, the kernel signals its session leader, which is the injector.
            libc::SIGHUP | libc::SIGCONT => leader,
            // The terminal sends the other signals to the whole group.
            _ => false,
        };
        if to_us_alone {
            // A signal that the program sends to its parent is not meant for the program itself.
            signals::send(if arrived.sender == self.pid { parent } else { self.pid }, arrived);
        }
    }
}

impl Target for Launched {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn scope(&self) -> Scope {
        if self.changes_ids { Scope::Machine } else { Scope::Process(self.pid) }
    }

    fn bias(&self, _: &Planned) -> Option<u64> {
        None
    }

    fn loaded(&mut self) -> Mapped {
        Mapped::default()
    }

    fn make_ready(&mut self, readying: &Readying) -> Result<Ready> {
        self.witness = Witness::start();
        if let (Some(folder), Some(plan)) = (readying.folder, &readying.planned.plan) {
            let is_standalone = readying.planned.subject.kind.is_standalone();
            self.entrance = is_standalone.then(|| Entrance::new(plan, folder, FIRST));
        }
        if readying.follows {
            sys::adopt_orphans();
        }
        Ok(Ready { grip: Grip::unopened(self.pid), agent: None, unhooked: Vec::new() })
    }

    fn begin(&mut self, _: Voice) -> Result<()> {
        if let Some(entrance) = &self.entrance {
            match usher::attend(self.pid, entrance) {
                Ok(usher) => self.usher = Some(usher),
                Err(error) => self.not_entered = Some(format!("{error:#}")),
            }
        }
        if let Stage::Held(held) = std::mem::replace(&mut self.stage, Stage::Ended) {
            self.standing.take(self.pid);
            self.stage = Stage::Released(held.release().context("the new process has ended")?);
            child::launched(self.pid);
        }
        Ok(())
    }

    fn allows_threads(&self) -> bool {
        true
    }

    fn ending(&mut self) -> Option<Ending> {
        let ending = reap(self.pid, |signal| self.standing.stop(self.pid, signal));
        if ending.is_some() {
            self.standing.take_back(self.pid);
        }
        ending
    }

    fn patience(&self) -> Patience {
        // SIGCHLD arrives when the program ends.
        Patience::Endless
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn hear(&mut self, arrived: Arrived) -> bool {
        self.pass_on(arrived);
        true
    }

    fn leave(&mut self, _: Option<&mut Grip>, _: Option<Ending>, _: Voice) -> Result<(), Failure> {
        if let Some(why) = self.usher.take().and_then(Usher::finish) {
            self.not_entered = Some(why);
        }
        // From here on, no signal is passed on to the program.
        self.witness = None;
        let Stage::Released(child) = std::mem::replace(&mut self.stage, Stage::Ended) else { return Ok(()) };
        let Some(errno) = child.exec_error() else { return Ok(()) };
        Err(not_executed(&self.path, errno))
    }

    fn is_clean(&self) -> bool {
        true
    }

    fn was_hooked(&self) -> bool {
        false
    }

    fn not_entered(&self) -> Option<&str> {
        self.not_entered.as_deref()
    }

    fn result(self, ending: Ending) -> Result<Ending, Failure> {
        Ok(ending)
    }
}
