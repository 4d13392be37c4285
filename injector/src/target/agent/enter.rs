//! Entering a process: one borrowed thread maps the agent there and runs the agent's preparation.

use std::fs::File;
use std::io::{self, Error};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::attach::{CONTROL, Command, DETOURS_MAX, NOTICE_LEN, Order};
use gprofinject_abi::plan::Patch;
use gprofinject_abi::region::PAGE;
use gprofinject_abi::{AGENT_FILE, REGION_SUFFIX};
use gprofinject_plan::Plan;
use zerocopy::{IntoBytes, transmute};

use crate::os::proc::Mapping;
use crate::os::{proc, sys};
use crate::program::planned::Planned;
use crate::store::private_folder::PrivateFolder;
use crate::store::run_folder::plan_file;
use crate::target::agent::attachment::{Attachment, Detoured, Guest, Image, Landing, Stage};
use crate::target::agent::detours::{self, COPY, Found};
use crate::target::agent::go::Go;
use crate::target::agent::handover;
use crate::target::agent::image::Agent;
use crate::target::agent::libraries::Wanted;
use crate::target::agent::order::preparation;
use crate::target::agent::room::{self, code_len, find_syscall, gap, libc_code};
use crate::target::agent::unwinder::{get_gr, unwinder};
use crate::target::named;
use crate::target::permitted;
use crate::target::process::{Process, refusal};
use crate::target::threads::borrowed::Fault;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::tracer;

/// The size in bytes of the stack on which the agent carries out orders.
const STACK: u64 = 64 << 10;
const COPIES: u64 = (DETOURS_MAX as u64 * COPY).next_multiple_of(PAGE);
/// How often the agent's preparation is tried if it fails by a fault, and the pause between two tries.
const TRIES: usize = 5;
const FAULT_PAUSE: Duration = Duration::from_millis(5);
const ORDER: u64 = (size_of::<Order>() as u64).next_multiple_of(PAGE);

impl Attachment {
    /// Returns the agent in a process that gprofinject has started with it, after a stack for orders has been
    /// mapped there. `name` is the name of the process's files in the folder.
    ///
    /// # Errors
    /// The process cannot be stopped, or has executed another program.
    pub(crate) fn started(
        process: &Process,
        plan: &Plan,
        (folder, name): (&PrivateFolder, &str),
    ) -> Result<Attachment> {
        let pid = process.pid;
        let memory = Memory::open(pid).map_err(|error| anyhow!(refusal(pid, &error)))?;
        let mappings = process.mappings()?;
        let agent = Agent::read(plan.role.is_standalone())?;
        let library = match plan.role.is_standalone() {
            true => placed_library(&mappings, &memory, &agent),
            false => loaded_library(&mappings, &folder.path().join(AGENT_FILE).to_string_lossy()),
        };
        let Range { start: base, end } = library.context("the process executes another program now")?;
        let instruction = instruction(process, plan, &[], &mappings, &memory)?;
        let entry = base + agent.function(CONTROL).context("the agent library is damaged")?;
        let mut attachment = Attachment::outside(process, plan, (folder, name), instruction);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let arguments = [0, ORDER + STACK, protection as u64, flags as u64, u64::MAX, 0];
        let order = attachment.order(|attachment, _| {
            tracer::apart(pid, |tracer| {
                let mut stopped = attachment.one(tracer)?;
                attachment.check_library(base)?;
                stopped
                    .call(attachment.instruction, libc::SYS_mmap, arguments)
                    .map_err(|error| anyhow!("no memory could be mapped: {}", sys::reason(&error)))
            })
        })?;
        let image = Image {
            memory: base..end,
            code: base + agent.code.0..base + agent.code.1,
            order,
            stack: order + ORDER + STACK,
            entry,
        };
        attachment.stage = Stage::Started { image, is_paused: false };
        Ok(attachment)
    }

    /// Maps the agent and makes it prepare. Only one thread is stopped, for a few milliseconds. Returns
    /// `None` if another gprofinject has come first.
    ///
    /// # Errors
    /// The agent cannot be put into this process, or not now. Nothing is left there.
    pub(crate) fn prepare(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        files: (&PrivateFolder, &str),
        wanted: &[Wanted],
    ) -> Result<Option<Attachment>> {
        let prepared = Attachment::prepare_this(process, planned, plan, files, wanted);
        // This is the reason for whatever failed.
        prepared.map_err(|error| match process.executes_another() {
            true => anyhow!("process {} executes another program now; try again", process.pid),
            false => error,
        })
    }

