//! Children of this process, how they end, and which CPU time they have taken.
#![allow(unsafe_code, reason = "the kernel fills in what processes have used")]

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait, waitpid};

use crate::os::failure::OURS;
use crate::os::signals;
use crate::os::waker::Waker;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// The children that this process has had before it was gprofinject: a shell that executes gprofinject may have started some in the
/// background. They are no part of the run, and may wait for gprofinject's end: to read from a pipe what it writes, say.
static EARLIER: OnceLock<Vec<i32>> = OnceLock::new();

/// The CPU time that such children had taken then: in user space, and in the kernel.
static EARLIER_TIME: OnceLock<(Duration, Duration)> = OnceLock::new();

/// The process number of the program, or 0 before there is one.
static LAUNCHED: AtomicI32 = AtomicI32::new(0);

/// Notes that this child executes the program.
pub(crate) fn launched(pid: i32) {
    LAUNCHED.store(pid, Relaxed);
}

/// Whether there is a child that executes the program.
pub(crate) fn is_launched() -> bool {
    LAUNCHED.load(Relaxed) != 0
}

/// Waits until the program has ended, if it was started, and ends this process in the same way. Takes no memory of the heap.
pub(crate) fn end_like_launched() -> ! {
    let Some(pid) = Pid::from_raw(LAUNCHED.load(Relaxed)) else { signals::exit_at_once(OURS) };
    let status = loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => signals::exit_at_once(OURS),
        }
    };
    if let Some(signal) = status.terminating_signal() {
        signals::die(signal);
    }
    signals::exit_at_once(status.exit_status().map_or(OURS, |code| code as u8))
}

/// Remembers the children that are there before the first one is forked.
pub(crate) fn remember_earlier() {
    let _ = EARLIER.set(children());
    let _ = EARLIER_TIME.set(all_cpu_time());
}

/// Waits for the children that have ended. Returns whether others are left that are not older than the run.
pub(crate) fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => break,
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    match EARLIER.get() {
        Some(earlier) if !earlier.is_empty() => children().iter().any(|child| !earlier.contains(child)),
        _ => true,
    }
}

/// Returns the CPU time of all children of the run that were waited for, with their own ones: in user space, and in the kernel.
pub(crate) fn cpu_time() -> (Duration, Duration) {
    let (user, kernel) = all_cpu_time();
    let earlier = EARLIER_TIME.get().copied().unwrap_or_default();
    (user.saturating_sub(earlier.0), kernel.saturating_sub(earlier.1))
}

/// Returns the same with what was before the run.
fn all_cpu_time() -> (Duration, Duration) {
    let time = |time: libc::timeval| {
        let part = |part| u64::try_from(part).unwrap_or(0);
        Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
    };
    // SAFETY: a structure of numbers may be zero, and the kernel writes to it alone.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

/// Returns the children of all threads of this process, as far as the kernel lists them.
fn children() -> Vec<i32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>()).collect()
}

/// Returns how a child has ended, or `None` if it has not. When a signal has stopped the child, `stop` is called with it,
/// and stops this process until it or the child is continued.
pub(crate) fn reap(pid: i32, stop: impl Fn(i32)) -> Option<Ending> {
    loop {
        let status = match waitpid(Pid::from_raw(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(None) => return None,
            Ok(Some((_, status))) => status,
            Err(Errno::INTR) => continue,
            // There is nothing left to wait for. This cannot happen, because only this process waits for its
            // children.
            Err(_) => return Some(Ending::Exited(OURS)),
        };
        if let Some(code) = status.exit_status() {
            return Some(Ending::Exited(code as u8));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Ending::Killed(signal));
        }
        if let Some(signal) = status.stopping_signal() {
            // Whoever has stopped the program may continue it, and not this process.
            let _waker = Waker::start(pid);
            stop(signal);
        }
    }
}
