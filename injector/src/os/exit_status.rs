//! How a process has ended that is no child of this one, without anything being done to it or to its parent.
#![allow(
    unsafe_code,
    reason = "the kernel is asked for what it knows of a process by an ioctl that no library has"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{getegid, geteuid};

use crate::os::child::Ending;
use crate::os::proc;

/// Returns how a process has ended, of which `pidfd` is a descriptor that has reported the end; `None` if that cannot be known for certain.
///
/// The kernel says it of a process whose parent has waited for it from Linux 6.15 on. Until then the process is a zombie, and its entry in
/// /proc has the status. Before Linux 6.15, it is not known of those whose parent was faster.
pub(crate) fn of(pid: i32, pidfd: BorrowedFd<'_>) -> Option<Ending> {
    let asked = || asked(pidfd).ok().flatten();
    // The parent may wait for it between the first two looks; what it has done until the third one is final.
    asked().or_else(|| of_zombie(pid, pidfd)).or_else(asked)
}

/// `struct pidfd_info` of linux/pidfd.h, in its first version, whose last member was spare before Linux 6.15.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

/// Asks the kernel about a process that has been waited for. It has no answer for another one.
fn asked(pidfd: BorrowedFd<'_>) -> io::Result<Option<Ending>> {
    /// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`.
    const PIDFD_GET_INFO: u32 = 0xc040_ff0b;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    const { assert!(size_of::<Info>() == 0x40) };
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // SAFETY: the kernel reads and writes the structure, whose length is part of the request, and nothing else.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.mask & PIDFD_INFO_EXIT != 0).then(|| ending(info.exit_code)))
}

/// Returns the status of a process for which nobody has waited yet.
fn of_zombie(pid: i32, pidfd: BorrowedFd<'_>) -> Option<Ending> {
    let stat = proc::text(format!("/proc/{pid}/stat")).ok()?;
    let status = proc::text(format!("/proc/{pid}/status")).ok()?;
    // SAFETY: the call takes numbers and a null pointer only, and sends nothing.
    let is_there = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            0,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    // As long as nobody has waited for the process, no other one has its number.
    (is_there == 0 && is_shown_to_us(&status)).then(|| status_in(&stat))?
}

/// Whether the kernel shows this process everything about another one, whose entry `status` this is. It writes 0 in place of the status
/// otherwise.
fn is_shown_to_us(status: &str) -> bool {
    let all = |label: &str, own: u32| {
        let line = status.lines().find_map(|line| line.strip_prefix(label));
        line.is_some_and(|line| line.split_whitespace().all(|id| id.parse() == Ok(own)))
    };
    all("Uid:", geteuid().as_raw()) && all("Gid:", getegid().as_raw())
}

/// Returns the status that an entry `stat` of a zombie has in its last field.
fn status_in(stat: &str) -> Option<Ending> {
    /// The place of `exit_code` (proc_pid_stat(5)) after the name.
    const EXIT_CODE: usize = 49;
    let (_, fields) = stat.rsplit_once(") ")?;
    let is_zombie = fields.starts_with('Z');
    let code = fields.split_whitespace().nth(EXIT_CODE).filter(|_| is_zombie)?;
    code.parse().ok().map(ending)
}

/// Takes a status apart as wait(2) has it.
fn ending(code: i32) -> Ending {
    match code & 0x7f {
        0 => Ending::Exited((code >> 8 & 0xff) as u8),
        signal => Ending::Killed(signal),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::os::sys;

    /// Runs a shell, and returns what is known of it before its parent has waited for it, and after that.
    fn looked(script: &str) -> [Option<Ending>; 2] {
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().expect("a shell");
        let pid = shell.id().cast_signed();
        let pidfd =
            pidfd_open(Pid::from_raw(pid).expect("a number"), PidfdFlags::empty()).expect("it is there");
        while sys::readable([pidfd.as_raw_fd()].into_iter()).is_empty() {}
        let before = of(pid, pidfd.as_fd());
        shell.wait().expect("it has ended");
        [before, of(pid, pidfd.as_fd())]
    }

    #[test]
    fn what_the_shell_has_said() {
        for (script, expected) in [
            ("exit 0", Ending::Exited(0)),
            ("exit 3", Ending::Exited(3)),
            ("exit 255", Ending::Exited(255)),
            ("kill -9 $$", Ending::Killed(9)),
            ("kill -TERM $$", Ending::Killed(libc::SIGTERM)),
        ] {
            let [before, after] = looked(script);
            assert_eq!(before, Some(expected), "{script}");
            // Older kernels do not know it any more.
            assert!(after.is_none() || after == Some(expected), "{script}: {after:?}");
        }
    }

    #[test]
    fn what_is_not_shown_is_not_zero() {
        let own = format!(
            "Name:\ta\nUid:\t{0}\t{0}\t{0}\t{0}\nGid:\t{1}\t{1}\t{1}\t{1}\n",
            geteuid().as_raw(),
            getegid().as_raw()
        );
        assert!(is_shown_to_us(&own));
        assert!(!is_shown_to_us(&own.replacen(&geteuid().as_raw().to_string(), "4242", 1)));
        assert!(!is_shown_to_us(""));
        let stat = format!("7 (a) b) Z {}768", "0 ".repeat(48));
        assert_eq!(status_in(&stat), Some(Ending::Exited(3)));
        assert_eq!(status_in(&stat.replace("Z", "S")), None);
        assert_eq!(status_in("7 (a) Z 1 2"), None);
    }
}