    fn prepare_this(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        (folder, name): (&PrivateFolder, &str),
        wanted: &[Wanted],
    ) -> Result<Option<Attachment>> {
        let pid = process.pid;
        let memory = Memory::open(pid).map_err(|error| anyhow!(refusal(pid, &error)))?;
        let is_standalone = plan.role.is_standalone();
        let mappings = if is_standalone { process.mappings()? } else { detours::loaded(&memory, process)? };
        let agent = Agent::read(is_standalone)?;
        if is_standalone && !process.has_fsgsbase() && !permitted::may_set_gs(&process.filters) {
            bail!(
                "a seccomp filter of process {pid} does not allow arch_prctl, by which hooks in a static program find the data of a \
                 thread on this processor"
            );
        }
        // The plan of a standalone program leads its own functions to the agent.
        let found = if is_standalone { Vec::new() } else { detours::find(&memory, process, &mappings) };
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let instruction = instruction(process, plan, wanted, &mappings, &memory)?;
        // The plan may lead system calls of a program with a C library as well to the agent.
        let image = planned.subject.image();
        let calls = image.map_or(Vec::new(), |image| plan.after_system_calls(image));
        let arena = plan.arena.wrapping_add(bias);
        let calls = calls.into_iter().map(|(from, to)| (arena + u64::from(from), to.wrapping_add(bias)));
        let mut attachment = Attachment {
            unwinder: unwinder(planned, bias),
            calls: calls.collect(),
            go: Go::of(planned.subject.image(), bias),
            ..Attachment::outside(process, plan, (folder, name), instruction)
        };
        let get_gr = get_gr(planned, plan, bias, arena);
        // The agent is near the libraries, so that they can be hooked.
        let near = match planned.subject.kind.is_musl() {
            true => process.dynamic_linker(),
            false => libc_code(&mappings).map_or(process.program_headers(), |libc| libc.lo),
        };
        let is_first = attachment.order(|attachment, client| {
            if !named::folders(pid)?.is_empty() {
                return Ok(false);
            }
            let prepare = |attachment: &mut Attachment| {
                tracer::apart(pid, |tracer| {
                    let memory = Memory::open(pid)?;
                    let mut stopped = attachment.one(tracer)?;
                    attachment.check_gs(&stopped)?;
                    let prepared = attachment.map(&mut stopped, &memory, &agent, near).and_then(|()| {
                        // The process opens the files by their names if the kernel cannot copy descriptors.
                        let given = attachment.give_files(&mut stopped, &memory, folder, name);
                        let given = given.ok().and_then(|given| given.try_into().ok()).unwrap_or([-1; 2]);
                        let order = |pairs: &[[u64; 2]]| {
                            preparation(process, folder.path(), name, given, pairs, get_gr)
                        };
                        attachment.prepare_stopped(&mut stopped, &memory, &agent, &found, order)
                    });
                    if prepared.is_err() || !client.is_there() {
                        let _ = attachment.unmap(&mut stopped, &memory);
                    }
                    prepared.map(|()| true)
                })
            };
            for _ in 1..TRIES {
                match prepare(attachment) {
                    Err(error) if is_fault(&error) => {
                        // What was mapped is unmapped again.
                        attachment.stage = Stage::Outside;
                        std::thread::sleep(FAULT_PAUSE);
                    }
                    done => return done,
                }
            }
            prepare(attachment)
        })?;
        Ok(is_first.then_some(attachment))
    }

    /// Opens the region file and the plan file in the process. Returns their descriptors there.
    fn give_files(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        folder: &PrivateFolder,
        name: &str,
    ) -> io::Result<Vec<i32>> {
        let region = folder.open_to_write(&format!("{name}{REGION_SUFFIX}"))?;
        let plan = folder.open_file(&plan_file(name))?;
        self.give(stopped, memory, &[&region, &plan])
    }

