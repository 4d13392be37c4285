//! Puts the agent into a running process, and takes it out again.
//!
//! 1. One thread is borrowed: memory is mapped near the C library, the agent's image written there, and the agent
//!    prepares everything that can be prepared while the other threads run.
//! 2. All threads are stopped. Those whose next instruction will be overwritten are moved to its copy, or given a
//!    moment to get away. Each gets its thread words. Detours and patches are written.
//! 3. To leave, all threads are stopped outside of our code, everything is written back, return addresses too, and
//!    the memory is unmapped.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Error};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::attach::{
    ACCUMULATOR, ARM, CONTROL, DETOURS_MAX, LEAVE, MAPPED_MAX, Order, PAD, PAUSE, PLACE_MAX, PREPARE, RESUME,
    WORDS,
};
use gprofinject_abi::plan::{THREAD_WORDS, ThreadWords};
use gprofinject_abi::{AGENT_FILE, REGION_SUFFIX};
use gprofinject_plan::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::target::agent::callers::{Callers, Files};
mod leave;
mod patches;
mod prepare;
mod record;
mod room;

use crate::target::agent::engine::room::{Overwritten, code_len, find_syscall, gap, libc_code};

use crate::program::planned::Planned;
use crate::store::private_folder::PrivateFolder;
use crate::store::run_folder::plan_file;
use crate::target::agent::detours::{self, COPY, Found};
use crate::target::agent::handover;
use crate::target::agent::image::Agent;
use crate::target::agent::{frames, stacks};
use crate::target::named;
use crate::target::process::{Process, refusal};
use crate::target::threads::helper::{self, Client};
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::thread::Thread;
use crate::target::threads::tracer::Tracer;
use crate::target::threads::{deadline, tracer};

const PAGE: u64 = 4096;
const STACK: u64 = 64 << 10;
const COPIES: u64 = (DETOURS_MAX as u64 * COPY).next_multiple_of(PAGE);
const ORDER: u64 = (size_of::<Order>() as u64).next_multiple_of(PAGE);
/// How long threads stand still while others get moments; and once a few tries were not enough.
const STAND: Duration = Duration::from_millis(20);
const FEW: usize = 4;
const LONG_STAND: Duration = Duration::from_millis(40);
/// Then all of them go on for a while.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long that is tried; and to leave, since hooks that stay are worse than hooks that do not come.
const PATIENCE: Duration = Duration::from_secs(3);
const LAST_PATIENCE: Duration = Duration::from_secs(15);

/// Where an instruction that is overwritten stands.
type Moved<'a> = dyn Fn(u64) -> Option<u64> + Sync + 'a;

enum Step<T> {
    Done(T),
    /// Not as the threads stand now; what to say if that remains so.
    Later(anyhow::Error),
}

/// An agent in a process, as far as it takes to get it out again; kept in the run folder, for whoever has to do
/// that in our place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attached {
    pub(crate) pid: i32,
    /// See [`Process::started`].
    pub(crate) started: u64,
    /// See [`Stopped::auxiliary`].
    auxiliary: Vec<[u64; 2]>,
    /// What we have mapped: the agent's image, the order, a stack, copies of first instructions.
    image: Range<u64>,
    code: Range<u64>,
    order: u64,
    stack: u64,
    entry: u64,
    /// A `syscall` instruction.
    instruction: u64,
    pub(crate) arena: Range<u64>,
    words: [u64; THREAD_WORDS],
    shadows: u64,
    mapped: u64,
    /// See [`Order::waiting`].
    waiting: [u64; 3],
    detours: Vec<Detoured>,
    /// Where threads must not stand when patches come or go. See [`room::midst`].
    patched: Vec<room::Midst>,
    /// Functions of an unwinder that is part of the program, on whose frames an exception rests.
    unwinder: Vec<(u64, u64)>,
    /// Nothing is patched.
    pub(crate) paused: bool,
    /// The run folder's name, as the process's mappings have it.
    folder: String,
    /// The run folder itself. None: read from one, and not to be written back.
    #[serde(skip)]
    home: Option<PrivateFolder>,
    /// It is its parent's: a forked child has all that was mapped there, at the same addresses.
    #[serde(skip)]
    inherited: bool,
}

/// Replaced bytes of a library.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Detoured {
    at: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Detoured {
    /// Whether these bytes of its are there: the library may have been unloaded, and something else be there.
    fn stands(&self, memory: &Memory, bytes: &[u8]) -> bool {
        memory.bytes(self.at, bytes.len()).is_ok_and(|now| now == bytes)
    }
}

/// How long threads stood still.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pause {
    pub(crate) took: Duration,
    pub(crate) threads: usize,
}

impl std::fmt::Display for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let threads = gmon::counted(self.threads, "thread", "threads");
        write!(f, "{threads} stood still for {:.1} ms", self.took.as_secs_f64() * 1e3)
    }
}

