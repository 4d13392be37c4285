//! Children of this process, and how they end.
#![allow(unsafe_code)]

use crate::os::failure::OURS;
use crate::os::signals;
use crate::os::sys::check;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Reaps the children that have ended. Returns whether others are left.
pub(crate) fn has_children() -> bool {
    loop {
        // SAFETY: no status is asked for.
        match check(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) }) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// How a child has ended; None: it has not. When a signal has stopped the child, this process stops as well, until
/// somebody continues it.
pub(crate) fn reap(pid: i32) -> Option<Ending> {
    loop {
        let mut status = 0;
        let flags = libc::WNOHANG | libc::WUNTRACED;
        // SAFETY: `status` is valid for the call.
        match check(unsafe { libc::waitpid(pid, &mut status, flags) }) {
            Ok(0) => return None,
            Ok(_) if libc::WIFEXITED(status) => return Some(Ending::Exited(libc::WEXITSTATUS(status) as u8)),
            Ok(_) if libc::WIFSIGNALED(status) => return Some(Ending::Killed(libc::WTERMSIG(status))),
            Ok(_) if libc::WIFSTOPPED(status) => signals::stop(libc::WSTOPSIG(status)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Somebody else has waited for it, which nobody can; there is nothing left to wait for.
            Err(_) => return Some(Ending::Exited(OURS)),
        }
    }
}
