//! The program enters seccomp: from then on a system call of ours may be one that ends the program.
//!
//! `prctl` and `syscall` are defined here and passed on. Before a filter is installed, the calling thread's
//! block is made lasting as a whole, so that its new arcs have a place; from then on no system call is made,
//! by any thread or child. A filter that is installed by other means (code of the program's own that makes the
//! system call) is not noticed.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::lookup;
use crate::sys;
use crate::threads;
use crate::timer;
use core::sync::atomic::{AtomicU64, Ordering};

static PRCTL: AtomicU64 = AtomicU64::new(0);

/// Finds the C library's function.
pub(crate) fn prepare(dynamic_linker: u64) {
    PRCTL.store(lookup::function(dynamic_linker, b"prctl"), Ordering::Relaxed);
}

/// What follows prctl(PR_SET_SECCOMP, mode, filter), or its like. True: nothing was frozen before, and now
/// it is.
pub(crate) extern "C" fn enter(mode: u64, filter: u64) -> bool {
    const STRICT: u64 = 1;
    const FILTER: u64 = 2;
    // Without a filter it is a question, whether the kernel knows the call.
    let enters = mode == STRICT || mode == FILTER && filter != 0;
    let agent = Agent::get();
    if !enters || agent.region.is_null() || sys::is_frozen() {
        return false;
    }
    if let Some(block) = threads::block(agent) {
        threads::commit_all(agent, block);
    }
    // The return from the handler is a system call, too.
    timer::stop_all(agent);
    // SAFETY: the region header stays mapped.
    unsafe { add(&raw mut (*agent.header()).frozen, 1) };
    sys::freeze(true);
    true
}

/// It did not enter after all.
pub(crate) extern "C" fn stay() {
    sys::freeze(false);
    let agent = Agent::get();
    // SAFETY: the region header stays mapped.
    unsafe { add(&raw mut (*agent.header()).frozen, 1_u64.wrapping_neg()) };
    timer::start_again(agent);
}

#[cfg(not(test))]
mod offered {
    use super::{PRCTL, enter, stay};
    use core::arch::naked_asm;

    /// # Safety
    /// As glibc's function of that name.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn prctl() {
        naked_asm!(
            "cmp edi, 22", // PR_SET_SECCOMP
            "je 2f",
            "jmp [rip + {real}]",
            "2:",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "call {enter}",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "movzx eax, al",
            "push rax",
            "call [rip + {real}]",
            "pop rcx",
            "cmp eax, -1",
            "jne 3f",
            "test ecx, ecx",
            "jz 3f",
            "push rax",
            "call {stay}",
            "pop rax",
            "3:",
            "ret",
            real = sym PRCTL,
            enter = sym enter,
            stay = sym stay,
        );
    }
}
