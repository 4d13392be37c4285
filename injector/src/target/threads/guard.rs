//! A process that looks after a helper: it ends a helper that does not end by itself, and takes back what a helper that
//! was killed has left, which is the realtime priorities of the threads that it was stopping.
//!
//! It is the helper's child, waits for the other end of a pipe to close, and does nothing else. The kernel knows no
//! priority that ends with the process that has given it, so somebody has to be there afterwards.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::os::sys::{self, check};
use crate::target::threads::deadline;
use crate::target::threads::urgency;

/// The helper's side. At its end the guard ends, too.
pub(super) struct Guard {
    pid: i32,
    /// Closed by the kernel if the helper is killed.
    alive: Option<OwnedFd>,
}

impl Guard {
    /// Forks it. None: there can be no more processes, or no more descriptors.
    pub(super) fn start(target: i32) -> Option<Guard> {
        let (ends, alive) = sys::pipe().ok()?;
        // SAFETY: it has no arguments.
        let helper = unsafe { libc::getpid() };
        // SAFETY: the helper has one thread. The child runs `watch` only, which does not return.
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
        // SAFETY: no status is asked for; the child is ours.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The guard's life.
fn watch(ends: &OwnedFd, helper: i32, target: i32) -> ! {
    // SAFETY: numbers, and a name that the kernel copies. Only the pipe is used from here on.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-guard".as_ptr());
        let pipe = ends.as_raw_fd() as libc::c_uint;
        if pipe > 3 {
            libc::close_range(3, pipe - 1, 0);
        }
        libc::close_range(pipe + 1, libc::c_uint::MAX, 0);
    }
    // It has to run when threads with such a priority do not let others.
    urgency::hurry();
    let until = Instant::now() + deadline::LAST;
    let mut left = deadline::LAST;
    while !left.is_zero() && !sys::wait_readable(&[ends.as_raw_fd()], Some(left)) {
        left = until.saturating_duration_since(Instant::now());
    }
    if left.is_zero() {
        // SAFETY: the call takes numbers only. As long as the pipe has another end the number is the helper's.
        unsafe { libc::kill(helper, libc::SIGKILL) };
        sys::wait_readable(&[ends.as_raw_fd()], Some(Duration::from_secs(5)));
    }
    urgency::take_back(target);
    // SAFETY: ends this process only.
    unsafe { libc::_exit(0) }
}

/// Lets go of the priority of a helper that never sleeps: without this nothing else would run on its processor. The
/// kernel sends SIGXCPU to the thread that has run for so long with a realtime priority.
pub(super) fn limit_realtime() {
    const SECONDS: libc::rlim_t = 1_000_000;
    extern "C" fn slow_down(_: libc::c_int) {
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: a system call that signal handlers may make, about the calling thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &usual) };
    }
    let limit = libc::rlimit { rlim_cur: SECONDS, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: structures that are valid for the calls; the handler is safe to run at any time.
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

/// Whether the processes that hold the lock on a file are all trusted: run by us or by root. A process can always
/// lock its own files in /proc, and keep others waiting.
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
    // Of another process namespace: -1 or 0.
    holders.into_iter().all(|pid| pid.is_some_and(is_trusted))
}

fn is_trusted(pid: i32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |pid| -> io::Result<u32> { Ok(std::fs::metadata(format!("/proc/{pid}"))?.uid()) };
    owner(pid).is_ok_and(|user| user == 0 || user == sys::ids().euid)
}
