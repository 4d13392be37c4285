//! An agent in a process: what has been done there, as far as it takes to undo it.
//!
//! 1. One thread is borrowed: memory is mapped near the C library, the agent's image written there, and the agent
//!    prepares everything that can be prepared while the other threads run (`enter`).
//! 2. All threads are stopped. Those whose next instruction will be overwritten are moved to its copy, or run a little
//!    further (`way`). Each gets its thread words. Detours and patches are written (`patches`).
//! 3. To leave, all threads are stopped outside of our code, everything is written back, return addresses too, and
//!    the memory is unmapped (`leave`).

use std::io::{self, Error};
use std::mem::offset_of;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::attach::Order;
use gprofinject_abi::plan::THREAD_WORDS;
use gprofinject_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::program::planned::Planned;
use crate::store::private_folder::PrivateFolder;
use crate::target::agent::overwritten::Patch;
use crate::target::agent::room::find_syscall;
use crate::target::process::{Process, refusal};
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::tracer::{self, Tracer};

/// How long all threads stand still in one try, while some of them run on to get out of the way; and how long once a few
/// tries were not enough.
const STAND: Duration = Duration::from_millis(20);
const FEW: usize = 4;
const LONG_STAND: Duration = Duration::from_millis(40);
/// How long all threads run before the next try. The interval doubles each time.
const FIRST_INTERVAL: Duration = Duration::from_millis(2);
const LONGEST_INTERVAL: Duration = Duration::from_millis(100);

/// Where the copy of an overwritten instruction stands; None: the instruction has no copy. All addresses are runtime
/// addresses.
pub(super) type Moved<'a> = dyn Fn(u64) -> Option<u64> + Sync + 'a;

/// What one try with stopped threads has come to.
pub(super) enum Step<T> {
    Done(T),
    /// It cannot be done as the threads stand now. This is what to say if that remains so.
    Later(anyhow::Error),
}

/// An agent in a process. It is kept in the run folder, so that another gprofinject can take the agent out in our place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) pid: i32,
    /// See [`Process::started`].
    pub(super) started: u64,
    /// See [`crate::os::proc::auxiliary`].
    pub(super) auxiliary: Vec<[u64; 2]>,
    /// The address of a `syscall` instruction in the process.
    pub(super) instruction: u64,
    /// Where the thunks are, or will be.
    pub(super) arena: Range<u64>,
    /// Where no thread may stand when patches come or go.
    pub(super) patches: Vec<Patch>,
    /// Functions of an unwinder that is part of the program, on whose frames an exception in flight relies: address and size.
    pub(super) unwinder: Vec<(u64, u64)>,
    /// The run folder's path, as the process's mappings have it.
    pub(super) folder: String,
    pub(super) stage: Stage,
    /// The run folder itself. None: this was read from one, and is not to be written back.
    #[serde(skip)]
    pub(super) home: Option<PrivateFolder>,
    /// The record is that of the process's parent: a forked child has all that was mapped there, at the same addresses.
    #[serde(skip)]
    pub(super) is_inherited: bool,
}

/// How far the agent has come, and what there is of it in the process at that stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Nothing of ours is in the process.
    Outside,
    /// The process was started with the agent. Only a stack for orders was added.
    Started { image: Image, is_paused: bool },
    /// The agent's image is mapped. It is about to prepare, or could not; `mapped` is its table of what it has mapped until then,
    /// if it has begun.
    Mapped { image: Image, detours: Vec<Detoured>, mapped: Option<u64> },
    /// The agent has prepared everything. As long as patches are being written this is the stage in the run folder, too: who
    /// finds it there must expect patches.
    Prepared(Guest),
    /// Patches and detours are written.
    Armed(Guest),
    /// The patches are taken away. Detours stay, and so does what is on the stacks.
    Paused(Guest),
    /// The agent was taken out.
    Left,
}

