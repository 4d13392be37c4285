//! A process that already runs: what it is, and whether gprofinject can attach to it.
#![allow(unsafe_code, reason = "it asks the kernel about a process through libc")]

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use crate::os::proc::{Mapping, Seccomp};
use crate::os::{proc, sys};
use crate::target::permitted;
use crate::target::threads::filters::Filters;
use crate::target::threads::stopped::Stopped;
use crate::target::threads::{helper, tracer};

/// A process that gprofinject may trace.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// The auxiliary vector: types and values.
    pub(crate) auxiliary: Vec<[u64; 2]>,
    /// The address at which the main thread's stack began.
    pub(crate) stack: u64,
    /// The process's start time, in clock ticks since the machine was started. It distinguishes the process
    /// from a later one with the same number.
    pub(crate) started: u64,
    /// Whether the process belongs to another user.
    pub(crate) is_foreign: bool,
    /// What is known of its seccomp filters.
    pub(crate) filters: Filters,
}

const AT_PHDR: u64 = 3;
const AT_BASE: u64 = 7;
const AT_HWCAP2: u64 = 26;
/// A flag of AT_HWCAP2.
const FSGSBASE: u64 = 2;

impl Process {
    /// Opens a process that gprofinject may attach to, and can.
    ///
    /// # Errors
    /// There is no such process, the injector may not trace it, or it is of a kind that cannot be attached
    /// to.
    pub(crate) fn open(pid: i32) -> Result<Process> {
        Process::open_with(pid, |pid| {
            let filters = filters_of(pid)?;
            match permitted::check(pid, &filters) {
                Ok(()) => Ok(filters),
                Err(why) => bail!(
                    "{why}, without which nothing can be hooked; start the program with gprofinject instead"
                ),
            }
        })
    }

    /// Opens a process that this one has started, or one that such a process has.
    ///
    /// # Errors
    /// As for [`Process::open`]. The process must not have entered seccomp itself.
    pub(crate) fn open_started(pid: i32) -> Result<Process> {
        Process::open_with(pid, |pid| match seccomp(pid) {
            Seccomp::Off => Ok(Filters::None),
            Seccomp::Filters if proc::are_filters_own(pid) => Ok(Filters::Own),
            Seccomp::Filters | Seccomp::Strict => {
                bail!("process {pid} has entered seccomp, so it is made to make no system calls any more")
            }
        })
    }

    fn open_with(pid: i32, filters: impl FnOnce(i32) -> Result<Filters>) -> Result<Process> {
        let known = is_there(pid);
        let opened = Process::look(pid).and_then(|process| Ok(Process { filters: filters(pid)?, ..process }));
        opened.map_err(|error| match known && is_soon(|| !is_there(pid)) {
            true => ended(pid),
            false => error,
        })
    }

