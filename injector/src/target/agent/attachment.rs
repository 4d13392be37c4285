//! An agent in a process: what has been changed there, as far as it is needed to undo the changes.
//!
//! 1. One thread is borrowed. It maps memory near the C library (in a standalone program, near the program), the agent's image is written there, and the
//!    agent prepares everything that can be prepared while the other threads run (`enter`).
//! 2. All threads are stopped. A thread whose next instruction will be overwritten is moved to the copy of
//!    that instruction, or runs a little further (`way`). Each thread gets its thread words. Then the detours
//!    and patches are written (`patches`).
//! 3. To leave, all threads are stopped outside the agent's code, all bytes and return addresses are
//!    restored, and the memory is unmapped (`leave`).

use std::io::{self, Error};
use std::mem::offset_of;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use gprofinject_abi::attach::{Command, Order, RECORD_WORDS, WORDS};
use gprofinject_abi::plan::ThreadWords;
use gprofinject_abi::{AGENT_FILE, REGION_SUFFIX};
use gprofinject_plan::Plan;
use libc::user_regs_struct;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::sampling::maps::Mapped;
use crate::store::private_folder::PrivateFolder;
use crate::target::agent::arenas::Arenas;
use crate::target::agent::go::{self, Go};
use crate::target::agent::image::Agent;
use crate::target::agent::overwritten::Patch;
use crate::target::permitted;
use crate::target::process::{Process, refusal};
use crate::target::threads::deadline;
use crate::target::threads::filters::Filters;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::thread::Thread;
use crate::target::threads::tracer::{self, Tracer};

/// For how long all threads may stand still in one try, during which some of them run out of the way. After
/// the first [`FEW`] tries, [`LONG_STAND`] applies.
const STAND: Duration = Duration::from_millis(20);
const FEW: usize = 4;
const LONG_STAND: Duration = Duration::from_millis(40);
/// For how long all threads run before the next try. The interval doubles each time, up to
/// [`LONGEST_INTERVAL`].
const FIRST_INTERVAL: Duration = Duration::from_millis(2);
const LONGEST_INTERVAL: Duration = Duration::from_millis(100);

/// The result of one try with stopped threads.
pub(super) enum Step<T> {
    Done(T),
    /// The work is impossible while the threads are where they are now. The error is reported if that does
    /// not change.
    Later(anyhow::Error),
}

/// An agent in a process. The run folder has a copy of this record, so that another gprofinject can take the
/// agent out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) pid: i32,
    /// See [`Process::started`].
    pub(super) started: u64,
    /// See [`crate::os::proc::auxiliary`].
    pub(super) auxiliary: Vec<[u64; 2]>,
    /// The address of a `syscall` instruction in the process.
    pub(super) instruction: u64,
    /// Where the thunks are.
    pub(super) arenas: Arenas,
    /// The addresses in the program at which no thread may stand while patches are written or removed.
    pub(super) patches: Vec<Patch>,
    /// The address and size of each function of an unwinder that is part of the program. An exception in
    /// flight relies on the frames of these functions.
    pub(super) unwinder: Vec<(u64, u64)>,
    /// Whether the program is a standalone one: the base of gs leads to the words of each thread.
    pub(super) is_standalone: bool,
    /// The addresses in the arena at which threads wait in system calls, each with the address of the same instruction in
    /// the program.
    pub(super) calls: Vec<(u64, u64)>,
    /// What has to be known of a Go program; `None` for others.
    pub(super) go: Option<Go>,
    /// The run folder's path as the process's mappings show it.
    pub(super) folder: String,
    /// The name of the process's region file in the run folder.
    pub(super) region: String,
    pub(super) stage: Stage,
    /// The run folder itself; `None` if this record was read from one and must not be written back.
    #[serde(skip)]
    pub(super) home: Option<PrivateFolder>,
    /// Whether the record belongs to the process's parent. A forked child has everything that was mapped in
    /// its parent, at the same addresses.
    #[serde(skip)]
    pub(super) is_inherited: bool,
    /// What was known of the process's seccomp filters when this was begun.
    #[serde(skip)]
    pub(super) filters: Filters,
}