/// The agent library in the process, and memory to give it orders.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    /// All that we have mapped: the library, copies of first instructions, the order, a stack.
    pub(super) memory: Range<u64>,
    /// The library's code.
    pub(super) code: Range<u64>,
    /// Where an [`Order`] is written.
    pub(super) order: u64,
    /// The end of the stack on which orders are carried out.
    pub(super) stack: u64,
    /// The function that carries out an order.
    pub(super) entry: u64,
}

/// An agent that was put into a running process, and has prepared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Guest {
    pub(super) image: Image,
    pub(super) detours: Vec<Detoured>,
    /// The thread words that each thread gets.
    pub(super) words: [u64; THREAD_WORDS],
    /// The agent's table of shadow stacks, if it has one.
    pub(super) shadows: Option<u64>,
    /// The agent's table of what it has mapped.
    pub(super) mapped: u64,
    /// Where threads wait that an exception has landed in a handler, if they can be made to.
    pub(super) landing: Option<Landing>,
}

/// See [`Order::waiting`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Landing {
    /// A word that is not 0 while threads are to wait.
    pub(super) word: u64,
    /// The code in which they wait.
    pub(super) code: Range<u64>,
}

/// Bytes of a library function that lead to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Detoured {
    pub(super) at: u64,
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
}

impl Detoured {
    /// Whether these bytes stand at its address. The library may have been unloaded, and something else be there.
    pub(super) fn stands(&self, memory: &Memory, bytes: &[u8]) -> bool {
        memory.bytes(self.at, bytes.len()).is_ok_and(|now| now == bytes)
    }
}

impl Attachment {
    /// A process that nothing has been put into. `code` is the C library's, which stands at `libc`.
    pub(super) fn outside(
        process: &Process,
        plan: &Plan,
        folder: &PrivateFolder,
        code: &[u8],
        libc: u64,
    ) -> Result<Attachment> {
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let arena = plan.arena.wrapping_add(bias);
        Ok(Attachment {
            pid: process.pid,
            started: process.started,
            auxiliary: process.auxiliary.clone(),
            instruction: libc + find_syscall(code).context("the C library makes no system calls")?,
            arena: arena..arena + plan.arena_len,
            patches: Patch::all(plan, bias),
            unwinder: Vec::new(),
            folder: folder.path().to_string_lossy().into_owned(),
            stage: Stage::Outside,
            home: Some(folder.clone()),
            is_inherited: false,
        })
    }

    /// Whether this is of that process, and not of one that it was forked by.
    pub(crate) fn is_of(&self, process: &Process) -> bool {
        (self.pid, self.started) == (process.pid, process.started)
    }

    /// The agent, if it was put into a running process and has prepared there.
    pub(super) fn guest(&self) -> Option<&Guest> {
        match &self.stage {
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(guest),
            Stage::Outside | Stage::Started { .. } | Stage::Mapped { .. } | Stage::Left => None,
        }
    }

    /// The agent library in the process, if it is there.
    pub(super) fn image(&self) -> Option<&Image> {
        match &self.stage {
            Stage::Started { image, .. } | Stage::Mapped { image, .. } => Some(image),
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(&guest.image),
            Stage::Outside | Stage::Left => None,
        }
    }

    /// The functions of libraries that lead to the agent, or will.
    pub(super) fn detours(&self) -> &[Detoured] {
        match &self.stage {
            Stage::Mapped { detours, .. } => detours,
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => &guest.detours,
            Stage::Outside | Stage::Started { .. } | Stage::Left => &[],
        }
    }

    /// The agent's table of what it has mapped, if there is one.
    pub(super) fn mapped(&self) -> Option<u64> {
        match &self.stage {
            Stage::Mapped { mapped, .. } => *mapped,
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(guest.mapped),
            Stage::Outside | Stage::Started { .. } | Stage::Left => None,
        }
    }

