//! Runs a command to its end: its output, its status, and the resources that it used.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub timed_out: bool,
    pub wall: Duration,
    /// The CPU time in user mode of the command and of the children for which it has waited.
    pub user: Duration,
    pub system: Duration,
    /// The largest resident set among them, in bytes.
    pub peak_memory: u64,
}

impl Outcome {
    /// Returns the status as the shell shows it: 128 + N for a death by signal N.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// Runs `command` with `stdin` (or nothing) on its standard input. After `limit` it kills the command with
/// all of its process group, because a profiled program that hangs must not outlive the profiler and use the
/// CPU.
///
/// The output goes through files, so that a grandchild that outlives the command cannot delay this process,
/// and a bench does not share the CPU with a reader.
///
/// # Errors
/// The command cannot be started.
pub fn run(mut command: Command, stdin: Option<&Path>, limit: Duration) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let (out, err) = (folder.path().join("stdout"), folder.path().join("stderr"));
    let input = match stdin {
        Some(path) => Stdio::from(File::open(path).with_context(|| path.display().to_string())?),
        None => Stdio::null(),
    };
    command.stdin(input).stdout(File::create(&out)?).stderr(File::create(&err)?).process_group(0);
    system::with_default_signals(&mut command);

    let started = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let pid = child.id();
    let (done, until_done) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let timed_out = until_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if timed_out {
            // The child is not reaped before this thread has ended, so the group still belongs to it.
            system::kill_group(pid);
        }
        timed_out
    });
    system::wait_for_end(pid)?;
    let wall = started.elapsed();
    drop(done);
    let timed_out = watchdog.join().unwrap_or(true);
    let (status, usage) = system::reap(pid)?;

    Ok(Outcome {
        status: ExitStatus::from_raw(status),
        stdout: std::fs::read(&out)?,
        stderr: std::fs::read(&err)?,
        timed_out,
        wall,
        user: system::duration(usage.ru_utime),
        system: system::duration(usage.ru_stime),
        peak_memory: usage.ru_maxrss as u64 * 1024,
    })
}

/// Starts the command as programs find themselves under valgrind: without a random choice of addresses, on which the number of
/// an allocator's tables may depend, and with the last real-time signal ignored, which valgrind keeps for itself.
pub fn as_under_valgrind(command: &mut Command) {
    system::as_under_valgrind(command);
}

/// Returns the processor time, user and system, of this process, and of the processes that it has started and that have ended.
pub fn processor_time() -> (Duration, Duration) {
    let [own, children] = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(|of| {
        let usage = system::usage(of);
        system::duration(usage.ru_utime) + system::duration(usage.ru_stime)
    });
    (own, children)
}

/// What the standard library does not offer: waiting without reaping, and the resources used.
#[allow(unsafe_code, reason = "system calls, two of them with out-pointers to locals")]
mod system {
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    use anyhow::{Context, Result};

    /// Gives the command default signals. The tests may have been started with some signals ignored (by
    /// nohup, or in a shell's background), which programs would inherit.
    pub(super) fn with_default_signals(command: &mut Command) {
        let reset = || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                // SAFETY: no handler is set.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: it makes only system calls between fork and exec.
        unsafe { command.pre_exec(reset) };
    }

    pub(super) fn as_under_valgrind(command: &mut Command) {
        let prepare = move || {
            // SAFETY: no handler is set.
            unsafe { libc::signal(libc::SIGRTMAX(), libc::SIG_IGN) };
            // SAFETY: it takes no pointers, and concerns the programs that this process will execute.
            unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
            Ok(())
        };
        // SAFETY: it makes only system calls between fork and exec.
        unsafe { command.pre_exec(prepare) };
    }

    pub(super) fn wait_for_end(pid: u32) -> Result<()> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` is a writable siginfo_t for the whole call, and nothing reads it.
        while unsafe { libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), flags) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error).context("waitid");
            }
        }
        Ok(())
    }

    pub(super) fn kill_group(leader: u32) {
        // SAFETY: it takes no pointers. The leader is a child that has not been waited for, so no other
        // process has its number.
        unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
    }

    pub(super) fn reap(pid: u32) -> Result<(i32, libc::rusage)> {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both pointers are to writable local variables of the right type.
        let reaped = unsafe { libc::wait4(pid as i32, &mut status, 0, usage.as_mut_ptr()) };
        if reaped != pid as i32 {
            return Err(io::Error::last_os_error()).context("wait4");
        }
        // SAFETY: rusage consists of plain integers, zeroed above and filled in by the kernel.
        Ok((status, unsafe { usage.assume_init() }))
    }

    pub(super) fn usage(of: libc::c_int) -> libc::rusage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is a writable rusage. The call fails for an unknown `of` only.
        unsafe { libc::getrusage(of, usage.as_mut_ptr()) };
        // SAFETY: rusage is plain integers, zeroed above and filled in by the kernel.
        unsafe { usage.assume_init() }
    }

    pub(super) fn duration(time: libc::timeval) -> Duration {
        Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
    }
}
