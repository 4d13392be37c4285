//! A process that restores the terminal if gprofinject is killed by SIGKILL while a view fills it.
//!
//! The keeper is a child of gprofinject, and waits until the other end of a pipe is closed, which the kernel does if gprofinject is
//! killed. Bytes in the pipe say whether the terminal is set up at that time.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::termios::Termios;

use crate::os::sys;

/// The terminal is about to be set up.
const SET_UP: u8 = b's';
/// The terminal was restored.
const RESTORED: u8 = b'r';

/// The keeper, as gprofinject sees it. It ends when this is dropped.
pub(super) struct Keeper {
    pid: i32,
    /// `None` once it is to end.
    pipe: Option<File>,
}

impl Keeper {
    /// Forks the keeper, which calls `restore` if this process is killed. `restore` may only make system calls.
    ///
    /// # Errors
    /// No process or no descriptor is available.
    pub(super) fn start(
        terminal: &File,
        before: &Termios,
        restore: fn(&File, &Termios),
    ) -> io::Result<Keeper> {
        let (ends, pipe) = sys::pipe()?;
        let blocked = sys::block_signals();
        // Without a signal at its end, this is no child that `wait` finds when gprofinject looks whether any is left.
        // SAFETY: without flags this is a fork. The child runs only `keep`, which makes system calls and does not return.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            keep(ends, terminal, before, restore);
        }
        let result = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) };
        sys::unblock_signals(&blocked);
        result.map(|pid| Keeper { pid, pipe: Some(File::from(pipe)) })
    }

    fn tell(&mut self, what: u8) {
        if let Some(pipe) = &mut self.pipe {
            // A keeper that was killed has nothing to restore.
            let _ = pipe.write_all(&[what]);
        }
    }
}

impl gmon_screen::terminal::Keeper for Keeper {
    fn is_set_up(&mut self) {
        self.tell(SET_UP);
    }

    fn is_restored(&mut self) {
        self.tell(RESTORED);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.pipe = None;
        // SAFETY: no status is asked for, and the process is a child of this one.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WCLONE) };
    }
}

/// The main function of the keeper.
fn keep(ends: OwnedFd, terminal: &File, before: &Termios, restore: fn(&File, &Termios)) -> ! {
    let mut kept = [ends.as_raw_fd() as libc::c_uint, terminal.as_raw_fd() as libc::c_uint];
    kept.sort_unstable();
    // SAFETY: the arguments are numbers, and a name that the kernel copies. Only these two descriptors are used from here on.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-keeper".as_ptr());
        let mut from = 0;
        for fd in kept {
            if fd > from {
                sys::close_range(from, fd - 1);
            }
            from = fd + 1;
        }
        sys::close_range(from, libc::c_uint::MAX);
    }
    let mut pipe = File::from(ends);
    let (mut last, mut byte) = (RESTORED, [0]);
    loop {
        match pipe.read(&mut byte) {
            Ok(1) => [last] = byte,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    if last == SET_UP {
        restore(terminal, before);
    }
    // SAFETY: this ends this process only.
    unsafe { libc::_exit(0) }
}
