//! The system call instruction. There is no libc, and so no errno: a call's result is `Ok(value)` or `Err(errno)`.
#![allow(unsafe_code, reason = "the system call instruction")]

use crate::os::dispatch;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::attach::REFUSED_WORDS;
use linux_raw_sys::errno;

pub(crate) const EPERM: i32 = errno::EPERM as i32;
pub(crate) const ENOENT: i32 = errno::ENOENT as i32;
pub(crate) const ESRCH: i32 = errno::ESRCH as i32;
pub(crate) const EINTR: i32 = errno::EINTR as i32;
pub(crate) const EBADF: i32 = errno::EBADF as i32;
pub(crate) const EAGAIN: i32 = errno::EAGAIN as i32;
pub(crate) const ENOMEM: i32 = errno::ENOMEM as i32;
pub(crate) const EACCES: i32 = errno::EACCES as i32;
pub(crate) const EFAULT: i32 = errno::EFAULT as i32;
pub(crate) const EBUSY: i32 = errno::EBUSY as i32;
pub(crate) const EEXIST: i32 = errno::EEXIST as i32;
pub(crate) const ENOTDIR: i32 = errno::ENOTDIR as i32;
pub(crate) const EINVAL: i32 = errno::EINVAL as i32;
pub(crate) const EMFILE: i32 = errno::EMFILE as i32;
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

/// Returns whether system calls fail without being made, for good or because they are dispatched at present ([`dispatch`]).
pub(crate) fn is_frozen() -> bool {
    is_frozen_for_good() || dispatch::blocks_calls()
}

/// Returns whether system calls fail without being made, until [`freeze`] allows them again.
pub(crate) fn is_frozen_for_good() -> bool {
    FROZEN.load(Ordering::Relaxed)
}

/// The system calls that a seccomp filter of the process may refuse, one bit for each number; see
/// [`gprofinject_abi::attach::Order::refused`]. The injector, which has read the filters, has the set stored while it has a
/// thread of the process stopped, before the agent makes its first call. Threads only read it.
static REFUSED: [AtomicU64; REFUSED_WORDS] = [const { AtomicU64::new(0) }; REFUSED_WORDS];

/// Makes these system calls fail with EPERM from now on instead of being made.
pub(crate) fn refuse(calls: &[u64; REFUSED_WORDS]) {
    for (word, calls) in REFUSED.iter().zip(calls) {
        word.store(*calls, Ordering::Relaxed);
    }
}

/// Returns whether a system call is not made because a filter may refuse it.
pub(crate) fn is_refused(number: u32) -> bool {
    let word = REFUSED.get(number as usize / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (number % 64) & 1 != 0)
}

// All instructions with which the agent makes system calls of its own, so that one range of addresses exempts them from dispatch.
global_asm!(
    ".text",
    ".globl gpi_own_calls, gpi_restorer, gpi_make_call, gpi_own_calls_end",
    ".hidden gpi_own_calls, gpi_restorer, gpi_make_call, gpi_own_calls_end",
    "gpi_own_calls:",
    "nop", // unwinders look up the return address minus one
    // Where the handler of the agent's timers returns to.
    ".type gpi_restorer, @function",
    "gpi_restorer:",
    "mov eax, {rt_sigreturn}",
    "syscall",
    ".size gpi_restorer, . - gpi_restorer",
    // The arguments and the result are those of the instruction.
    ".type gpi_make_call, @function",
    "gpi_make_call:",
    ".cfi_startproc",
    "syscall",
    "ret",
    ".cfi_endproc",
    ".size gpi_make_call, . - gpi_make_call",
    "gpi_own_calls_end:",
    rt_sigreturn = const linux_raw_sys::general::__NR_rt_sigreturn,
);

unsafe extern "C" {
    fn gpi_own_calls();
    pub(crate) fn gpi_restorer();
    fn gpi_make_call();
    fn gpi_own_calls_end();
}

/// Returns the address and length of the instructions with which the agent makes system calls of its own.
pub(crate) fn own_calls() -> (u64, u64) {
    let [start, end] = [gpi_own_calls, gpi_own_calls_end].map(|place| place as *const () as u64);
    (start, end - start)
}

/// Makes a system call. Arguments that it does not have are 0.
///
/// # Safety
/// The caller must own the memory and descriptors that the call makes the kernel write, unmap or close, and
/// everything that it makes the kernel read must be readable.
pub(crate) unsafe fn call<const N: usize>(number: u32, arguments: [u64; N]) -> Result<u64, i32> {
    const { assert!(N <= 6, "a system call has six arguments at most") };
    if is_refused(number) || is_frozen() {
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
            "call {make}",
            make = sym gpi_make_call,
            inlateout("rax") u64::from(number) => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as u64) }
}
