//! The namespaces of another process.
#![allow(unsafe_code, reason = "it asks the kernel who owns a namespace through libc")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::os::proc;
use crate::os::sys::check;

/// Which namespace something is, by the device and the inode number of the kernel's file for it.
type Identity = (u64, u64);

fn identity(pid: i32, kind: &str) -> io::Result<Identity> {
    let metadata = fs::metadata(format!("/proc/{pid}/ns/{kind}"))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns the network namespace of a process, if it is another one than this process's.
pub(crate) fn other_network(pid: i32) -> Option<File> {
    is_other(pid, "net").ok().filter(|is_other| *is_other)?;
    File::open(format!("/proc/{pid}/ns/net")).ok()
}

fn is_other(pid: i32, kind: &str) -> io::Result<bool> {
    Ok(identity(pid, kind)? != identity(std::process::id() as i32, kind)?)
}

/// Returns the number of the overflow user, if a process may trust whoever has a socket in its network namespace, is nobody in its user
/// namespace, and has no number in its PID namespace. This process is such a one. Otherwise the result is 0.
///
/// The process may trust them if its user namespace owns the network namespace. To get into that, a process needs the
/// capability CAP_SYS_ADMIN over the user namespace. A process that has it from outside may do there whatever it likes.
pub(crate) fn outsider(pid: i32) -> u32 {
    const OVERFLOW: &str = "/proc/sys/kernel/overflowuid";
    let overflow = || proc::text(OVERFLOW).ok()?.trim().parse().ok();
    match is_closed_to_others(pid) {
        Ok(true) => overflow().unwrap_or(0),
        Ok(false) | Err(_) => 0,
    }
}

fn is_closed_to_others(pid: i32) -> io::Result<bool> {
    Ok(is_other(pid, "user")?
        && is_other(pid, "pid")?
        && is_other(pid, "net")?
        && owner(pid, "net")? == identity(pid, "user")?)
}

/// Returns the user namespace that owns a namespace of a process.
fn owner(pid: i32, kind: &str) -> io::Result<Identity> {
    /// linux/nsfs.h: `_IO(0xb7, 1)`.
    const NS_GET_USERNS: u32 = 0xb701;
    let namespace = File::open(format!("/proc/{pid}/ns/{kind}"))?;
    // SAFETY: the request has no argument and returns a new descriptor, which nothing else owns.
    let owner =
        unsafe { OwnedFd::from_raw_fd(check(libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _))?) };
    let metadata = File::from(owner).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_our_namespaces_trusts_no_outsider() {
        assert_eq!(outsider(std::process::id() as i32), 0);
        assert_eq!(outsider(i32::MAX), 0);
    }
}
