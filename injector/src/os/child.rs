//! Children of this process, and how they end.

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait, waitpid};

use crate::os::failure::OURS;
use crate::os::signals;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Waits for the children that have ended. Returns whether others are left.
pub(crate) fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => return true,
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Returns how a child has ended, or `None` if it has not. When a signal has stopped the child, this process
/// stops as well, until it is continued.
pub(crate) fn reap(pid: i32) -> Option<Ending> {
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
            signals::stop(signal);
        }
    }
}
