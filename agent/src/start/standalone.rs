//! The agent's first instructions in a standalone program.
//!
//! The injector has stopped the process before the first instruction of the program (or of its dynamic linker, if that is
//! not glibc's), has written the library into it, and makes the thread begin here. The program's own first instruction
//! follows, with the stack and the registers that the kernel has given it (x86-64 psABI 3.4.1).
#![allow(unsafe_code, reason = "it runs as the process's first code")]

use crate::os::initial::Start;
use crate::os::place::Place;
use crate::os::record::Record;
use crate::os::records::{self, MAIN};
use crate::os::task;
use crate::program::failure;
use crate::program::provoke;
use crate::start::setup;
use core::mem::offset_of;
use gprofinject_abi::attach::Beginning;

/// Sets up the process. `stack` is the stack pointer with which the kernel has started the program.
unsafe extern "C" fn begin(beginning: *const Beginning, stack: *mut u64) {
    // SAFETY: the injector has written the record before this thread began, and the kernel has left its stack.
    let (beginning, start) = unsafe { (&*beginning, Start::of(stack)) };
    let place = beginning.place.get(..beginning.place_len as usize).and_then(Place::new);
    let Some(place) = place else { return };
    records::begin_main();
    let _ = failure::guarded(|| {
        provoke::read(&start);
        setup::run(&start, &place)
    });
}

/// The entry point: rdi = the address of a [`Beginning`]. All other registers are those of the program's first
/// instruction.
///
/// # Safety
/// Only the injector may make a thread begin here.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn gprofinject_begin() {
    core::arch::naked_asm!(
        "mov rbx, rdi",
        "mov rbp, rsp",
        // The main thread's record.
        "lea rsi, [rip+{main}]",
        "mov [rsi+{own}], rsi",
        "mov edi, {arch_set_gs}",
        "mov eax, {arch_prctl}",
        "syscall",
        "mov rdi, rbx",
        "mov rsi, rbp",
        "sub rsp, 128",
        "and rsp, -16",
        "call {begin}",
        // What the kernel gives to a program: rdx is 0, and the other registers have no meaning.
        "mov rsp, rbp",
        "mov rcx, [rbx+{entry}]",
        "mov [rsp-8], rcx",
        "pxor xmm0, xmm0",
        "pxor xmm1, xmm1",
        "pxor xmm2, xmm2",
        "pxor xmm3, xmm3",
        "pxor xmm4, xmm4",
        "pxor xmm5, xmm5",
        "pxor xmm6, xmm6",
        "pxor xmm7, xmm7",
        "pxor xmm8, xmm8",
        "pxor xmm9, xmm9",
        "pxor xmm10, xmm10",
        "pxor xmm11, xmm11",
        "pxor xmm12, xmm12",
        "pxor xmm13, xmm13",
        "pxor xmm14, xmm14",
        "pxor xmm15, xmm15",
        "xor eax, eax",
        "xor ebx, ebx",
        "xor ecx, ecx",
        "xor edx, edx",
        "xor esi, esi",
        "xor edi, edi",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "jmp qword ptr [rsp-8]",
        main = sym MAIN,
        own = const offset_of!(Record, own),
        arch_set_gs = const task::ARCH_SET_GS,
        arch_prctl = const linux_raw_sys::general::__NR_arch_prctl,
        entry = const offset_of!(Beginning, entry),
        begin = sym begin,
    );
}
