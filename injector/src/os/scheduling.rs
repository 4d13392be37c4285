//! The scheduling of single threads, by system calls: musl's functions of these names only fail, because POSIX means whole
//! processes.
#![allow(unsafe_code, reason = "it makes system calls")]

use std::io;

use crate::os::sys::check;

/// The kernel's `struct sched_param`.
#[repr(C)]
struct Parameters {
    priority: libc::c_int,
}

/// Sets the policy and the priority of a thread; 0 is the calling one. A signal handler may call this.
///
/// # Errors
/// It is not permitted, or there is no such thread.
pub(crate) fn set(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = Parameters { priority };
    // SAFETY: the kernel reads the structure, which has its own layout and is valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const parameters) };
    check(result as libc::c_int).map(|_| ())
}

/// Returns the policy of a thread, or -1 if there is none; 0 is the calling one.
pub(crate) fn policy(tid: i32) -> i32 {
    // SAFETY: the call takes a number only and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_thread() {
        assert_eq!(policy(0), libc::SCHED_OTHER);
        set(0, libc::SCHED_BATCH, 0).expect("a policy that everybody may have");
        assert_eq!(policy(0), libc::SCHED_BATCH);
        set(0, libc::SCHED_OTHER, 0).expect("the usual policy");
        assert_eq!(
            set(0, libc::SCHED_OTHER, 7).map_err(|error| error.raw_os_error()),
            Err(Some(libc::EINVAL))
        );
        assert_eq!(policy(i32::MAX), -1);
    }
}
