//! Distinguishes a signal that was sent to the injector alone from one that was sent to its whole process
//! group.
//!
//! The injector has to pass the first kind on to the program; the program has already received the second.
//! The kernel does not say which kind a signal is (`kill %1` and timeout(1) send to the group, `kill PID` to
//! the injector). Therefore a second process in the same group, the witness, writes every signal that it
//! receives into a pipe.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::os::signals::Signals;
use crate::os::sys;

/// The longest time between a signal's arrival here and its arrival at the witness: the kernel sends to all
/// members of a group in one go, and then the witness has to be scheduled.
const PATIENCE: Duration = Duration::from_millis(50);
/// A report of the witness that is older than this many nanoseconds concerns an earlier signal.
const STALE_NS: u64 = 1_000_000_000;
/// Two signals of the same number within this many nanoseconds count as one. The kernel merges them as well,
/// as long as the first one is pending.
const TOGETHER_NS: u64 = 20_000_000;
/// The length of a message in the pipe: the signal and the time, two words.
const MESSAGE: usize = 16;

/// The witness, as the injector sees it.
pub(crate) struct Witness {
    pid: i32,
    pipe: File,
    /// The signals that the witness has reported and the injector has not yet received: number, and
    /// CLOCK_MONOTONIC in nanoseconds.
    ahead: Vec<(i32, u64)>,
    /// The last signal that was sent to the group, and the time of the question.
    last: Option<(i32, u64)>,
}

impl Witness {
    /// Forks the witness. Signals must already be blocked, because the witness inherits the mask. Returns
    /// `None` if no process can be created.
    pub(crate) fn start() -> Option<Witness> {
        let (read, write) = sys::pipe().ok()?;
        sys::set_nonblocking(&read).ok()?;
        // SAFETY: getpid cannot fail. This process has one thread, so the child may do anything; it never
        // returns.
        let (parent, forked) = unsafe { (libc::getpid(), libc::fork()) };
        match sys::check(forked).ok()? {
            0 => watch(parent, write),
            pid => Some(Witness { pid, pipe: read.into(), ahead: Vec::new(), last: None }),
        }
    }

    /// Whether this signal, which the injector has just received, was sent to the group.
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
            // timeout(1) sends the signal to its child and then to the group. Without gprofinject, the
            // program would have received the two as one.
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

    /// Reads the witness's messages. Each is written in one piece, because it is shorter than PIPE_BUF.
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
        // SAFETY: this is the injector's own child, which has not been waited for, so the number is still the
        // child's.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The main function of the witness.
fn watch(parent: i32, pipe: OwnedFd) -> ! {
    // SAFETY: these are system calls without memory. The witness must end with the injector, and must keep
    // none of the files open for whose end the program's readers and writers wait.
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
    // SAFETY: this ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}
