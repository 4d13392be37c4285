//! System calls that end with EINTR when a thread is stopped, because the kernel does not restart them.

use std::fs;

use libc::user_regs_struct;

/// Whether a thread whose system call has just ended is about to return EINTR from it, and the call can be
/// made again.
pub(super) fn ends_call_with_eintr(registers: &user_regs_struct) -> bool {
    let number = registers.orig_rax as i64;
    // close() closes the descriptor even then, and its number may meanwhile belong to another file.
    number >= 0 && number != libc::SYS_close && registers.rax == -i64::from(libc::EINTR) as u64
}

/// Whether a thread waits in a system call that the kernel does not restart when the thread is stopped; see
/// signal(7). Calls on sockets are such calls only with a timeout, which cannot be seen from outside.
pub(super) fn ends_with_eintr(pid: i32, tid: i32) -> bool {
    const IO_PGETEVENTS: i64 = 333;
    const CALLS: [i64; 18] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        IO_PGETEVENTS,
        libc::SYS_io_uring_enter,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
    ];
    let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
    number.is_some_and(|number: i64| CALLS.contains(&number))
}

/// Whether a thread that the tracer has woken may return EINTR: it waits in a call that the kernel does not
/// restart, or it runs.
pub(super) fn may_end_with_eintr(pid: i32, tid: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    call.starts_with("running") || ends_with_eintr(pid, tid)
}
