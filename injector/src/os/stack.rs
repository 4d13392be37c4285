//! The stack of the main thread. Its limit (ulimit -s) is meant for the program; if it leaves gprofinject too little, gprofinject runs on
//! memory of its own.
#![allow(unsafe_code, reason = "it changes the stack pointer")]

use std::arch::naked_asm;
use std::io;
use std::ptr;

use rustix::process::{Resource, getrlimit};

/// Enough for everything that the injector does, in bytes: the usual limit.
const ENOUGH: usize = 8 << 20;
/// The lowest page stays without access, so that an overflow is a fault.
const PAGE: usize = 4096;

/// Runs `work` with [`ENOUGH`] bytes of stack. If there is no memory for another stack, it runs on the one that there is.
pub(crate) fn with_enough<R>(work: impl FnOnce() -> R) -> R {
    let is_small = getrlimit(Resource::Stack).current.is_some_and(|most| most < ENOUGH as u64);
    match if is_small { map() } else { Err(io::ErrorKind::Other.into()) } {
        Ok(end) => on(end, work),
        Err(_) => work(),
    }
}

/// Maps a stack. Returns its end.
fn map() -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the addresses, so the mapping replaces nothing, and no other code knows of it.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), ENOUGH, access, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::mprotect(at, PAGE, libc::PROT_NONE);
        Ok(at.cast::<u8>().add(ENOUGH))
    }
}

/// Runs `work` on the stack that ends at `end`.
fn on<W: FnOnce() -> R, R>(end: *mut u8, work: W) -> R {
    let mut job = Job { work: Some(work), result: None };
    // SAFETY: nobody else uses the stack, and `end` is a multiple of 16. `run` is the function for this job, which outlives the call.
    unsafe { call_on(end, run::<W, R>, (&raw mut job).cast()) };
    match job.result {
        Some(result) => result,
        // `run` has stored one: a panic ends the process.
        None => unreachable!("the work has returned"),
    }
}

struct Job<W, R> {
    work: Option<W>,
    result: Option<R>,
}

/// # Safety
/// `job` is a `Job<W, R>` that nobody else uses.
unsafe extern "C" fn run<W: FnOnce() -> R, R>(job: *mut u8) {
    // SAFETY: the caller keeps the contract.
    let job = unsafe { &mut *job.cast::<Job<W, R>>() };
    job.result = job.work.take().map(|work| work());
}

/// Calls `function` with `argument` on another stack, which ends at `end`.
///
/// # Safety
/// The stack is writable, `end` is a multiple of 16, and the call keeps the contract of `function`, which does not unwind.
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: *mut u8, function: unsafe extern "C" fn(*mut u8), argument: *mut u8) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp", // rbp is the callee's to keep
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_another_stack() {
        let end = map().expect("memory");
        let here = 7_u64;
        let (sum, on_it) = on(end, || {
            let local = 5_u64;
            let distance = (end as usize).wrapping_sub((&raw const local).addr());
            (here + local, distance < ENOUGH)
        });
        assert_eq!((sum, on_it), (12, true));
    }
}