    /// Passes files, two at most, to the process. Returns their descriptors there.
    ///
    /// # Errors
    /// The process has no room for more descriptors, or may not make the system calls.
    pub(super) fn give(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &[&File],
    ) -> io::Result<Vec<i32>> {
        let image = self.image().ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
        let scratch = image.stack - STACK;
        handover::give(stopped, memory, self.instruction, scratch, files)
    }

    fn prepare_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        agent: &Agent,
        found: &[Found],
        order: impl Fn(&[[u64; 2]]) -> Result<Order>,
    ) -> Result<()> {
        let Stage::Mapped { image, .. } = &self.stage else { bail!("the agent is not mapped") };
        let image = image.clone();
        let (base, copies) = (image.memory.start, image.memory.start + agent.len());
        let planned = detours::plan(found, agent, base, copies)
            .map_err(|name| anyhow!("the library function {name} cannot be redirected to the agent"))?;
        for planned in &planned {
            memory.write(planned.copy, &planned.detour.original)?;
        }
        let pairs: Vec<[u64; 2]> = planned.iter().map(|p| [p.at, p.copy]).collect();
        memory.write(image.order, order(&pairs)?.as_bytes())?;
        let detoured =
            |p: detours::Planned| Detoured { at: p.at, before: p.before, after: p.detour.replacement };
        let detours: Vec<Detoured> = planned.into_iter().map(detoured).collect();
        self.stage = Stage::Mapped { image: image.clone(), detours: detours.clone(), mapped: None };
        // The process learns of the run folder in the next step.
        self.save().context("the run folder cannot be written to")?;
        let pid = self.pid;
        let refused = |error: Error| match error.raw_os_error() {
            Some(libc::EMFILE) => anyhow!(
                "process {pid} may open no more files (its ulimit -n); raise that: prlimit --pid {pid} --nofile=1024"
            ),
            _ => anyhow::Error::new(error).context("the agent could not be prepared"),
        };
        let prepared = self.command(stopped, memory, Command::Prepare);
        let order: Order = memory.record(image.order)?;
        let mapped = order.mapped;
        // If the agent has failed, this memory has to be unmapped.
        self.stage = Stage::Mapped { image: image.clone(), detours: detours.clone(), mapped: Some(mapped) };
        prepared.map_err(refused)?;
        let (words, shadows) = (transmute!(order.words), Some(order.shadows).filter(|table| *table != 0));
        let mut detours = detours;
        detours.extend(notice(&order, memory));
        let [word, start, end] = order.waiting;
        let landing = (word != 0).then_some(Landing { word, code: start..end });
        let [start, end] = order.records;
        let guest = Guest { image, detours, words, shadows, mapped, records: start..end, landing };
        // The process can write to the order as well.
        guest.check().context("the process has changed the answer of the agent")?;
        self.stage = Stage::Prepared(guest);
        Ok(())
    }

    /// Maps memory near the C library's code and writes the agent there. The other threads run and may map
    /// memory too: if one of them has taken the place, another is chosen.
    fn map(&mut self, stopped: &mut Stopped, memory: &Memory, agent: &Agent, near: u64) -> Result<()> {
        const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        const TRIES: usize = 50;
        const NO_ROOM: &str = "no addresses are free within 2 GiB of the C library's code, from where it could lead to the agent: the \
                               process has mapped all of them";
        // The address is a hint, which the kernel follows where it is free. Filters may refuse MAP_FIXED_NOREPLACE.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = agent.len() + COPIES + ORDER + STACK;
        let control = agent.function(CONTROL).context("the agent library is damaged")?;
        let mut failure = Error::from_raw_os_error(libc::EEXIST);
        let mut found = None;
        for _ in 0..TRIES {
            let mappings = proc::mappings(self.pid)?;
            let base = gap(&mappings, near, len).context(NO_ROOM)?;
            let arguments = [base, len, READ_WRITE, flags as u64, u64::MAX, 0];
            match stopped.call(self.instruction, libc::SYS_mmap, arguments) {
                Ok(made) if made == base => {
                    found = Some(base);
                    break;
                }
                Ok(made) => {
                    stopped.call(self.instruction, libc::SYS_munmap, [made, len, 0, 0, 0, 0])?;
                }
                Err(error) => {
                    failure = error;
                    break;
                }
            }
        }
        let Some(base) = found else {
            let limit = match failure.raw_os_error() {
                Some(libc::ENOMEM) => " (its ulimit -v or -d, or the machine's memory, is used up)",
                _ => "",
            };
            bail!("no memory could be mapped near the C library's code: {}{limit}", sys::reason(&failure));
        };
        let order = base + agent.len() + COPIES;
        let image = Image {
            memory: base..base + len,
            code: base + agent.code.0..base + agent.code.1,
            order,
            stack: order + ORDER + STACK,
            entry: base + control,
        };
        let code = (image.code.start, image.code.end - image.code.start);
        self.stage = Stage::Mapped { image, detours: Vec::new(), mapped: None };
        memory.write(base, &agent.at(base))?;
        for (at, len) in [code, (order - COPIES, COPIES)] {
            stopped.call(self.instruction, libc::SYS_mprotect, [at, len, READ_EXECUTE, 0, 0, 0]).map_err(
                |error| {
                    anyhow!(
                        "process {} may not make memory executable: {} (systemd's MemoryDenyWriteExecute, SELinux); \
                         start it without that",
                        self.pid,
                        sys::reason(&error)
                    )
                },
            )?;
        }
        Ok(())
    }
}

