//! The way to the slow paths in programs whose functions may be entered with little stack.
//!
//! A goroutine's stack grows only when a function finds at its start that it does not suffice, and some functions do not
//! look: when a Go function is entered, less than a kilobyte may be left. So each thread gets a stack for slow paths when it needs one
//! first: here or in a system call ([`crate::process::calls`]). That may be in the middle of a goroutine, if few functions are hooked.
//! So there is a pool of such stacks, and taking one needs none. When the pool is empty, the thread's first hooked call maps
//! one. If all functions are hooked, that comes before the thread runs a goroutine: it begins on a stack of the system's or of the
//! scheduler's.
//!
//! A word of the thread is the upper end of that stack, or 0 if it has none yet. Its lowest bit ([`SLOW_STACK_FREE`]) is set while the stack is not
//! in use. A slow path clears the bit, and sets it at its end. A signal handler that interrupts the slow path and leads to it again
//! finds that it is clear, and stays on the stack that it has: Go's handlers run on signal stacks.
//!
//! Exits are not hooked in such programs, so there are no cells and no tail calls to look for. The thunk and the gate use 56
//! bytes below the return address.
#![allow(unsafe_code, reason = "the way from machine code to Rust and back")]

use crate::hot::arcs;
use crate::hot::slow_stack::{END, LEN, NEXT, POOL};
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{SLOW_STACK, SLOW_STACK_FREE, thread_word, words_offset};
use crate::program::agent::{GATE_FACTS, GateFacts};
use core::arch::global_asm;
use core::mem::offset_of;
use gprofinject_abi::plan::{FunctionRecord, ThreadWords};
use gprofinject_abi::region::{RECENT, RECENT_HASH, RECENT_SHIFT, Slot};

global_asm!(
    ".text",
    ".globl gpi_small_miss_entry",
    ".hidden gpi_small_miss_entry",
    ".type gpi_small_miss_entry, @function",
    ".p2align 4",
    // rsp = CFA - 8, eax = number, r11 = return address; rax is at CFA-16 and r11 at CFA-24.
    "gpi_small_miss_entry:",
    "mov [rsp-32], rcx",
    "mov [rsp-40], rdx",
    "mov [rsp-48], rdi",
    words_offset!("rdx"),
    thread_word!("mov rcx, ", "[rdx+{block}]"),
    // The table of recent arcs, as in the gates of other programs.
    "lea edx, [r11+rax]",
    "imul edx, edx, {hash}",
    "shr edx, {shift}",
    "mov rdx, [rcx+rdx*8+{recent}]",
    "mov rdi, rdx",
    "shr rdi, 32",
    "sub edi, 1",
    "cmp edi, eax",
    "jne 2f",
    "mov edx, edx",
    "cmp [rcx+rdx+{key}], r11",
    "jne 2f",
    "inc qword ptr [rcx+rdx+{count}]",
    "imul eax, eax, {record}",
    "mov rcx, [rip+{facts}+{functions}]",
    "mov eax, [rcx+rax+{resume}]",
    "add rax, [rip+{facts}+{base}]",
    "1:",                           // rax = where to go on
    "mov [rsp-24], rax",
    "mov rcx, [rsp-32]",
    "mov rdx, [rsp-40]",
    "mov rdi, [rsp-48]",
    "mov r11, [rsp-16]",
    "jmp [rsp-24]",
    "2:",
    "lea rdi, [rsp+8]",             // CFA
    words_offset!("rdx"),
    thread_word!("lock btr qword ptr ", "[rdx+{slow}]", ", 0"),
    thread_word!("mov rcx, ", "[rdx+{slow}]"),
    "jc 3f",
    "test rcx, rcx",
    "jnz 6f",                       // in use
    "mov ecx, {len}",
    "lock xadd [rip+{pool}+{next}], rcx",
    "cmp rcx, [rip+{pool}+{end}]",
    "jae 6f",
    thread_word!("mov ", "[rdx+{slow}], rcx"),
    "jmp 3f",
    "6:",
    "xor ecx, ecx",
    "lea rsp, [rsp-120]",
    "jmp 4f",
    "3:",
    "mov rsp, rcx",
    "4:",
    "push rcx",
    "push rdi",
    "push rsi",
    "push r8",
    "push r9",
    "push r10",
    "push rbp",
    "mov rbp, rsp",
    "push rax",
    "push r11",
    "and rsp, -16",
    "mov rsi, r11",
    "mov rdx, rdi",
    "mov edi, eax",
    "mov rcx, rbp",
    "call {known}",
    "test rax, rax",
    "jnz 5f",
    save_vectors!(),
    "mov edi, [rbp-8]",
    "mov rsi, [rbp-16]",
    "mov rdx, [rbp+40]",
    "call {rare}",
    restore_vectors!(),
    "5:",
    "mov rsp, rbp",
    "pop rbp",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rsi",
    "pop rcx",                      // CFA
    "pop rdi",                      // the stack for slow paths, or 0 if another one was used
    "lea rsp, [rcx-8]",
    "test rdi, rdi",
    "jz 1b",
    words_offset!("rdx"),
    thread_word!("or qword ptr ", "[rdx+{slow}], {free}"),
    "jmp 1b",
    ".size gpi_small_miss_entry, . - gpi_small_miss_entry",
    block = const offset_of!(ThreadWords, block),
    hash = const RECENT_HASH,
    shift = const RECENT_SHIFT,
    recent = const RECENT,
    key = const offset_of!(Slot, key),
    count = const offset_of!(Slot, count),
    record = const size_of::<FunctionRecord>(),
    resume = const offset_of!(FunctionRecord, resume),
    facts = sym GATE_FACTS,
    functions = const offset_of!(GateFacts, functions),
    base = const offset_of!(GateFacts, base),
    slow = const SLOW_STACK,
    free = const SLOW_STACK_FREE,
    len = const LEN,
    pool = sym POOL,
    next = const NEXT,
    end = const END,
    known = sym arcs::known,
    rare = sym arcs::rare,
);

unsafe extern "C" {
    pub(crate) fn gpi_small_miss_entry();
}
