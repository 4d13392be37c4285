//! A process that watches a helper. It kills a helper that does not end by itself. If a helper is killed, it
//! restores the priorities of the threads that the helper was stopping.
//!
//! The guard is the helper's child. It waits until the other end of a pipe is closed and does nothing else.
//! The kernel has no priority that ends with the process that has given it, so another process has to take it
//! back.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::os::scheduling;
use crate::os::sys::{self, check};
use crate::target::threads::deadline;
use crate::target::threads::urgency;

/// The guard, as the helper sees it. The guard ends when this is dropped.
pub(super) struct Guard {
    pid: i32,
    /// The helper's end of the pipe. The kernel closes it if the helper is killed.
    alive: Option<OwnedFd>,
}

impl Guard {
    /// Forks the guard. Returns `None` if no process or no descriptor is available.
    pub(super) fn start(target: i32) -> Option<Guard> {
        let (ends, alive) = sys::pipe().ok()?;
        // SAFETY: the call has no arguments.
        let helper = unsafe { libc::getpid() };
        // SAFETY: the helper has one thread. The child runs only `watch`, which does not return.
        match check(unsafe { libc::fork() }).ok()? {
            0 => {
                drop(alive);
                watch(&ends, helper, target)
            }
            pid => Some(Guard { pid, alive: Some(alive) }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.alive = None;
        // SAFETY: no status is asked for, and the process is a child of this one.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The main function of the guard.
fn watch(ends: &OwnedFd, helper: i32, target: i32) -> ! {
    // SAFETY: the arguments are numbers, and a name that the kernel copies. Only the pipe is used from here
    // on.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-guard".as_ptr());
        let pipe = ends.as_raw_fd() as libc::c_uint;
        if pipe > 3 {
            sys::close_range(3, pipe - 1);
        }
        sys::close_range(pipe + 1, libc::c_uint::MAX);
    }
    // The guard has to run even if threads with such a priority leave no processor to others.
    urgency::hurry();
    let until = Instant::now() + deadline::LAST;
    let mut left = deadline::LAST;
    while !left.is_zero() && !sys::wait_readable(&[ends.as_raw_fd()], Some(left)) {
        left = until.saturating_duration_since(Instant::now());
    }
    if left.is_zero() {
        // SAFETY: the call takes numbers only. The number is the helper's as long as the other end of the
        // pipe is open.
        unsafe { libc::kill(helper, libc::SIGKILL) };
        sys::wait_readable(&[ends.as_raw_fd()], Some(Duration::from_secs(5)));
    }
    urgency::take_back(target);
    // SAFETY: this ends this process only.
    unsafe { libc::_exit(0) }
}

/// Makes a helper that never sleeps lose its realtime priority; otherwise nothing else would run on its
/// processor. The kernel sends SIGXCPU to a thread that has run for too long with a realtime priority.
pub(super) fn limit_realtime() {
    const SECONDS: libc::rlim_t = 1_000_000;
    extern "C" fn slow_down(_: libc::c_int) {
        // If it fails, the kernel sends the signal again.
        let _ = scheduling::set(0, libc::SCHED_OTHER, 0);
    }
    let limit = libc::rlimit { rlim_cur: SECONDS, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structures are valid for the calls, and the handler is safe to run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = slow_down as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGXCPU, &action, std::ptr::null_mut());
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, libc::SIGXCPU);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
        libc::setrlimit(libc::RLIMIT_RTTIME, &limit);
    }
}

/// Whether all processes that hold the lock on a file run as the injector's user or as root. A process can
/// always lock its own files in /proc and so make others wait.
pub(super) fn holders_are_trusted(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = file.metadata() else { return false };
    let inode = format!(":{}", metadata.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_held = |fields: &[&str]| {
        fields.get(1) == Some(&"FLOCK") && fields.get(5).is_some_and(|f| f.ends_with(&inode))
    };
    let lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let holders =
        lines.filter(|fields| is_held(fields)).map(|fields| fields.get(4).and_then(|pid| pid.parse().ok()));
    // A process of another PID namespace has the number -1 or 0.
    holders.into_iter().all(|pid| pid.is_some_and(is_trusted))
}

fn is_trusted(pid: i32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |pid| -> io::Result<u32> { Ok(std::fs::metadata(format!("/proc/{pid}"))?.uid()) };
    owner(pid).is_ok_and(|user| user == 0 || user == sys::ids().euid)
}
