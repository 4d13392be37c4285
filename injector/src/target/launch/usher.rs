//! Puts the agent into a standalone program: a program that no dynamic linker of glibc loads, so that LD_PRELOAD has no
//! effect on it.
//!
//! An *usher* traces the process while it executes the program. At the program's first instruction it maps memory, writes
//! the agent's library there, and makes the thread begin in the library, which carries out the plan and continues at the
//! first instruction. From then on nobody traces the process. The usher is a process of its own, so that it finishes what
//! it has begun even if the injector is killed; or a thread, where only ancestors of a process may trace it.
#![allow(unsafe_code, reason = "it forks the usher")]

use std::fs::File;
use std::io::{Error, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::attach::{BEGIN, Beginning};
use gprofinject_abi::region::PAGE;
use gprofinject_plan::Plan;
use zerocopy::{FromZeros, IntoBytes};

use crate::os::beside;
use crate::os::sys::{self, check};
use crate::store::run_folder::RunFolder;
use crate::target::agent::image::Agent;
use crate::target::agent::room;
use crate::target::threads::helper::must_be_ancestors;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;

/// How long a process may take from its announcement to the execution of the program. After that it is left alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a standalone program needs to be hooked.
#[derive(Clone)]
pub(crate) struct Entrance {
    /// The process's place in the run folder.
    place: PathBuf,
    /// Link address of the program headers.
    headers: u64,
    /// Link addresses of the arena, which the agent will map.
    arena: Range<u64>,
}

impl Entrance {
    /// Returns what a program with this plan needs, whose files in the run folder have the name `name`.
    pub(crate) fn new(plan: &Plan, folder: &RunFolder, name: &str) -> Entrance {
        let arena = plan.arena..plan.arena.wrapping_add(plan.arena_len);
        Entrance { place: folder.path().join(name), headers: plan.phdr(), arena }
    }
}

/// What the usher has to say in the end, which the injector reads.
pub(crate) struct Usher {
    report: File,
}

/// Has the agent put into the program that a process executes next. The process already waits to execute it. When this
/// returns, the process is traced, and may go on.
///
/// # Errors
/// The process cannot be traced.
pub(crate) fn attend(pid: i32, entrance: &Entrance) -> Result<Usher> {
    let (ours, mut report) = {
        let (read, write) = sys::pipe().context("no pipe can be made")?;
        (File::from(read), File::from(write))
    };
    let entrance = entrance.clone();
    if must_be_ancestors() {
        let work = move || serve(pid, &entrance, &mut report);
        std::thread::Builder::new().spawn(work).context("no thread can be created")?;
    } else {
        let _turn = beside::turn();
        // SAFETY: the child uses copies of the parent's values, and ends without dropping those that it does not own.
        match check(unsafe { libc::fork() }).context("no process can be created")? {
            0 => {
                detach_from_injector(report.as_raw_fd());
                serve(pid, &entrance, &mut report);
                // SAFETY: this ends this process only.
                unsafe { libc::_exit(0) }
            }
            _ => drop(report),
        }
    }
    let mut usher = Usher { report: ours };
    // The first byte says that the process is traced.
    let mut traced = [0];
    match usher.report.read(&mut traced) {
        Ok(1) if traced == [READY] => Ok(usher),
        read => {
            let rest = usher.finish().unwrap_or_default();
            // The byte is then the first one of the reason.
            let reason =
                if read.is_ok_and(|len| len == 1) { char::from(traced[0]).to_string() + &rest } else { rest };
            bail!(if reason.is_empty() { "it cannot be traced".to_owned() } else { reason })
        }
    }
}

/// The first byte of a report, if the process is traced.
const READY: u8 = b'+';

impl Usher {
    /// Waits for the end of the usher. Returns why the agent was not put into the program, if it was not.
    pub(crate) fn finish(mut self) -> Option<String> {
        let mut text = String::new();
        let read = self.report.read_to_string(&mut text);
        read.is_ok().then_some(text).filter(|text| !text.is_empty())
    }
}

/// Gives up everything that the process has from the injector, except the pipe.
fn detach_from_injector(pipe: i32) {
    // SAFETY: these are descriptors of a forked process, and no owner of one of them is used or dropped. The set of
    // signals is a local variable.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::setsid();
        let pipe = pipe as libc::c_uint;
        if pipe > 0 {
            sys::close_range(0, pipe - 1);
        }
        sys::close_range(pipe + 1, libc::c_uint::MAX);
    }
}