    fn look(pid: i32) -> Result<Process> {
        if pid <= 0 {
            bail!("{pid} is no process number");
        }
        // A helper of another gprofinject, which may have been killed, may be at work and trace the process.
        let _lock = helper::lock(pid)?;
        let visible = proc::visible_thread(pid);
        let Ok(status) = proc::Status::of(visible) else {
            bail!("there is no process {pid}{}", elsewhere(pid));
        };
        let field = |name: &str| status.field(name).unwrap_or_default();
        if field("Tgid") != pid.to_string() {
            bail!("{pid} is a thread of process {}; attach to that", field("Tgid"));
        }
        match field("State").chars().next() {
            Some('Z' | 'X') => bail!("process {pid} has ended (a zombie: its parent has not noticed yet)"),
            Some('T') => bail!("process {pid} is stopped; continue it first: kill -CONT {pid}"),
            _ => {}
        }
        if pid == std::process::id() as i32 {
            bail!("{pid} is gprofinject itself");
        }
        match field("TracerPid") {
            "0" => {}
            tracer => {
                let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
                bail!(
                    "process {pid} is traced already, by {} (process {tracer}); end that first",
                    name.trim_end()
                );
            }
        }
        let user = field("Uid").split_whitespace().next().and_then(|id| id.parse::<u32>().ok());
        let own = sys::ids().euid;
        if own != 0 && user != Some(own) {
            bail!(
                "process {pid} is another user's ({}); run gprofinject as that user, or as root",
                user.unwrap_or_default()
            );
        }
        if let Ok(parent) = field("PPid").parse()
            && sys::share_memory(pid, parent)
        {
            bail!(
                "process {pid} has its memory from process {parent}, which waits for it (vfork): attach to that, or to this \
                 one when it has executed its program"
            );
        }
        /// A thread of the kernel (include/linux/sched.h).
        const PF_KTHREAD: u64 = 0x0020_0000;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The second field is a name in parentheses, which may contain any bytes.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let number = |field: usize| {
            rest.split_whitespace().nth(field - 3).and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        if field("VmSize").is_empty() {
            match number(9) & PF_KTHREAD {
                0 => bail!("process {pid} has ended"),
                _ => bail!("{pid} is a process of the kernel"),
            }
        }
        let Ok(auxiliary) = proc::auxiliary(pid) else {
            bail!("process {pid} cannot be examined; run gprofinject as its user, or as root");
        };
        let (stack, started, is_foreign) = (number(28), number(22), user != Some(own));
        Ok(Process { pid, auxiliary, stack, started, is_foreign, filters: Filters::None })
    }

    /// The path of the kernel's link to the file that the process executes.
    pub(crate) fn binary(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/exe", proc::visible_thread(self.pid)))
    }

    /// Returns a value of the auxiliary vector, or 0 if there is none of this type.
    pub(crate) fn auxiliary(&self, kind: u64) -> u64 {
        self.auxiliary.iter().find(|[k, _]| *k == kind).map_or(0, |[_, value]| *value)
    }

    /// The runtime address of the program headers.
    pub(crate) fn program_headers(&self) -> u64 {
        self.auxiliary(AT_PHDR)
    }

    /// The runtime address of the dynamic linker, or 0 if the process has none.
    pub(crate) fn dynamic_linker(&self) -> u64 {
        self.auxiliary(AT_BASE)
    }

    /// Whether the processor lets programs set the base of gs without a system call.
    pub(crate) fn has_fsgsbase(&self) -> bool {
        self.auxiliary(AT_HWCAP2) & FSGSBASE != 0
    }

    /// Reads the process's mappings.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn mappings(&self) -> io::Result<Vec<Mapping>> {
        proc::mappings(self.pid)
    }

    /// Whether the process executes another program than when it was opened.
    pub(crate) fn executes_another(&self) -> bool {
        proc::auxiliary(self.pid).is_ok_and(|now| now != self.auxiliary)
    }

    /// Returns the error of a step before anything of the process was profiled: that it has ended, if it has, or is about to.
    pub(crate) fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        if self.ends() { ended(self.pid) } else { error }
    }

    /// Whether the process has ended, or ends in the next moment.
    pub(crate) fn ends(&self) -> bool {
        is_soon(|| !self.lives())
    }

    /// Whether the process still runs and is the one that was opened.
    pub(crate) fn lives(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = fields.next();
        let started = fields.nth(22 - 4).and_then(|text| text.parse::<u64>().ok());
        // The 23rd field is the length of the memory, which is gone before the rest of a process.
        let is_over = matches!(state, Some("Z" | "X")) || fields.next() == Some("0");
        let has_ended = is_over && proc::visible_thread(self.pid) == self.pid;
        !has_ended && started == Some(self.started)
    }
}

/// Returns whether something is so, or becomes so in the next moment. A process loses its memory and its threads before it has ended, and what
/// is done with it fails meanwhile in other ways than afterwards.
fn is_soon(is: impl Fn() -> bool) -> bool {
    const TIMES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(5);
    (0..TIMES).any(|_| {
        is() || {
            thread::sleep(PAUSE);
            false
        }
    }) || is()
}

/// Returns the number that a process has here, which the user may have given as its container sees it; and then what to say about that.
pub(crate) fn named_here(number: i32) -> (i32, Option<String>) {
    if number <= 0 || is_there(number) {
        return (number, None);
    }
    match proc::with_number_inside(number)[..] {
        [pid] => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let said = format!("process {number} of a container is process {pid} ({}) here", name.trim_end());
            (pid, Some(said))
        }
        // An error says which these are.
        _ => (number, None),
    }
}

/// Says which processes of containers have a number that no process has here.
fn elsewhere(number: i32) -> String {
    /// With more, the number says nothing.
    const MOST: usize = 3;
    let there = proc::with_number_inside(number);
    if there.is_empty() {
        return " (is it in a container, with other numbers?)".to_owned();
    }
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let shown = |&pid: &i32| format!("{pid} ({})", name(pid).trim_end());
    let some: Vec<String> = there.iter().take(MOST).map(shown).collect();
    let more = if there.len() > MOST { " and others" } else { "" };
    let which = if there.len() == 1 {
        "in a container, this is process"
    } else {
        "in containers, these are processes"
    };
    format!(" here; {which} {}{more}", some.join(", "))
}