impl Attached {
    /// Nothing is mapped yet. `code`: the C library's, which stands at `libc`.
    fn unmapped(
        process: &Process,
        plan: &Plan,
        folder: &PrivateFolder,
        code: &[u8],
        libc: u64,
    ) -> Result<Attached> {
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let arena = plan.arena.wrapping_add(bias);
        Ok(Attached {
            pid: process.pid,
            started: process.started,
            auxiliary: process.auxiliary.clone(),
            image: 0..0,
            code: 0..0,
            order: 0,
            stack: 0,
            entry: 0,
            instruction: libc + find_syscall(code).context("the C library makes no system calls")?,
            arena: arena..arena + plan.arena_len,
            words: [0; THREAD_WORDS],
            shadows: 0,
            mapped: 0,
            waiting: [0; 3],
            detours: Vec::new(),
            patched: room::midst(plan, bias),
            unwinder: Vec::new(),
            // Should we be killed, there may be patches.
            paused: false,
            folder: folder.path().to_string_lossy().into_owned(),
            home: Some(folder.clone()),
            inherited: false,
        })
    }

    /// Has a helper do something that must not be left half done.
    fn order<T: Serialize + DeserializeOwned>(
        &mut self,
        work: impl FnOnce(&mut Attached, &Client) -> Result<T>,
    ) -> Result<T> {
        let home = self.home.clone();
        let (after, result) = helper::carry_out(self.pid, home.as_ref(), |client| {
            let result = work(self, client).map_err(|error| format!("{error:#}"));
            if self.is_guest() && !self.inherited {
                // For whoever has to leave the process in our place.
                let _ = self.save();
            }
            (self.clone(), result)
        })?;
        *self = Attached { inherited: self.inherited, home, ..after };
        result.map_err(anyhow::Error::msg)
    }

    /// A process that was started with the agent. Only a stack for orders is mapped there.
    pub(crate) fn started(process: &Process, plan: &Plan, folder: &PrivateFolder) -> Result<Attached> {
        let pid = process.pid;
        let memory = Memory::open(pid).map_err(|error| anyhow!(refusal(pid, &error)))?;
        let mappings = process.mappings()?;
        let own = folder.path().join(AGENT_FILE);
        let own = own.to_string_lossy();
        let mut library = mappings.iter().filter(|mapping| mapping.path == own);
        let base = library.next().context("the process executes another program now")?.lo;
        let end = mappings.iter().filter(|mapping| mapping.path == own).map(|mapping| mapping.hi).max();
        let agent = Agent::new()?;
        let libc = libc_code(&mappings).context("the process does not use glibc")?;
        let code = memory.bytes(libc.lo, code_len(libc))?;
        let mut attached = Attached {
            image: base..end.unwrap_or(base),
            code: base + agent.code.0..base + agent.code.1,
            entry: base + agent.function(CONTROL).context("the agent library is damaged")?,
            ..Attached::unmapped(process, plan, folder, &code, libc.lo)?
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let arguments = [0, ORDER + STACK, protection as u64, flags as u64, u64::MAX, 0];
        attached.order = attached.order(|attached, _| {
            tracer::apart(pid, |tracer| {
                let mut stopped = attached.one(tracer)?;
                stopped
                    .call(attached.instruction, libc::SYS_mmap, arguments)
                    .map_err(|error| anyhow!("no memory could be mapped: {}", crate::os::sys::reason(&error)))
            })
        })?;
        attached.stack = attached.order + ORDER + STACK;
        Ok(attached)
    }

    fn command(&self, stopped: &mut Stopped, memory: &Memory, command: u64) -> io::Result<()> {
        memory.write(self.order + offset_of!(Order, command) as u64, &command.to_le_bytes())?;
        let done = self.order + offset_of!(Order, done) as u64;
        stopped.run(memory, self.entry, self.stack, self.order, done)?;
        match memory.word(self.order + offset_of!(Order, result) as u64)? {
            0 => Ok(()),
            errno => Err(Error::from_raw_os_error(errno as i32)),
        }
    }

    /// That process, and not a child that it has forked.
    pub(crate) fn is_of(&self, process: &Process) -> bool {
        (self.pid, self.started) == (process.pid, process.started)
    }

    /// The process was attached to, and can be left.
    pub(crate) fn is_guest(&self) -> bool {
        self.mapped != 0
    }

    /// Where an instruction is that was moved, by runtime addresses.
    pub(crate) fn moved<'p>(&self, planned: &'p Planned) -> impl Fn(u64) -> Option<u64> + use<'p> {
        let plan = planned.plan.as_ref();
        let start = self.arena.start;
        let bias = plan.map_or(0, |plan| start.wrapping_sub(plan.arena));
        move |at| Some(start + u64::from(plan?.moved(at.wrapping_sub(bias))?))
    }
}