fn serve(pid: i32, entrance: &Entrance, report: &mut File) {
    let done = Stopped::about_to_execute(pid).map_err(|error| {
        anyhow!("process {pid} cannot be traced, so the agent cannot be put into it: {}", sys::reason(&error))
    });
    let done = done.and_then(|traced| {
        let _ = report.write_all(&[READY]);
        let Some(mut stopped) = traced.executed(Instant::now() + PATIENCE)? else { return Ok(()) };
        let entered = enter(&mut stopped, entrance);
        stopped.release()?;
        entered
    });
    if let Err(error) = done {
        let _ = report.write_all(sys::plain(&format!("{error:#}")).as_bytes());
    }
}

/// Puts the agent into a process whose only thread stands before the program's first instruction.
fn enter(stopped: &mut Stopped, entrance: &Entrance) -> Result<()> {
    const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let pid = stopped.pid;
    let memory = Memory::open(pid).context("its memory cannot be written to")?;
    let agent = Agent::read(true)?;
    let begin = agent.function(BEGIN).context("the agent library is damaged")?;
    let instruction = room::instruction(pid, &memory, |_| true).context("it makes no system calls")?;
    let record_len = (size_of::<Beginning>() as u64).next_multiple_of(PAGE);
    reserve_arena(stopped, instruction, entrance)?;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let arguments = [0, agent.len() + record_len, READ_WRITE, flags, u64::MAX, 0];
    let base = stopped.call(instruction, libc::SYS_mmap, arguments).context("no memory could be mapped")?;
    let record = base + agent.len();
    let thread = stopped.threads.first_mut().ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
    let mut beginning = Beginning { entry: thread.registers.rip, ..Beginning::new_zeroed() };
    let place = entrance.place.as_os_str().as_bytes();
    beginning
        .place
        .get_mut(..place.len())
        .context("the name of the run folder is too long")?
        .copy_from_slice(place);
    beginning.place_len = place.len() as u64;
    memory.write(base, &agent.at(base))?;
    memory.write(record, beginning.as_bytes())?;
    let code = [base + agent.code.0, agent.code.1 - agent.code.0, READ_EXECUTE, 0, 0, 0];
    stopped.call(instruction, libc::SYS_mprotect, code).map_err(|error| {
        anyhow!(
            "it may not make memory executable: {} (systemd's MemoryDenyWriteExecute, SELinux)",
            sys::reason(&error)
        )
    })?;
    let thread = stopped.threads.first_mut().ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
    thread.begin_at(base + begin, record);
    Ok(())
}

/// Reserves the arena's place, before the kernel chooses it for something else: a static position-independent program
/// lies where the kernel maps memory.
fn reserve_arena(stopped: &mut Stopped, instruction: u64, entrance: &Entrance) -> Result<()> {
    const AT_PHDR: u64 = 3;
    let headers = stopped.auxiliary.iter().find(|[kind, _]| *kind == AT_PHDR);
    let headers = headers.context("it has no program headers")?[1];
    let bias = headers.wrapping_sub(entrance.headers);
    let at = entrance.arena.start.wrapping_add(bias);
    let len = entrance.arena.end.wrapping_sub(entrance.arena.start);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let arguments = [at, len, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    match stopped.call(instruction, libc::SYS_mmap, arguments) {
        Ok(made) if made == at => Ok(()),
        // Kernels before 4.17 treat the address as a hint. What they have mapped stays, and is never used.
        Ok(_) => bail!("there is no room for the thunks near the program's code"),
        Err(error) => {
            bail!("there is no room for the thunks near the program's code: {}", sys::reason(&error))
        }
    }
}
