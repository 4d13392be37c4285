//! Tells a signal that was sent to us alone from one that was sent to the whole process group.
//!
//! The first has to be passed on to the program, the second it has already; the kernel does not say
//! which it was (`kill %1` and timeout(1) send to the group, `kill PID` to us). So a second process, the
//! witness, sits in the same group and repeats every signal it gets into a pipe.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::os::signals::Signals;
use crate::os::sys;

/// How long a signal takes from us to the witness, at most: the kernel sends to all members of a group
/// in one go, then the witness has to be scheduled.
const PATIENCE: Duration = Duration::from_millis(50);
/// What the witness saw longer ago than this speaks of an earlier signal.
const STALE_NS: u64 = 1_000_000_000;
/// Two signals of the same number within this time count as one, as they do in the kernel as long as
/// the first has not been taken.
const TOGETHER_NS: u64 = 20_000_000;
/// In the pipe: the signal and the time, two words.
const MESSAGE: usize = 16;

pub(crate) struct Witness {
    pid: i32,
    pipe: File,
    /// Seen by the witness and not yet by us: signal and CLOCK_MONOTONIC nanoseconds.
    ahead: Vec<(i32, u64)>,
    /// The last signal that was the group's, and when we asked.
    last: Option<(i32, u64)>,
}

impl Witness {
    /// Signals must be blocked already: the witness inherits that. None: no process to be had.
    pub(crate) fn start() -> Option<Witness> {
        let (read, write) = sys::pipe().ok()?;
        sys::set_nonblocking(&read).ok()?;
        // SAFETY: getpid cannot fail. We have one thread, so the child may do anything; it never returns.
        let (parent, forked) = unsafe { (libc::getpid(), libc::fork()) };
        match sys::check(forked).ok()? {
            0 => watch(parent, write),
            pid => Some(Witness { pid, pipe: read.into(), ahead: Vec::new(), last: None }),
        }
    }

    /// Was this signal, which has just come to us, sent to the group?
    pub(crate) fn saw(&mut self, signal: i32) -> bool {
        let start = sys::monotonic_ns();
        loop {
            self.read();
            let now = sys::monotonic_ns();
            self.ahead.retain(|&(_, time)| time + STALE_NS > now);
            if let Some(at) = self.ahead.iter().position(|&(seen, _)| seen == signal) {
                self.ahead.swap_remove(at);
                self.last = Some((signal, now));
                return true;
            }
            // timeout(1) sends to its child and then to the group: the program, which has had the group's
            // signal, would have had the two as one.
            if self.last.is_some_and(|(last, time)| last == signal && time + TOGETHER_NS > now) {
                return true;
            }
            let left = PATIENCE.saturating_sub(Duration::from_nanos(now - start));
            if left.is_zero() {
                return false;
            }
            sys::wait_readable(&[self.pipe.as_raw_fd()], Some(left));
        }
    }

    /// A message is written in one piece, since it is shorter than PIPE_BUF.
    fn read(&mut self) {
        let mut message = [0; MESSAGE];
        while let Ok(()) = (&self.pipe).read_exact(&mut message) {
            let (signal, time) = message.split_at(MESSAGE / 2);
            let word = |half: &[u8]| half.try_into().map_or(0, u64::from_ne_bytes);
            self.ahead.push((word(signal) as i32, word(time)));
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet, so the number is still its.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The witness's life.
fn watch(parent: i32, pipe: OwnedFd) -> ! {
    // SAFETY: system calls without memory. The witness must not outlive us, and must hold none of the
    // files that the program's readers and writers wait for.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(0);
        }
        let keep = pipe.as_raw_fd();
        let (below, above) = (keep as libc::c_uint, keep as libc::c_uint + 1);
        if below > 0 {
            libc::syscall(libc::SYS_close_range, 0, below - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, above, libc::c_uint::MAX, 0);
    }
    let mut pipe = File::from(pipe);
    if let Ok(signals) = Signals::take() {
        while sys::wait_readable(&[std::os::fd::AsFd::as_fd(&signals).as_raw_fd()], None) {
            while let Some(arrived) = signals.next() {
                let words = [arrived.signal as u64, sys::monotonic_ns()];
                let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                if arrived.sent && pipe.write_all(&message).is_err() {
                    break;
                }
            }
        }
    }
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}