/// The stage that the attachment has reached, with what the agent has in the process at that stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Nothing of the agent is in the process.
    Outside,
    /// gprofinject started the process with the agent. It has added only a stack for orders.
    Started { image: Image, is_paused: bool },
    /// The agent's image is mapped. The agent is about to prepare, or has failed to. `mapped` is the agent's
    /// table of its mappings, once it has begun.
    Mapped { image: Image, detours: Vec<Detoured>, mapped: Option<u64> },
    /// The agent has prepared everything. The run folder still shows this stage while patches are being
    /// written, so a gprofinject that finds it there must expect patches.
    Prepared(Guest),
    /// Patches and detours are written.
    Armed(Guest),
    /// The patches have been removed. Detours stay, and so do the frames on the stacks.
    Paused(Guest),
    /// The agent has been taken out.
    Left,
}

/// The agent library in the process, and memory for orders to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    /// All memory that gprofinject has mapped: the library, copies of first instructions, the order, a stack.
    pub(super) memory: Range<u64>,
    /// The library's code.
    pub(super) code: Range<u64>,
    /// Where an [`Order`] is written.
    pub(super) order: u64,
    /// The end of the stack on which the agent carries out orders.
    pub(super) stack: u64,
    /// The function that carries out an order.
    pub(super) entry: u64,
}

/// An agent that was put into a running process and has prepared everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Guest {
    pub(super) image: Image,
    pub(super) detours: Vec<Detoured>,
    /// The [`ThreadWords`] that each thread gets.
    pub(super) words: [u64; size_of::<ThreadWords>() / 8],
    /// The agent's table of shadow stacks, if it has one.
    pub(super) shadows: Option<u64>,
    /// The agent's table of its mappings.
    pub(super) mapped: u64,
    /// Where the records of a standalone program's threads are, apart from the one in the image.
    pub(super) records: Range<u64>,
    /// Where threads wait after an exception has landed in a handler, if the agent can make them wait.
    pub(super) landing: Option<Landing>,
}

/// See [`Order::waiting`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Landing {
    /// The address of a word that is nonzero while threads have to wait.
    pub(super) word: u64,
    /// The code in which the threads wait.
    pub(super) code: Range<u64>,
}

/// The bytes at the start of a library function that redirect it to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Detoured {
    pub(super) at: u64,
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
}

impl Detoured {
    /// Whether `bytes` are in memory at the function's address. The library may have been unloaded, and
    /// something else may be there.
    pub(super) fn stands(&self, memory: &Memory, bytes: &[u8]) -> bool {
        memory.bytes(self.at, bytes.len()).is_ok_and(|now| now == bytes)
    }
}

impl Attachment {
    /// Returns the address of the `syscall` instruction by which the process makes system calls for gprofinject.
    pub(crate) fn own_call(&self) -> u64 {
        self.instruction
    }

    /// Returns the record of a process that has nothing of the agent, and whose files in the folder have that name.
    /// `instruction` is the address of a `syscall` instruction in the process.
    pub(super) fn outside(
        process: &Process,
        plan: &Plan,
        (folder, name): (&PrivateFolder, &str),
        instruction: u64,
    ) -> Attachment {
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let arena = plan.arena.wrapping_add(bias);
        Attachment {
            pid: process.pid,
            started: process.started,
            auxiliary: process.auxiliary.clone(),
            instruction,
            arenas: Arenas { program: arena..arena + plan.arena_len, ..Arenas::default() },
            patches: Patch::all(plan, bias),
            unwinder: Vec::new(),
            is_standalone: plan.role.is_standalone(),
            calls: Vec::new(),
            go: None,
            folder: folder.path().to_string_lossy().into_owned(),
            region: format!("{name}{REGION_SUFFIX}"),
            stage: Stage::Outside,
            home: Some(folder.clone()),
            is_inherited: false,
            filters: process.filters.clone(),
        }
    }

