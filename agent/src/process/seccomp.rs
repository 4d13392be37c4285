//! Handles a program that enters seccomp: from then on, a system call of the agent's may end the program.
//!
//! `prctl` and `syscall` are defined here; they call the C library's own functions. Before a filter is installed, the
//! whole of the calling thread's thread block is committed, so that its new arcs can be stored; from then on, no
//! thread or child makes a system call of the agent's. A filter that is installed in another way (by a system call
//! instruction of the program's own) is not noticed.
//!
//! A program may also forbid itself to read the time stamp counter, by `prctl(PR_SET_TSC)` or the strict mode of seccomp, which
//! forbids it too. Then no call is measured any more.
#![allow(unsafe_code, reason = "a function of the C library is defined")]

use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::timers;
use crate::hot::times::clock;
use crate::os::kernel;
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::Ordering;
use gprofinject_abi::clock::ClockKind;

/// In place of a mode of seccomp: the call forbids the time stamp counter and does nothing else.
pub(crate) const NO_COUNTER: u64 = u64::MAX;

/// Handles prctl(PR_SET_SECCOMP, mode, filter), or an equivalent call, before it is made, and prctl(PR_SET_TSC,
/// PR_TSC_SIGSEGV), whose mode is [`NO_COUNTER`]. Returns whether this call has frozen the agent.
pub(crate) extern "C" fn enter(mode: u64, filter: u64) -> bool {
    failure::guarded(|| freeze(mode, filter)).unwrap_or_else(|| {
        // The agent is frozen even so: no system call may be made from now on.
        kernel::freeze(true);
        false
    })
}

fn freeze(mode: u64, filter: u64) -> bool {
    const STRICT: u64 = 1;
    const FILTER: u64 = 2;
    // A call without a filter only asks whether the kernel supports the operation.
    let enters = mode == STRICT || mode == FILTER && filter != 0;
    let agent = Agent::get();
    let is_forbidden = match clock::kind() {
        ClockKind::Tsc => mode == STRICT || mode == NO_COUNTER,
        ClockKind::Gettime => mode == STRICT,
        ClockKind::None | ClockKind::Instructions => false,
    };
    if agent.orders.times_bytes != 0 && is_forbidden {
        clock::forbid();
    }
    if !enters || !agent.is_set_up || kernel::is_frozen() {
        return false;
    }
    if let Some(block) = threads::block(agent) {
        thread_blocks::commit_all(agent, block);
    }
    // The return from the signal handler is a system call, too.
    timers::stop(agent);
    agent.region.frozen().fetch_add(1, Ordering::Relaxed);
    kernel::freeze(true);
    true
}

/// Undoes [`enter`] after the kernel has refused the call.
pub(crate) extern "C" fn stay() {
    let _ = failure::guarded(thaw);
}

fn thaw() {
    kernel::freeze(false);
    let agent = Agent::get();
    agent.region.frozen().fetch_sub(1, Ordering::Relaxed);
    timers::start_again(agent);
}

// The way into seccomp, from the start of `prctl` or `syscall`. Input: their arguments; rax and r10 = the arguments
// of `enter`; r11 = the C library's function.
#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_enter_seccomp",
    ".globl gpi_enter_seccomp",
    ".p2align 4",
    ".type gpi_enter_seccomp, @function",
    "gpi_enter_seccomp:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "mov rdi, rax",
    "mov rsi, r10",
    "call {enter}",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "pop r8",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "movzx eax, al", // whether it is to be taken back if the kernel refuses
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "call r11",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "cmp eax, -1",
    "jne 2f",
    "test ecx, ecx",
    "jz 2f",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "call {stay}",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "2:",
    "ret",
    ".cfi_endproc",
    ".size gpi_enter_seccomp, . - gpi_enter_seccomp",
    enter = sym enter,
    stay = sym stay,
);

#[cfg(not(test))]
mod offered {
    use crate::process::dispatch::{self, PR_SET_SYSCALL_USER_DISPATCH};
    use crate::process::originals::PRCTL;
    use crate::process::seccomp::NO_COUNTER;
    use core::arch::naked_asm;
    use linux_raw_sys::prctl::{PR_SET_SECCOMP, PR_SET_TSC, PR_TSC_SIGSEGV};

    /// # Safety
    /// As glibc's function of that name.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn prctl() {
        naked_asm!(
            "mov r11, [rip + {real}]",
            "cmp edi, {set_seccomp}", // mode, filter
            "je 2f",
            "cmp edi, {set_tsc}",     // mode
            "je 3f",
            "cmp edi, {set_dispatch}",
            "je {dispatch}",
            "4:",
            "jmp r11",
            "3:",
            "cmp esi, {forbids}",
            "jne 4b",
            "mov rax, {no_counter}",
            "jmp gpi_enter_seccomp",
            "2:",
            "mov rax, rsi",
            "mov r10, rdx",
            "jmp gpi_enter_seccomp",
            set_seccomp = const PR_SET_SECCOMP,
            set_tsc = const PR_SET_TSC,
            forbids = const PR_TSC_SIGSEGV,
            no_counter = const NO_COUNTER as i64,
            set_dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
            dispatch = sym dispatch::by_prctl,
            real = sym PRCTL,
        );
    }
}
