//! The C library's `syscall`, with which a program may fork, execute a program or enter seccomp without the dedicated
//! function. It is defined here, and calls the C library's own function.
#![allow(unsafe_code, reason = "a function of the C library is defined")]

#[cfg(not(test))]
use crate::hot::times::inherited;
#[cfg(not(test))]
use crate::process::dispatch::{self, PR_SET_SYSCALL_USER_DISPATCH};
#[cfg(not(test))]
use crate::process::originals::SYSCALL;
#[cfg(not(test))]
use crate::process::seccomp::NO_COUNTER;
use crate::process::{children, execute};
use linux_raw_sys::{general, prctl};

/// Handles syscall(fork), syscall(clone, flags without CLONE_VM, no stack), syscall(clone3, the same), those with CLONE_VM whose child may
/// share its parent's thread words ([`crate::process::sharing`]), and the ways into seccomp, which are those of `seccomp.rs`.
///
/// # Safety
/// As glibc's function of that name.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp edi, {nr_fork}",
        "je 3f",
        "cmp edi, {nr_clone}", // clone: flags, stack
        "je 4f",
        "cmp edi, {nr_seccomp}", // seccomp: operation (strict, filter), flags, filter
        "je 7f",
        "cmp edi, {nr_prctl}",
        "je 8f",
        "cmp edi, {nr_execve}", // execve: path, arguments, environment
        "je 12f",
        "cmp edi, {nr_execveat}", // execveat: folder, path, arguments, environment, flags
        "je 13f",
        "cmp edi, {nr_clone3}", // clone3: struct clone_args: flags at 0, stack at 40
        "je 5f",
        "2:",
        "jmp [rip + {real}]",
        "4:",
        "test esi, {clone_vm}",
        "jnz 15f",
        "test rdx, rdx",
        "jnz 2b",
        "jmp 3f",
        "15:",
        "test esi, {clone_vfork}", // such a child returns to the caller on the same stack
        "jnz 2b",
        "mov rax, rsi",
        "mov r10, rdx",
        "16:",
        "mov r11, [rip + {real}]",
        "jmp gpi_share_words",
        "5:",
        "cmp rdx, 64", // the first size of the structure
        "jb 2b",
        "test dword ptr [rsi], {clone_vm}",
        "jnz 17f",
        "cmp qword ptr [rsi+40], 0",
        "jne 2b",
        "jmp 3f",
        "17:",
        "test dword ptr [rsi], {clone_vfork}",
        "jnz 2b",
        "mov rax, [rsi]",
        "mov r10, [rsi+40]", // the lower end of the stack, and its size
        "add r10, [rsi+48]",
        "mov r9, [rsi+56]", // clone3 does not have the fifth argument
        "jmp 16b",
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {list}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "sub rsp, 8",
        "call [rip + {real}]",
        "test rax, rax",
        "jnz 6f",
        "call {begin}",
        "xor eax, eax",
        "6:",
        "add rsp, 8",
        "ret",
        "7:",
        "lea rax, [rsi+1]", // prctl's mode
        "mov r10, rcx",
        "jmp 9f",
        "8:",
        "cmp esi, {set_dispatch}",
        "je {dispatch}",
        "cmp esi, {set_tsc}",
        "je 14f",
        "cmp esi, {set_seccomp}",
        "jne 2b",
        "mov rax, rdx",
        "mov r10, rcx",
        "9:",
        "mov r11, [rip + {real}]",
        "jmp gpi_enter_seccomp",
        "14:",
        "cmp edx, {forbids}",
        "jne 2b",
        "mov rax, {no_counter}",
        "jmp 9b",
        // The C library's own function does the same, with the arguments shifted by one.
        "12:",
        "cmp qword ptr [rip + {execve}], 0",
        "je 2b",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "jmp [rip + {execve}]",
        "13:",
        "cmp qword ptr [rip + {execveat}], 0",
        "je 2b",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "jmp [rip + {execveat}]",
        nr_fork = const general::__NR_fork,
        nr_clone = const general::__NR_clone,
        nr_clone3 = const general::__NR_clone3,
        nr_seccomp = const general::__NR_seccomp,
        nr_prctl = const general::__NR_prctl,
        nr_execve = const general::__NR_execve,
        nr_execveat = const general::__NR_execveat,
        clone_vm = const general::CLONE_VM,
        clone_vfork = const general::CLONE_VFORK,
        set_seccomp = const prctl::PR_SET_SECCOMP,
        set_tsc = const prctl::PR_SET_TSC,
        forbids = const prctl::PR_TSC_SIGSEGV,
        no_counter = const NO_COUNTER as i64,
        execve = sym execute::BY_EXECVE,
        execveat = sym execute::BY_EXECVEAT,
        list = sym inherited::list,
        set_dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
        dispatch = sym dispatch::by_syscall,
        real = sym SYSCALL,
        begin = sym children::begin,
    );
}
