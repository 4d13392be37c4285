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
//! SIGURG preempts goroutines. Go makes the goroutine call a function that waits (`runtime.asyncPreempt`), but only if it knows
//! the address, and otherwise tries again. A loop may run in relocated instructions alone, and then must be preempted there:
//! the garbage collector waits until it is. So Go finds the address of the original instruction, and notes it as the one at
//! which the goroutine continues; before that happens, [`gpi_resume`] replaces it by that of the copy.
//!
//! For other signals nothing changes.
#![allow(unsafe_code, reason = "the kernel's description of an interrupted thread is changed")]

use crate::hot::timer;
use crate::program::agent::Agent;
use crate::program::module::Module;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::Original;
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

extern "C" fn preempted(pc: u64) -> u64 {
    match RESUMES.count.load(Ordering::Relaxed) {
        0 => pc,
        _ => Agent::get().program.preempted_at(pc),
    }
}

/// What [`gpi_resume`] reads. [`prepare`] writes it before the first hook is in place.
#[repr(C)]
struct Resumes {
    /// Number of elements of `table`, or 0 if goroutines do not continue through the agent.
    count: AtomicU64,
    /// The address of the [`Original`]s, which are sorted by the address in the text as well.
    table: AtomicU64,
    text_lo: AtomicU64,
    arena_lo: AtomicU64,
}

static RESUMES: Resumes = Resumes {
    count: AtomicU64::new(0),
    table: AtomicU64::new(0),
    text_lo: AtomicU64::new(0),
    arena_lo: AtomicU64::new(0),
};

/// Lets goroutines be preempted in relocated instructions of this program.
pub(crate) fn prepare(program: &Module) {
    RESUMES.table.store(program.originals.as_ptr() as u64, Ordering::Relaxed);
    RESUMES.text_lo.store(program.text_lo, Ordering::Relaxed);
    RESUMES.arena_lo.store(program.arena_lo, Ordering::Relaxed);
    RESUMES.count.store(program.originals.len() as u64, Ordering::Relaxed);
}

global_asm!(
    ".text",
    ".hidden gpi_signal",
    ".globl gpi_signal",
    ".type gpi_signal, @function",
    // Output: rax = what the function returns for the address at which the thread was interrupted. Changes rcx and r8 to r10.
    ".macro gpi_address function",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r11",
    "sub rsp, 8",
    "mov rdi, [rdx+{rip}]",
    "call \\function",
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
    "cmp edi, {sigurg}",
    "je 5f",
    "cmp edi, {timer}",
    "je 4f",
    "cmp edi, 31",
    "ja 1f",
    "mov eax, {faults}",
    "bt eax, edi",
    "jnc 1f",
    "cmp dword ptr [rsi+8], 0",     // si_code: the kernel has found the fault, and no process has sent the signal
    "jle 1f",
    "gpi_address {original}",
    "mov [rdx+{rip}], rax",
    "1:",
    "jmp r11",
    "5:",
    "gpi_address {preempted}",
    "jmp 6f",
    "2:",
    "gpi_address {original}",
    "6:",
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
    ".hidden gpi_resume",
    ".globl gpi_resume",
    ".type gpi_resume, @function",
    ".p2align 4",
    // rdi = address of the word with the address at which a goroutine continues. Uses no stack: the goroutine's may be used up.
    "gpi_resume:",
    "lea r8, [rip+{resumes}]",
    "mov r9, [r8+{count}]",
    "mov rsi, [r8+{table}]",
    "mov rax, [rdi]",
    "sub rax, [r8+{text_lo}]",
    "mov rcx, rax",
    "shr rcx, 32",
    "jnz 9f",                       // outside of the program
    "xor edx, edx",                 // The first element whose text is not below eax is among rdx..=r10.
    "mov r10, r9",
    "7:",
    "cmp rdx, r10",
    "jae 8f",
    "lea rcx, [rdx+r10]",
    "shr rcx, 1",
    "cmp [rsi+rcx*8+{text}], eax",
    "lea r11, [rcx+1]",
    "cmovb rdx, r11",
    "cmovae r10, rcx",
    "jmp 7b",
    "8:",
    "cmp rdx, r9",
    "jae 9f",
    "cmp [rsi+rdx*8+{text}], eax",
    "jne 9f",
    "mov ecx, [rsi+rdx*8+{offset}]",
    "add rcx, [r8+{arena_lo}]",
    "mov [rdi], rcx",
    "9:",
    "ret",
    ".size gpi_resume, . - gpi_resume",
    sigprof = const general::SIGPROF,
    sigurg = const general::SIGURG,
    preempted = sym preempted,
    resumes = sym RESUMES,
    count = const offset_of!(Resumes, count),
    table = const offset_of!(Resumes, table),
    text_lo = const offset_of!(Resumes, text_lo),
    arena_lo = const offset_of!(Resumes, arena_lo),
    text = const offset_of!(Original, text),
    offset = const offset_of!(Original, offset),
    faults = const FAULTS,
    rip = const RIP,
    original = sym original,
    timer = const timer::SIGNAL,
    si_timer = const SI_TIMER,
    tick = sym timer::tick,
);

unsafe extern "C" {
    pub(crate) fn gpi_signal();
    pub(crate) fn gpi_resume();
}
