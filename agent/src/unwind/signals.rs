//! Signals of a Go program, whose runtime looks up the function that a signal has interrupted by the program counter: to
//! make a panic of a fault, whose trace begins there, and to take a sample for the program's own profile.
//!
//! It does not know the thunks and the relocated instructions. So the function that the kernel calls for each signal is
//! entered through the agent, which replaces the address of such an instruction in the kernel's description of the thread by
//! that of the original one. A thread with a fault does not come back to the instruction: Go's handler makes it call the
//! function that panics. After a sample it does, so the agent puts the address back.
//!
//! Go handles every signal, and takes those of the agent's own timers ([`timer`]) for an error; they end here.
//!
//! For other signals nothing changes. One of them (SIGURG) preempts goroutines: Go tries again later if it does not know the
//! address.
#![allow(unsafe_code, reason = "the kernel's description of an interrupted thread is changed")]

use crate::hot::timer;
use crate::program::agent::Agent;
use core::arch::global_asm;
use linux_raw_sys::general;

/// Offset of rip in struct ucontext: flags, link, stack (40 bytes), then register 16.
const RIP: u64 = 40 + 16 * 8;
/// The si_code of a signal that a timer sends.
const SI_TIMER: i32 = -2;
/// The signals of faults, as a set. They are below 32.
const FAULTS: u32 = 1 << general::SIGILL
    | 1 << general::SIGTRAP
    | 1 << general::SIGBUS
    | 1 << general::SIGFPE
    | 1 << general::SIGSEGV;

extern "C" fn original(pc: u64) -> u64 {
    Agent::get().program.relocated_from(pc)
}

global_asm!(
    ".text",
    ".hidden gpi_signal",
    ".globl gpi_signal",
    ".type gpi_signal, @function",
    // Output: rax = the address that stands for the one at which the thread was interrupted. Changes rcx and r8 to r10.
    ".macro gpi_original",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r11",
    "sub rsp, 8",
    "mov rdi, [rdx+{rip}]",
    "call {original}",
    "add rsp, 8",
    "pop r11",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    ".endm",
    ".p2align 4",
    // edi = signal, rsi = struct siginfo, rdx = struct ucontext, r11 = the rest of the function
    "gpi_signal:",
    "cmp edi, {sigprof}",
    "je 2f",
    "cmp edi, {timer}",
    "je 4f",
    "cmp edi, 31",
    "ja 1f",
    "mov eax, {faults}",
    "bt eax, edi",
    "jnc 1f",
    "cmp dword ptr [rsi+8], 0",     // si_code: the kernel has found the fault, and no process has sent the signal
    "jle 1f",
    "gpi_original",
    "mov [rdx+{rip}], rax",
    "1:",
    "jmp r11",
    "2:",
    "gpi_original",
    "mov rcx, [rdx+{rip}]",
    "cmp rcx, rax",
    "je 1b",
    "push rdx",
    "push rcx",
    "push rax",
    "mov [rdx+{rip}], rax",
    "call r11",
    "pop rax",
    "pop rcx",
    "pop rdx",
    "cmp [rdx+{rip}], rax",
    "jne 3f",
    "mov [rdx+{rip}], rcx",
    "3:",
    "ret",
    "4:",
    "cmp dword ptr [rsi+8], {si_timer}",
    "jne 1b",
    "jmp {tick}",
    ".size gpi_signal, . - gpi_signal",
    sigprof = const general::SIGPROF,
    faults = const FAULTS,
    rip = const RIP,
    original = sym original,
    timer = const timer::SIGNAL,
    si_timer = const SI_TIMER,
    tick = sym timer::tick,
);

unsafe extern "C" {
    pub(crate) fn gpi_signal();
}