/// Returns the strongest restriction by seccomp that a thread of a process is under.
fn seccomp(pid: i32) -> Seccomp {
    let modes =
        || proc::thread_ids(pid).unwrap_or_default().into_iter().filter_map(|tid| proc::seccomp(pid, tid));
    let has = |mode: Seccomp| modes().any(|of_thread| of_thread == mode);
    [Seccomp::Strict, Seccomp::Filters].into_iter().find(|&mode| has(mode)).unwrap_or(Seccomp::Off)
}

/// Reads the seccomp filters of a process, all of whose threads are stopped for that if there are filters.
///
/// # Errors
/// They cannot be read. The error says what to do.
fn filters_of(pid: i32) -> Result<Filters> {
    match seccomp(pid) {
        Seccomp::Off => return Ok(Filters::None),
        Seccomp::Strict => {
            bail!("process {pid} is in seccomp's strict mode, in which it can do nothing for gprofinject")
        }
        Seccomp::Filters => {}
    }
    let read = helper::carry_out(pid, None, |_| {
        tracer::apart(pid, |tracer| {
            let filters = Stopped::all(pid, tracer).and_then(|stopped| stopped.filters());
            filters.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
        })
    })?;
    read.map_err(|errno| match errno {
        libc::EACCES => anyhow!(
            "process {pid} runs under a seccomp filter, which only root outside of all containers can read: run gprofinject --pid \
             there, with the number that the process has there, or start the program with gprofinject"
        ),
        libc::EOPNOTSUPP => anyhow!(
            "process {pid} runs under a seccomp filter, and this kernel does not let it be read (CONFIG_CHECKPOINT_RESTORE); start the \
             program with gprofinject instead"
        ),
        libc::E2BIG => anyhow!(
            "process {pid} runs under more seccomp filters than gprofinject evaluates; start the program with gprofinject instead"
        ),
        errno => anyhow!(refusal(pid, &io::Error::from_raw_os_error(errno))),
    })
}

/// The error of an attempt to profile a process that has ended.
fn ended(pid: i32) -> anyhow::Error {
    anyhow!("process {pid} has ended; nothing was profiled")
}

/// Whether there is a process with this number, which may have ended without its parent's having noticed.
fn is_there(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}/stat")).unwrap_or(false)
}

/// Says in words why the kernel has refused ptrace.
pub(crate) fn refusal(pid: i32, error: &io::Error) -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    refusal_with(pid, error, &scope)
}

/// The same for a given value of kernel.yama.ptrace_scope, which is empty if the kernel does not have it.
fn refusal_with(pid: i32, error: &io::Error, scope: &str) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match scope.trim() {
            "1" | "2" => format!(
                "the kernel does not let us attach to process {pid} (kernel.yama.ptrace_scope is {}): run \
                     gprofinject as root, or set it to 0",
                scope.trim()
            ),
            "3" => "the kernel lets nobody attach to processes (kernel.yama.ptrace_scope is 3)".to_owned(),
            _ => format!(
                "the kernel does not let us attach to process {pid}: it has gained privileges, or is \
                     traced, or this is a container without CAP_SYS_PTRACE (docker run --cap-add=SYS_PTRACE)"
            ),
        },
        Some(libc::ESRCH) => format!("process {pid} has ended"),
        Some(libc::ETIMEDOUT) => format!(
            "a thread of process {pid} could not be stopped: it waits in the kernel (for a disk, or for a child \
             made by vfork), or is frozen; try again"
        ),
        _ => format!("cannot attach to process {pid}: {}", sys::reason(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        for (errno, scope, says) in [
            (libc::EPERM, "1\n", &["ptrace_scope is 1", "as root", "set it to 0"][..]),
            (libc::EPERM, "2\n", &["ptrace_scope is 2", "as root"]),
            (libc::EPERM, "3\n", &["lets nobody attach", "ptrace_scope is 3"]),
            (libc::EPERM, "0\n", &["gained privileges", "--cap-add=SYS_PTRACE"]),
            (libc::EACCES, "", &["gained privileges", "--cap-add=SYS_PTRACE"]),
            (libc::ESRCH, "1\n", &["process 42 has ended"]),
            (libc::ETIMEDOUT, "", &["waits in the kernel", "try again"]),
            (libc::EIO, "", &["cannot attach to process 42: Input/output error"]),
        ] {
            let said = refusal_with(42, &io::Error::from_raw_os_error(errno), scope);
            for part in says {
                assert!(said.contains(part), "{errno} {scope:?}: {said}");
            }
        }
    }

    #[test]
    fn what_is_no_process_is_said() {
        for pid in [0, -1, i32::MAX, std::process::id() as i32] {
            assert!(Process::open(pid).is_err(), "{pid}");
        }
    }
}
