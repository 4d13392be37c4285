//! Signals: those that the injector takes over, and the state that the program inherits.
#![allow(unsafe_code, reason = "it blocks, reads and sends signals through libc")]

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

use crate::os::early;
use crate::os::sys::check;
use crate::os::terminal;

/// The signals that the injector does not take over: the two that nobody can, and those that report a fault
/// in the injector's own code.
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

/// The signals that ask the injector to end.
pub(crate) const END_WANTED: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The state of signals that the program must inherit unchanged.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    mask: libc::sigset_t,
    child: libc::sighandler_t,
}

/// Signals as the injector receives them: they are blocked and read from a descriptor. Their dispositions
/// stay as they were, for the program.
pub(crate) struct Signals {
    file: File,
    inherited: Inherited,
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: i32,
    /// Whether a process has sent it, and not the terminal or a timer.
    pub(crate) sent: bool,
    /// The process that has sent it.
    pub(crate) sender: i32,
    /// The value given to sigqueue(3).
    pub(crate) value: Option<u64>,
}

impl Signals {
    /// Blocks the signals and opens the descriptor.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn take() -> io::Result<Signals> {
        // SAFETY: all sets and actions are local variables, valid when zeroed and valid for the calls.
        // SIGCHLD gets its default action, because the kernel waits for the children of a program that
        // ignores it.
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
            early::restore_file_size();
            let fd = check(libc::signalfd(-1, &taken, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Signals {
                // The descriptor is new and has no other owner.
                file: File::from_raw_fd(fd),
                inherited: Inherited { mask, child: old.sa_sigaction },
            })
        }
    }

    /// The state that the program must inherit.
    pub(crate) fn inherited(&self) -> Inherited {
        self.inherited
    }

    /// Returns the next signal that has arrived, without waiting.
    pub(crate) fn next(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        // SAFETY: this is plain data of this size, valid for every content.
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
    /// Restores the signals as they were when the injector was started. To be called in the child, between
    /// fork and exec.
    pub(crate) fn restore(&self, pipe_ignored: bool) {
        // SAFETY: these are async-signal-safe calls on valid local variables.
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

/// Whether a signal is pending that asks the injector to end. Only blocked signals are pending.
pub(crate) fn is_end_wanted() -> bool {
    // SAFETY: the set is a local variable, valid when zeroed and valid for the calls.
    unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut waiting);
        END_WANTED.iter().any(|&signal| libc::sigismember(&waiting, signal) == 1)
    }
}

/// Asks a process to end.
pub(crate) fn terminate(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Passes a signal on to a process.
pub(crate) fn send(pid: i32, arrived: Arrived) {
    // SAFETY: no memory is involved; the value is passed on and not dereferenced.
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

/// Stops this process as the program was stopped. Returns when it is continued.
pub(crate) fn stop(signal: i32) {
    terminal::without(|| with_default(signal));
}

/// Ends this process as the program has ended. Returns only if the signal does not end a process.
pub(crate) fn die(signal: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is valid for the call. The program has left its core dump, which the injector's would
    // replace.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    with_default(signal);
}

/// Ends this process with the program's status. Libraries that the user has preloaded for the program are in this process as
/// well, and what they do when a process exits (a leak checker) must not change the status or add to the output.
pub(crate) fn exit(status: u8) -> ! {
    let _ = std::io::Write::flush(&mut std::io::stdout());
    exit_at_once(status)
}

/// Ends this process without writing what standard output still has to write.
pub(crate) fn exit_at_once(status: u8) -> ! {
    // SAFETY: no thread of this process has anything left to do.
    unsafe { libc::_exit(status.into()) }
}

/// Sends this process a signal whose default action takes place before this function returns.
fn with_default(signal: i32) {
    // SAFETY: sets and actions are local variables, valid when zeroed. Signals are blocked otherwise, so no
    // handler is replaced.
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
