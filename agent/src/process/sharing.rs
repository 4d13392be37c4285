//! Threads and processes that begin with the thread words of the thread that makes them: `clone` with CLONE_VM, without a thread area
//! (CLONE_SETTLS), and without CLONE_VFORK. [`crate::hot::sharers`] says how their calls are counted.
#![allow(unsafe_code, reason = "machine code calls the C library's functions")]

use crate::hot::callers;
use crate::hot::sharers::{self, NO_ENTRY};
use crate::hot::threads;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::failure;
use linux_raw_sys::general;

/// Handles clone or clone3 before the system call is made. `stack` is an address in the new thread's stack or above it, or 0 if it shares
/// its parent's, and `area` its thread pointer if `flags` have CLONE_SETTLS. Returns what [`born`] needs.
pub(crate) extern "C" fn expect(flags: u64, stack: u64, area: u64) -> u64 {
    failure::guarded(|| prepare(flags, stack, area)).unwrap_or(NO_ENTRY)
}

fn prepare(flags: u64, stack: u64, area: u64) -> u64 {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let agent = Agent::get();
    let has_own_area = has(general::CLONE_SETTLS) && area != words::thread_pointer();
    if !agent.is_set_up || !has(general::CLONE_VM) || has(general::CLONE_VFORK) || has_own_area {
        return NO_ENTRY;
    }
    // The new stack may be a part of this thread's.
    callers::distrust_within(stack.saturating_sub(1));
    threads::expect_sharer(agent, has(general::CLONE_NEWPID))
}

/// Handles the result of that system call in the parent: the new thread's number, or an error. `entry` is what [`expect`] has returned.
pub(crate) extern "C" fn born(entry: u64, result: i64) {
    sharers::born(entry, result);
}

// The way through these functions, from the start of the C library's `clone` or `syscall`. Input: their arguments; rax = the flags; r10 =
// the end of the new stack; r9 = the thread area; r11 = the C library's function, which takes at most one argument on the stack.
#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_share_words",
    ".globl gpi_share_words",
    ".p2align 4",
    ".type gpi_share_words, @function",
    "gpi_share_words:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push r11",                     // later the entry
    "push qword ptr [rbp+16]",      // the argument on the stack
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "mov rdi, rax",
    "mov rsi, r10",
    "mov rdx, r9",
    "call {expect}",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "mov r11, [rbp-8]",
    "mov [rbp-8], rax",
    "call r11",                     // the child does not return here: it has another stack
    "mov [rbp-16], rax",
    "mov rdi, [rbp-8]",
    "movsxd rsi, eax",
    "call {born}",
    "mov rax, [rbp-16]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size gpi_share_words, . - gpi_share_words",
    expect = sym expect,
    born = sym born,
);