    /// Returns what a thread's words and the words in which it waits for a landing are relative to: its control block, or
    /// in a standalone program its record.
    pub(super) fn block_of(&self, registers: &user_regs_struct) -> u64 {
        if self.is_standalone { registers.gs_base } else { registers.fs_base }
    }

    /// Returns the address of a thread's [`ThreadWords`].
    pub(super) fn words_of(&self, registers: &user_regs_struct) -> u64 {
        self.block_of(registers).wrapping_add(if self.is_standalone { RECORD_WORDS } else { WORDS })
    }

    /// Returns where a thread's stack ends, if that is not the end of its mapping.
    pub(super) fn end_of_stack(&self, memory: &Memory, thread: &Thread) -> Option<u64> {
        self.go.as_ref().and_then(|_| go::end_of_stack(memory, &thread.registers))
    }

    /// Whether an address is one at which a preempted goroutine may be about to return into a patch, or to the copy of an
    /// instruction.
    pub(super) fn is_in_preemption(&self, at: u64) -> bool {
        self.go.as_ref().is_some_and(|go| go.preemption.contains(&at))
    }

    /// Whether this record belongs to `process` itself, and not to a process that has forked it.
    pub(crate) fn is_of(&self, process: &Process) -> bool {
        (self.pid, self.started) == (process.pid, process.started)
    }

    /// Returns the agent, if it was put into a running process and has prepared everything.
    pub(super) fn guest(&self) -> Option<&Guest> {
        match &self.stage {
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(guest),
            Stage::Outside | Stage::Started { .. } | Stage::Mapped { .. } | Stage::Left => None,
        }
    }

    /// Returns the agent library in the process, if it is there.
    pub(super) fn image(&self) -> Option<&Image> {
        match &self.stage {
            Stage::Started { image, .. } | Stage::Mapped { image, .. } => Some(image),
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(&guest.image),
            Stage::Outside | Stage::Left => None,
        }
    }

    /// Returns where the agent's code is in the process, and where in which file, if gprofinject has put it there. The kernel
    /// does not know that file. The run folder has no file of the library for standalone programs.
    pub(crate) fn agent_code(&self) -> Option<Mapped> {
        let code = &self.guest().filter(|_| !self.is_standalone)?.image.code;
        let file = Path::new(&self.folder).join(AGENT_FILE);
        let file = file.to_str()?.into();
        Some(Mapped { start: code.start, end: code.end, offset: Agent::code_offset()?, file })
    }

    /// Returns the library functions that are redirected to the agent, or will be.
    pub(super) fn detours(&self) -> &[Detoured] {
        match &self.stage {
            Stage::Mapped { detours, .. } => detours,
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => &guest.detours,
            Stage::Outside | Stage::Started { .. } | Stage::Left => &[],
        }
    }

    /// Returns the address of the agent's table of its mappings, if there is one.
    pub(super) fn mapped(&self) -> Option<u64> {
        match &self.stage {
            Stage::Mapped { mapped, .. } => *mapped,
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => Some(guest.mapped),
            Stage::Outside | Stage::Started { .. } | Stage::Left => None,
        }
    }

