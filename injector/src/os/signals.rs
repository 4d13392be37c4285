//! Signals: what we take, what the program inherits.
#![allow(unsafe_code, reason = "it blocks, reads and sends signals through libc")]

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

use crate::os::sys::check;

/// Signals that we neither can nor should take over: the two that nobody can, and those that speak of a
/// fault in our own code.
const LEFT_ALONE: [libc::c_int; 8] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// Signals that ask us to end.
pub(crate) const END_WANTED: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// What the program must find as it was.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    mask: libc::sigset_t,
    child: libc::sighandler_t,
}

/// Signals are blocked and read from a descriptor; their dispositions stay as they were, for the program.
pub(crate) struct Signals {
    file: File,
    inherited: Inherited,
}

/// A signal that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: i32,
    /// Sent by a process, not by the terminal or a timer.
    pub(crate) sent: bool,
    /// Process that sent it.
    pub(crate) sender: i32,
    /// sigqueue's value.
    pub(crate) value: Option<u64>,
}

impl Signals {
    pub(crate) fn take() -> io::Result<Signals> {
        // SAFETY: all sets and actions are locals, valid when zeroed, valid for the calls. SIGCHLD gets
        // its default because a program that ignores it has its children waited for by the kernel.
        unsafe {
            let mut taken: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut taken);
            for signal in LEFT_ALONE {
                libc::sigdelset(&mut taken, signal);
            }
            let mut mask: libc::sigset_t = std::mem::zeroed();
            check(libc::sigprocmask(libc::SIG_BLOCK, &taken, &mut mask))?;
            let mut old: libc::sigaction = std::mem::zeroed();
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            check(libc::sigaction(libc::SIGCHLD, &default, &mut old))?;
            let fd = check(libc::signalfd(-1, &taken, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Signals {
                // The descriptor is new and ours alone.
                file: File::from_raw_fd(fd),
                inherited: Inherited { mask, child: old.sa_sigaction },
            })
        }
    }

    pub(crate) fn inherited(&self) -> Inherited {
        self.inherited
    }

    pub(crate) fn next(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        // SAFETY: plain data of this size, valid for every content.
        let info = unsafe {
            let bytes = std::slice::from_raw_parts_mut(
                info.as_mut_ptr().cast::<u8>(),
                size_of::<libc::signalfd_siginfo>(),
            );
            (&self.file).read_exact(bytes).ok()?;
            info.assume_init()
        };
        let sent = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
        let value = (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr);
        Some(Arrived { signal: info.ssi_signo as i32, sent, sender: info.ssi_pid as i32, value })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Inherited {
    /// In the child, between fork and exec: makes signals as they were when we were started.
    pub(crate) fn restore(&self, pipe_ignored: bool) {
        // SAFETY: async-signal-safe calls on valid locals.
        unsafe {
            if !pipe_ignored {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            }
            if self.child == libc::SIG_IGN {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Whether a signal waits that asks us to end. Only those that we have blocked wait.
pub(crate) fn is_end_wanted() -> bool {
    // SAFETY: a set that is a local, valid when zeroed, valid for the calls.
    unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut waiting);
        END_WANTED.iter().any(|&signal| libc::sigismember(&waiting, signal) == 1)
    }
}

/// Passes a signal on to a process.
pub(crate) fn send(pid: i32, arrived: Arrived) {
    // SAFETY: no memory is involved; the value is passed on and not looked at.
    unsafe {
        match arrived.value {
            Some(value) => {
                let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
                libc::sigqueue(pid, arrived.signal, value);
            }
            None => {
                libc::kill(pid, arrived.signal);
            }
        }
    }
}

/// Stops us as the program was stopped; returns when we are continued.
pub(crate) fn stop(signal: i32) {
    with_default(signal);
}

/// Ends us as the program was ended. Returns only if the signal does not end a process.
pub(crate) fn die(signal: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is valid for the call. The program has left its core dump; ours would replace it.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    with_default(signal);
}

/// Sends ourselves a signal with its default action, which takes place before this returns.
fn with_default(signal: i32) {
    // SAFETY: sets and actions are locals, valid when zeroed; signals are blocked otherwise, so there is
    // no handler that this could take away from someone.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, &mut old);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &only, std::ptr::null_mut());
        libc::sigaction(signal, &old, std::ptr::null_mut());
    }
}