    /// Whether the patches have been taken away.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.stage, Stage::Paused(_) | Stage::Started { is_paused: true, .. })
    }

    /// Notes that the patches are written, or that they are taken away.
    pub(super) fn set_paused(&mut self, now: bool) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Outside) {
            Stage::Started { image, .. } => Stage::Started { image, is_paused: now },
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) if now => {
                Stage::Paused(guest)
            }
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Stage::Armed(guest),
            stage @ (Stage::Outside | Stage::Mapped { .. } | Stage::Left) => stage,
        };
    }

    /// Has the first of the stopped threads carry out an order.
    pub(super) fn command(&self, stopped: &mut Stopped, memory: &Memory, command: u64) -> io::Result<()> {
        let image = self.image().ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
        memory.write(image.order + offset_of!(Order, command) as u64, &command.to_le_bytes())?;
        let done = image.order + offset_of!(Order, done) as u64;
        stopped.run(memory, image.entry, image.stack, image.order, done)?;
        match memory.word(image.order + offset_of!(Order, result) as u64)? {
            0 => Ok(()),
            errno => Err(Error::from_raw_os_error(errno as i32)),
        }
    }

    /// Where the copy of an overwritten instruction stands, by runtime addresses.
    pub(crate) fn moved<'p>(&self, planned: &'p Planned) -> impl Fn(u64) -> Option<u64> + use<'p> {
        let plan = planned.plan.as_ref();
        let start = self.arena.start;
        let bias = plan.map_or(0, |plan| start.wrapping_sub(plan.arena));
        move |at| Some(start + u64::from(plan?.moved(at.wrapping_sub(bias))?))
    }

    /// Stops all threads of the process.
    pub(super) fn all(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::all(self.pid, tracer).map_err(|error| {
            let refusal = refusal(self.pid, &error);
            match error.raw_os_error() {
                Some(libc::ETIMEDOUT) => Unstopped(refusal).into(),
                _ => anyhow!(refusal),
            }
        })?;
        self.check_program(&stopped).map(|()| stopped)
    }

    /// Stops one thread of the process.
    pub(super) fn one(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::one(self.pid, tracer).map_err(|error| anyhow!(refusal(self.pid, &error)))?;
        self.check_program(&stopped).map(|()| stopped)
    }

    /// Checks that the process still executes the program that is known, so that what is known of its memory still holds.
    fn check_program(&self, stopped: &Stopped) -> Result<()> {
        if stopped.auxiliary != self.auxiliary {
            bail!("process {} executes another program now", self.pid);
        }
        self.image().map_or(Ok(()), |image| self.check_library(image.memory.start))
    }

    /// Checks that the agent library is still there. Without random addresses another program may have the same auxiliary
    /// vector as the one before.
    pub(super) fn check_library(&self, base: u64) -> Result<()> {
        const ELF: [u8; 4] = *b"\x7fELF";
        match Memory::open(self.pid).and_then(|memory| memory.bytes(base, ELF.len())) {
            Ok(bytes) if bytes == ELF => Ok(()),
            _ => bail!("process {} executes another program now", self.pid),
        }
    }

    /// Tries something for which threads have to stand still, until it is done or `patience` is over. All threads stand still
    /// only for a short time in each try, and run between two tries.
    pub(super) fn with_retries<T: Send>(
        &mut self,
        patience: Duration,
        mut work: impl FnMut(&mut Attachment, &Tracer, Instant) -> Result<Step<T>> + Send,
    ) -> Result<T> {
        let mut interval = FIRST_INTERVAL;
        let start = Instant::now();
        let stands = [STAND; FEW].into_iter().chain(std::iter::repeat(LONG_STAND));
        for stand in stands {
            let end = start.elapsed() > patience || deadline::has_passed();
            match tracer::apart(self.pid, |tracer| work(self, tracer, Instant::now() + stand)) {
                Ok(Step::Done(result)) => return Ok(result),
                Err(error) if end || !error.is::<Unstopped>() => return Err(error),
                Ok(Step::Later(error)) if end => return Err(error),
                Ok(Step::Later(_)) | Err(_) => std::thread::sleep(interval),
            }
            interval = (interval * 2).min(LONGEST_INTERVAL);
        }
        bail!("out of patience")
    }
}

/// A thread did not stop in time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unstopped(String);
