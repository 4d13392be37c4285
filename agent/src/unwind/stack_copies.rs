//! Coroutines that share one stack: a function copies a part of the stack away and another one back (Python's greenlet).
//!
//! The frames of several coroutines have the same addresses there, and so the same cells. Therefore the plan leads such a function
//! to the agent before it copies anything, which puts the return addresses back into the return slots of all frames that are
//! on the stack. From then on these frames return without the agent: their calls were counted when they began, and those that are
//! measured end now.
#![allow(unsafe_code, reason = "return slots of the calling thread's stack are written")]

use crate::hot::ranges;
use crate::hot::search;
use crate::hot::times;
#[cfg(not(test))]
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::program::agent::Agent;
use crate::program::failure;

/// Puts the return addresses of all frames on the current stack back. `from` is the stack pointer.
extern "C" fn put_back(from: u64) {
    let _ = failure::attempt(|| {
        let agent = Agent::get();
        let (end, is_mapped) = search::end_of_any_stack(agent, from);
        ranges::put_back(from, end, is_mapped, |label| agent.in_thunks(label));
        times::calls::leave_all();
    });
}

#[cfg(test)]
extern "C" fn gpi_stack_copy() {}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_stack_copy",
    ".globl gpi_stack_copy",
    // See `ArenaHeader::stack_copy`. All registers are kept but r11.
    ".p2align 4",
    ".type gpi_stack_copy, @function",
    "gpi_stack_copy:",
    "push rbp",
    "mov rbp, rsp",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push rax",
    "lea rdi, [rbp+8]",
    "mov rsi, rsp",
    "and rsp, -16",
    "push rsi",
    "push rsi",
    save_vectors!(),
    "call {put_back}",
    restore_vectors!(),
    "lea rsp, [rsp+256]",
    "pop rsp",
    "pop rax",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rbp",
    "jmp r11",
    ".size gpi_stack_copy, . - gpi_stack_copy",
    put_back = sym put_back,
);

#[cfg(not(test))]
unsafe extern "C" {
    /// The routine to which [`gprofinject_abi::plan::ArenaHeader::stack_copy`] leads.
    fn gpi_stack_copy();
}

/// Returns the address of the routine for [`gprofinject_abi::plan::ArenaHeader::stack_copy`].
pub(crate) fn gate() -> u64 {
    gpi_stack_copy as *const () as u64
}
