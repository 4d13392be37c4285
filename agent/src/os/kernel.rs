//! The system call instruction. There is no libc, and so no errno: a call's result is `Ok(value)` or `Err(errno)`.
#![allow(unsafe_code, reason = "the system call instruction")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno;

pub(crate) const EPERM: i32 = errno::EPERM as i32;
pub(crate) const ENOENT: i32 = errno::ENOENT as i32;
pub(crate) const ESRCH: i32 = errno::ESRCH as i32;
pub(crate) const EINTR: i32 = errno::EINTR as i32;
pub(crate) const EBADF: i32 = errno::EBADF as i32;
pub(crate) const EAGAIN: i32 = errno::EAGAIN as i32;
pub(crate) const EACCES: i32 = errno::EACCES as i32;
pub(crate) const EFAULT: i32 = errno::EFAULT as i32;
pub(crate) const EEXIST: i32 = errno::EEXIST as i32;
pub(crate) const ENOTDIR: i32 = errno::ENOTDIR as i32;
pub(crate) const EINVAL: i32 = errno::EINVAL as i32;
pub(crate) const EFBIG: i32 = errno::EFBIG as i32;
pub(crate) const ENAMETOOLONG: i32 = errno::ENAMETOOLONG as i32;
pub(crate) const ELOOP: i32 = errno::ELOOP as i32;
pub(crate) const ECONNREFUSED: i32 = errno::ECONNREFUSED as i32;

/// Whether the agent makes no system calls any more, because the program's seccomp filter may punish them.
/// The thread that enters seccomp writes it, and any thread reads it; a thread that reads the old value
/// counts as one that made its call just before.
static FROZEN: AtomicBool = AtomicBool::new(false);

/// Makes system calls fail with EPERM from now on instead of being made, or allows them again.
pub(crate) fn freeze(frozen: bool) {
    FROZEN.store(frozen, Ordering::Relaxed);
}

/// Returns whether system calls fail without being made.
pub(crate) fn is_frozen() -> bool {
    FROZEN.load(Ordering::Relaxed)
}

/// Makes a system call. Arguments that it does not have are 0.
///
/// # Safety
/// The caller must own the memory and descriptors that the call makes the kernel write, unmap or close, and
/// everything that it makes the kernel read must be readable.
pub(crate) unsafe fn call<const N: usize>(number: u32, arguments: [u64; N]) -> Result<u64, i32> {
    const { assert!(N <= 6, "a system call has six arguments at most") };
    if is_frozen() {
        return Err(EPERM);
    }
    let mut a = [0; 6];
    for (place, argument) in a.iter_mut().zip(arguments) {
        *place = argument;
    }
    let result: i64;
    // SAFETY: of the registers, the kernel changes only rax, rcx and r11. What it does to memory is the caller's
    // promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") u64::from(number) => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as u64) }
}