/// Returns the address of a `syscall` instruction in the process that stays as it is. `wanted` are the libraries that will be
/// hooked.
fn instruction(
    process: &Process,
    plan: &Plan,
    wanted: &[Wanted],
    mappings: &[Mapping],
    memory: &Memory,
) -> Result<u64> {
    let pid = process.pid;
    if plan.role.is_standalone() {
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let libraries = wanted
            .iter()
            .filter_map(|wanted| Some((wanted.library.planned.plan.as_ref()?, wanted.order.start)));
        let plans: Vec<(&Plan, u64)> = libraries.chain([(plan, bias)]).collect();
        let stays = |at: u64| {
            plans.iter().all(|(plan, bias)| {
                let (lo, hi) = (at.wrapping_sub(*bias), at.wrapping_sub(*bias).wrapping_add(2));
                let is_apart =
                    |patch: &Patch| patch.address >= hi || patch.address + u64::from(patch.len) <= lo;
                plan.patches().iter().all(is_apart)
            })
        };
        return room::instruction(pid, memory, stays).context("the program makes no system calls");
    }
    let libc = libc_code(mappings).with_context(|| {
        format!("process {pid} has not loaded glibc, which the agent needs; if it only begins, try again")
    })?;
    let code = memory.bytes(libc.lo, code_len(libc))?;
    Ok(libc.lo + find_syscall(&code).context("the C library makes no system calls")?)
}

/// Returns where the dynamic linker has loaded the agent library, whose file is `own`.
fn loaded_library(mappings: &[Mapping], own: &str) -> Option<Range<u64>> {
    let library = || mappings.iter().filter(|mapping| mapping.named() == own);
    Some(library().next()?.lo..library().map(|mapping| mapping.hi).max()?)
}

/// Returns where an usher has placed the agent library in a standalone program. It is in memory without a file.
fn placed_library(mappings: &[Mapping], memory: &Memory, agent: &Agent) -> Option<Range<u64>> {
    let mut places = mappings.iter().filter(|mapping| mapping.executable && mapping.path.is_empty());
    places.find_map(|mapping| {
        let base = mapping.lo.checked_sub(agent.code.0)?;
        let code = agent.code_at(base);
        (memory.bytes(mapping.lo, code.len()).ok()? == code).then_some(base..base + agent.len())
    })
}

/// Whether the agent's code has caused a fault. To find functions, the agent walks the dynamic linker's lists, in which
/// another thread may just be unloading a library.
fn is_fault(error: &anyhow::Error) -> bool {
    let error = error.root_cause().downcast_ref::<Error>().and_then(Error::get_ref);
    error.is_some_and(|error| error.is::<Fault>())
}

/// Returns the redirection of the empty function by which the dynamic linker tells of libraries, if the agent can hook
/// those.
fn notice(order: &Order, memory: &Memory) -> Option<Detoured> {
    let [at, jump] = order.notice;
    let before = memory.bytes(at, NOTICE_LEN).ok().filter(|_| at != 0)?;
    Some(Detoured { at, before, after: jump.to_le_bytes().get(..NOTICE_LEN)?.to_vec() })
}