    /// Whether the patches have been removed.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.stage, Stage::Paused(_) | Stage::Started { is_paused: true, .. })
    }

    /// Records that the patches have been removed (`true`) or written (`false`).
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

    /// Makes the first of the stopped threads carry out an order.
    ///
    /// # Errors
    /// The process has no agent, its memory cannot be accessed, the thread does not finish in time, or the
    /// agent answers with an error number.
    pub(super) fn command(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        command: Command,
    ) -> io::Result<Order> {
        match self.command_once(stopped, memory, command) {
            // The agent makes no system calls any more, if the process has entered seccomp.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && command != Command::Prepare => {
                let Ok(filters @ Filters::Read(_)) = stopped.filters() else { return Err(error) };
                permitted::check(self.pid, &filters).map_err(Error::other)?;
                let image = self.image().ok_or(error)?;
                let refused = permitted::refused(&filters);
                memory.write(image.order + offset_of!(Order, refused) as u64, refused.as_bytes())?;
                memory.write(image.order + offset_of!(Order, knows_filters) as u64, &1_u64.to_le_bytes())?;
                self.command_once(stopped, memory, command)
            }
            done => done,
        }
    }

    fn command_once(&self, stopped: &mut Stopped, memory: &Memory, command: Command) -> io::Result<Order> {
        let image = self.image().ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
        memory.write(image.order + offset_of!(Order, command) as u64, command.code().as_bytes())?;
        let is_bare = stopped.threads.first().is_some_and(|thread| thread.registers.gs_base == 0);
        memory.write(image.order + offset_of!(Order, bare) as u64, &u64::from(is_bare).to_le_bytes())?;
        let done = image.order + offset_of!(Order, done) as u64;
        stopped.run(memory, image.entry, image.stack, image.order, done)?;
        let order: Order = memory.record(image.order)?;
        match order.result {
            0 => Ok(order),
            errno => Err(Error::from_raw_os_error(errno as i32)),
        }
    }

    /// Stops all threads of the process.
    ///
    /// # Errors
    /// A thread does not stop in time, or the process has ended or executes another program.
    pub(super) fn all(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::all(self.pid, tracer).map_err(|error| {
            let refusal = refusal(self.pid, &error);
            match error.raw_os_error() {
                Some(libc::ETIMEDOUT) => Unstopped(refusal).into(),
                _ => anyhow!(refusal),
            }
        })?;
        self.check_program(&stopped).map(|()| self.with_filters(stopped))
    }

    /// Stops one thread of the process.
    ///
    /// # Errors
    /// No thread can be stopped, or the process has ended or executes another program.
    pub(super) fn one(&self, tracer: &Tracer) -> Result<Stopped> {
        let stopped = Stopped::one(self.pid, tracer).map_err(|error| anyhow!(refusal(self.pid, &error)))?;
        self.check_program(&stopped).map(|()| self.with_filters(stopped))
    }

    fn with_filters(&self, mut stopped: Stopped) -> Stopped {
        stopped.has_own_filters = self.filters == Filters::Own;
        stopped
    }

    /// Checks that stopped threads, which are all of the process, have no other seccomp filters than when it was opened.
    ///
    /// # Errors
    /// They have.
    pub(super) fn check_filters(&self, stopped: &Stopped) -> Result<()> {
        let is_same = match &self.filters {
            Filters::Own => true,
            Filters::None => !stopped.has_filters(),
            Filters::Read(then) => match stopped.filters() {
                Ok(Filters::Read(now)) => now.iter().all(|filter| then.contains(filter)),
                other => other.is_ok(),
            },
        };
        if !is_same {
            bail!("process {} has entered seccomp just now; try again", self.pid);
        }
        Ok(())
    }

    /// Checks that the process still executes the same program, so that the record's addresses still apply.
    fn check_program(&self, stopped: &Stopped) -> Result<()> {
        if stopped.auxiliary != self.auxiliary {
            bail!("process {} executes another program now", self.pid);
        }
        self.image().map_or(Ok(()), |image| self.check_library(image.memory.start))
    }

    /// Checks that the agent library is still at `base`. Without address space randomisation, another program
    /// may have the same auxiliary vector as the one before.
    ///
    /// # Errors
    /// There is no ELF header at `base`: the process executes another program.
    pub(super) fn check_library(&self, base: u64) -> Result<()> {
        const ELF: [u8; 4] = *b"\x7fELF";
        match Memory::open(self.pid).and_then(|memory| memory.bytes(base, ELF.len())) {
            Ok(bytes) if bytes == ELF => Ok(()),
            _ => bail!("process {} executes another program now", self.pid),
        }
    }

    /// Repeats `work`, which needs stopped threads, until it succeeds or `patience` is over. In each try all
    /// threads stand still for a short time only, and between two tries they run.
    ///
    /// # Errors
    /// `work` fails, or its last result when the time is over is [`Step::Later`].
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
        bail!("the time is over")
    }
}

/// A thread did not stop in time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unstopped(String);
