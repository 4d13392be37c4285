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

use super::callers::{Callers, Files};
mod leave;
mod patches;
mod record;
mod room;

use room::{Overwritten, code_len, gap, libc_code};

use super::detours::{self, COPY, Found};
use super::handover;
use super::helper::{self, Client};
use super::image::Agent;
use super::process::{Mapping, Process, refusal};
use super::tracee::memory::Memory;
use super::tracee::{Stopped, Thread, Tracer, find_syscall};
use super::{deadline, frames, named, stacks, tracee};
use crate::private_folder::PrivateFolder;
use crate::profile_plan::Planned;
use crate::run_folder::plan_file;

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

    /// Maps the agent and has it prepare. No thread but one is stopped, and that one for a few milliseconds. None:
    /// another gprofinject has come first.
    pub(crate) fn prepare(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        folder: &PrivateFolder,
        name: &str,
    ) -> Result<Option<Attached>> {
        let prepared = Attached::prepare_this(process, planned, plan, folder, name);
        // Whatever it was that went wrong then.
        prepared.map_err(|error| match process.executes_another() {
            true => anyhow!("process {} executes another program now; try again", process.pid),
            false => error,
        })
    }

    fn prepare_this(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        folder: &PrivateFolder,
        name: &str,
    ) -> Result<Option<Attached>> {
        let pid = process.pid;
        let memory = Memory::open(pid).map_err(|error| anyhow!(refusal(pid, &error)))?;
        let mappings = detours::loaded(&memory, process)?;
        let libc = libc_code(&mappings).with_context(|| {
            format!("process {pid} has not loaded glibc, which the agent needs; if it only begins, try again")
        })?;
        let agent = Agent::new()?;
        let code = memory.bytes(libc.lo, code_len(libc))?;
        let found = detours::find(&memory, process, &mappings);
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let unwinder = unwinder(planned, bias);
        let mut attached =
            Attached { unwinder, ..Attached::unmapped(process, plan, folder, &code, libc.lo)? };
        let get_gr = get_gr(planned, plan, bias);
        let near = libc.lo;
        let is_first = attached.order(|attached, client| {
            if !named::folders(pid)?.is_empty() {
                return Ok(false);
            }
            tracee::apart(pid, |tracer| {
                let memory = Memory::open(pid)?;
                let mut stopped = attached.one(tracer)?;
                let prepared = attached.map(&mut stopped, &memory, &agent, near).and_then(|()| {
                    // By their names, where the kernel has no such way.
                    let given = attached.give(&mut stopped, &memory, folder, name).unwrap_or([-1; 2]);
                    let bytes =
                        |pairs: &[[u64; 2]]| order_bytes(process, folder.path(), name, given, pairs, get_gr);
                    attached.prepare_stopped(&mut stopped, &memory, &agent, &found, bytes)
                });
                if prepared.is_err() || !client.is_there() {
                    let _ = attached.unmap(&mut stopped, &memory);
                }
                prepared.map(|()| true)
            })
        })?;
        Ok(is_first.then_some(attached))
    }

    /// Opens region and plan file in the process.
    fn give(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        folder: &PrivateFolder,
        name: &str,
    ) -> io::Result<[i32; 2]> {
        let region = folder.open_to_write(&format!("{name}{REGION_SUFFIX}"))?;
        let plan = folder.open_file(&plan_file(name))?;
        handover::give(stopped, memory, self.instruction, self.stack - STACK, [&region, &plan])
    }

    fn prepare_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        agent: &Agent,
        found: &[Found],
        bytes: impl Fn(&[[u64; 2]]) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let (base, copies) = (self.image.start, self.image.start + agent.len());
        let planned = detours::plan(found, agent, base, copies)
            .map_err(|name| anyhow!("the library function {name} cannot be led to the agent"))?;
        for planned in &planned {
            memory.write(planned.copy, &planned.detour.original)?;
        }
        let pairs: Vec<[u64; 2]> = planned.iter().map(|p| [p.at, p.copy]).collect();
        memory.write(self.order, &bytes(&pairs)?)?;
        let detoured =
            |p: detours::Planned| Detoured { at: p.at, before: p.before, after: p.detour.replacement };
        self.detours = planned.into_iter().map(detoured).collect();
        // The next thing that happens is that the process knows our folder.
        self.save().context("the run folder cannot be written to")?;
        let pid = self.pid;
        let refused = |error: Error| match error.raw_os_error() {
            Some(libc::EMFILE) => anyhow!(
                "process {pid} may open no more files (its ulimit -n); raise that: prlimit --pid {pid} --nofile=1024"
            ),
            _ => anyhow!("the agent could not be prepared: {}", crate::sys::reason(&error)),
        };
        let prepared = self.command(stopped, memory, PREPARE);
        let order = self.order;
        let read = |offset: usize, n: u64| memory.word(order + offset as u64 + 8 * n);
        self.mapped = read(offset_of!(Order, mapped), 0)?;
        prepared.map_err(refused)?;
        let (mut words, mut waiting) = ([0; THREAD_WORDS], [0; 3]);
        for (n, word) in (0..).zip(&mut words) {
            *word = read(offset_of!(Order, words), n)?;
        }
        for (n, word) in (0..).zip(&mut waiting) {
            *word = read(offset_of!(Order, waiting), n)?;
        }
        self.shadows = read(offset_of!(Order, shadows), 0)?;
        (self.words, self.waiting) = (words, waiting);
        // The process can write there as well.
        self.is_sound().context("the process has changed what the agent said")
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
            tracee::apart(pid, |tracer| {
                let mut stopped = attached.one(tracer)?;
                stopped
                    .call(attached.instruction, libc::SYS_mmap, arguments)
                    .map_err(|error| anyhow!("no memory could be mapped: {}", crate::sys::reason(&error)))
            })
        })?;
        attached.stack = attached.order + ORDER + STACK;
        Ok(attached)
    }

    /// Maps memory near the C library's code and puts the agent there. The other threads run and map memory, too: the
    /// place is chosen anew when one of them has taken it.
    fn map(&mut self, stopped: &mut Stopped, memory: &Memory, agent: &Agent, near: u64) -> Result<()> {
        const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        const TRIES: usize = 50;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let len = agent.len() + COPIES + ORDER + STACK;
        let mut failure = Error::from_raw_os_error(libc::EEXIST);
        let mut base = 0;
        for _ in 0..TRIES {
            let mappings = Process::mappings_of(self.pid)?;
            base = gap(&mappings, near, len).context("there is no memory near the C library's code")?;
            let arguments = [base, len, READ_WRITE, flags as u64, u64::MAX, 0];
            match stopped.call(self.instruction, libc::SYS_mmap, arguments) {
                Ok(made) if made == base => {
                    self.image = base..base + len;
                    break;
                }
                // Kernels before 4.17 take the address as a hint.
                Ok(made) => {
                    stopped.call(self.instruction, libc::SYS_munmap, [made, len, 0, 0, 0, 0])?;
                }
                Err(error) => {
                    let is_taken = error.raw_os_error() == Some(libc::EEXIST);
                    failure = error;
                    if !is_taken {
                        break;
                    }
                }
            }
        }
        if self.image.is_empty() {
            let limit = match failure.raw_os_error() {
                Some(libc::ENOMEM) => " (its ulimit -v or -d, or the machine's memory, is used up)",
                _ => "",
            };
            bail!(
                "no memory could be mapped near the C library's code: {}{limit}",
                crate::sys::reason(&failure)
            );
        }
        self.code = base + agent.code.0..base + agent.code.1;
        self.order = base + agent.len() + COPIES;
        self.stack = self.order + ORDER + STACK;
        self.entry = base + agent.function(CONTROL).context("the agent library is damaged")?;
        memory.write(base, &agent.at(base))?;
        for (at, len) in [(self.code.start, self.code.end - self.code.start), (self.order - COPIES, COPIES)] {
            stopped.call(self.instruction, libc::SYS_mprotect, [at, len, READ_EXECUTE, 0, 0, 0]).map_err(
                |error| {
                    anyhow!(
                        "process {} may not make memory executable: {} (systemd's MemoryDenyWriteExecute, SELinux); \
                         start it without that",
                        self.pid,
                        crate::sys::reason(&error)
                    )
                },
            )?;
        }
        Ok(())
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

/// Functions of an unwinder that is part of the program whose frames are below every landing: runtime addresses.
fn unwinder(planned: &Planned, bias: u64) -> Vec<(u64, u64)> {
    const NAMES: [&str; 5] = [
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "_Unwind_Resume_or_Rethrow",
        "_Unwind_ForcedUnwind",
        "_Unwind_Backtrace",
    ];
    let functions = planned.functions().map(|(function, _)| function);
    let own = functions.filter(|function| function.names().any(|name| NAMES.contains(&name)));
    own.map(|function| (function.address.wrapping_add(bias), function.size)).collect()
}

/// Where such an unwinder's `_Unwind_GetGR` can be called without being counted; 0: there is none.
fn get_gr(planned: &Planned, plan: &Plan, bias: u64) -> u64 {
    let mut functions = planned.functions().map(|(function, _)| function);
    let Some(own) = functions.find(|function| function.names().any(|name| name == "_Unwind_GetGR")) else {
        return 0;
    };
    match plan.records.iter().find(|record| record.entry == own.address) {
        Some(record) => plan.arena.wrapping_add(bias) + u64::from(record.body),
        None => own.address.wrapping_add(bias),
    }
}

/// The order to prepare, as it lies in memory.
fn order_bytes(
    process: &Process,
    folder: &Path,
    name: &str,
    descriptors: [i32; 2],
    detours: &[[u64; 2]],
    get_gr: u64,
) -> Result<Vec<u8>> {
    const WANTED: [u64; 5] = [3, 4, 5, 7, 9];
    let mut bytes = vec![0; size_of::<Order>()];
    let mut put = |offset: usize, word: u64| bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    put(offset_of!(Order, stack), process.stack);
    put(offset_of!(Order, get_gr), get_gr);
    for (n, kind) in WANTED.into_iter().enumerate() {
        put(offset_of!(Order, auxiliary) + 16 * n, kind);
        put(offset_of!(Order, auxiliary) + 16 * n + 8, process.auxiliary(kind));
    }
    for (n, [at, copy]) in detours.iter().enumerate() {
        put(offset_of!(Order, detours) + 16 * n, *at);
        put(offset_of!(Order, detours) + 16 * n + 8, *copy);
    }
    put(offset_of!(Order, detours_count), detours.len() as u64);
    for (n, descriptor) in descriptors.into_iter().enumerate() {
        put(offset_of!(Order, descriptors) + 8 * n, i64::from(descriptor) as u64);
    }
    let place = folder.join(name);
    let place = place.as_os_str().as_bytes();
    put(offset_of!(Order, place_len), place.len() as u64);
    if place.len() > PLACE_MAX {
        bail!("the name of {} is too long", folder.display());
    }
    let at = offset_of!(Order, place);
    bytes[at..at + place.len()].copy_from_slice(place);
    Ok(bytes)
}
