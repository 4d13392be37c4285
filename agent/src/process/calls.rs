//! Handles the system calls that a program makes by instructions of its own and that make threads or processes, execute programs, or
//! otherwise concern the agent. The plan redirects these `syscall` instructions to this module
//! (`gprofinject_abi::plan::ArenaHeader::system_call`): in a standalone program those of its C library too; in other programs, the
//! C library's functions lead to the agent in another way ([`crate::process::syscall`]).
//!
//! ```text
//! call                                     what the child shares    what it needs
//! fork, clone without CLONE_VM             nothing                  a region file of its own
//! clone with CLONE_VM and a stack          the memory               thread words of its own, in a record, or a place among the threads that
//!                                                                   share theirs ([`crate::process::sharing`])
//! the same with CLONE_VFORK                the memory               nothing: its parent waits
//! clone with CLONE_VM and no stack         memory and stack         nothing: its parent waits
//! execve, execveat                         -                        the agent's variables in the environment
//! prctl, seccomp                           -                        the agent stops making system calls
//! exit_group in a standalone program       -                        the profile, if no injector is left to write it
//! ```
//!
//! A call arrives with the registers of the `syscall` instruction, except rcx, which is the address at which the program
//! continues. The 128 bytes below the stack pointer are the program's red zone. Below the red zone, there may be little room (in Go
//! programs). Therefore the agent handles these calls on the thread's stack for slow paths ([`crate::hot::small_stacks`]), except
//! calls whose child shares the stack. A thread that has none takes one; if there are no more, what it executes is not followed. Other
//! programs have room for these calls below the red zone.
#![allow(unsafe_code, reason = "machine code makes system calls")]

use crate::hot::slow_stack::{END, LEN, NEXT, POOL};
use crate::hot::times::inherited;
#[cfg(feature = "standalone")]
use crate::os::record::Record;
use crate::os::task;
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{SLOW_STACK, SLOW_STACK_FREE, thread_word, words_offset};
#[cfg(not(feature = "standalone"))]
use crate::process::clone::born;
use crate::process::clone::{OWN_MEMORY, SAME_RECORD, begin_child, prepare_birth};
use crate::process::dispatch;
use crate::process::execute;
use crate::process::orphan;
use crate::process::seccomp;
#[cfg(feature = "standalone")]
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
#[cfg(feature = "standalone")]
use core::sync::atomic::Ordering;
use linux_raw_sys::general;

/// Whether user code may set the base of gs with an instruction: 1 or 0. Stored once, before the program runs. Used in standalone
/// programs only.
static MAY_WRITE_GS: AtomicU32 = AtomicU32::new(0);

/// Stores whether user code may set the base of gs with an instruction.
#[cfg(feature = "standalone")]
pub(crate) fn prepare(may_write_gs: bool) {
    MAY_WRITE_GS.store(may_write_gs.into(), Ordering::Relaxed);
}

/// Offsets in a thread's record, which a program that is not standalone does not have.
#[cfg(feature = "standalone")]
const RECORD: [usize; 2] = [offset_of!(Record, shared_stack), offset_of!(Record, tid)];
#[cfg(not(feature = "standalone"))]
const RECORD: [usize; 2] = [0; 2];

core::arch::global_asm!(
    ".text",
    ".hidden gpi_system_call",
    ".globl gpi_system_call",
    //
    // gpi_keep and gpi_kept surround a call of a Rust function, and preserve all registers except rcx and r11. In between, rbp points
    // to the saved registers.
    ".macro gpi_keep",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r8",
    "push r9",
    "push r10",
    "push rax",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    save_vectors!(),
    ".endm",
    ".macro gpi_kept",
    restore_vectors!(),
    "mov rsp, rbp",
    "pop rbp",
    "pop rax",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    ".endm",
    // Takes a stack for slow paths for the thread, which has none, and counts it as in use. Output: r11 = its upper end. Changes no
    // other register. Continues at \\none if there are no more.
    ".macro gpi_take none",
    "mov r11d, {len}",
    "lock xadd [rip+{pool}+{next}], r11",
    "cmp r11, [rip+{pool}+{end_of_pool}]",
    "jae \\none",
    "mov [r11-8], rcx",
    words_offset!("rcx"),
    thread_word!("mov ", "[rcx+{slow}], r11"),
    "mov rcx, [r11-8]",
    ".endm",
    // Counts the stack for slow paths as not in use. \\register = the offset of the thread's words.
    ".macro gpi_free register",
    thread_word!("or qword ptr ", "[\\register+{slow}], {free}"),
    ".endm",
    // Switches to the thread's stack for slow paths, if the program's functions may have too little and it is not in use;
    // otherwise moves rsp below the program's red zone. Pushes rcx, the address at which the program continues. Changes r11. Continues at
    // \\none if there is no such stack for the thread.
    ".macro gpi_aside none=90f",
    "cmp qword ptr [rip+{pool}+{end_of_pool}], 0",
    "je 90f",
    words_offset!("r11"),
    thread_word!("lock btr qword ptr ", "[r11+{slow}]", ", 0"),
    thread_word!("mov r11, ", "[r11+{slow}]"),
    "jc 89f",
    "test r11, r11",
    "jnz 90f",                      // in use
    "gpi_take \\none",
    "89:",
    "mov [r11-8], rsp",
    "mov [r11-16], r11",
    "lea rsp, [r11-16]",
    "jmp 91f",
    // A signal handler of the program's may use the stack below the red zone of rsp at any time.
    "90:",
    "lea rsp, [rsp-144]",
    "lea r11, [rsp+144]",
    "mov [rsp+8], r11",
    "mov qword ptr [rsp], 0",
    "91:",
    "push rcx",
    ".endm",
    // Undoes gpi_aside. Output: rcx = the address at which the program continues. Changes r11.
    ".macro gpi_back",
    "pop rcx",
    "pop r11",
    "pop rsp",
    "test r11, r11",
    "jz 92f",
    words_offset!("r11"),
    "gpi_free r11",
    "92:",
    ".endm",
    ".macro gpi_continue",
    "gpi_back",
    "jmp rcx",
    ".endm",
    //
    ".p2align 4",
    ".type gpi_system_call, @function",
    "gpi_system_call:",
    "cmp eax, {clone}",
    "je 20f",
    "cmp eax, {clone3}",
    "je 21f",
    "cmp eax, {fork}",
    "je 10f",
    "cmp eax, {execve}",
    "je 40f",
    "cmp eax, {execveat}",
    "je 41f",
    "cmp eax, {exit_group}",
    "je 60f",
    "cmp eax, {prctl}",
    "je 50f",
    "cmp eax, {seccomp}",
    "je 51f",
    //
    // A child that shares the stack overwrites its parent's data there. So the parent stores the address at which it continues elsewhere: in
    // its record, or in the lowest word of its stack for slow paths. The child may execute a program, on the stack for slow
    // paths, which is not in use when the parent continues. In other programs, the call is made by the instruction before that address.
    "1:",
    ".if {is_standalone} == 0",
    "cmp qword ptr [rip+{pool}+{end_of_pool}], 0",
    "je 4f",
    words_offset!("r11"),
    thread_word!("mov r11, ", "[r11+{slow}]"),
    "test r11, r11",
    "jnz 5f",
    "gpi_take 4f",
    "mov [r11-{len}], rcx",
    words_offset!("rcx"),
    "gpi_free rcx",
    "jmp 6f",
    "5:",
    "and r11, -2",
    "cmp qword ptr [r11-{len}], 0", // such a child makes another one
    "jne 4f",
    "mov [r11-{len}], rcx",
    "6:",
    "syscall",
    words_offset!("r11"),
    thread_word!("mov r11, ", "[r11+{slow}]"),
    "and r11, -2",
    "test rax, rax",
    "jz 7f",
    words_offset!("rcx"),
    "gpi_free rcx",
    "mov rcx, [r11-{len}]",
    "mov qword ptr [r11-{len}], 0",
    "jmp rcx",
    "7:",
    "mov rcx, [r11-{len}]",
    "jmp rcx",
    "4:",
    "lea rcx, [rcx-2]",
    "jmp rcx",
    ".else",
    "cmp qword ptr gs:[{slots}], 0",
    "jne 3f",
    "mov gs:[{slots}], rsp",
    "mov gs:[{slots}+8], rcx",
    "syscall",
    "mov rcx, gs:[{slots}+8]",
    "test rax, rax",
    "jz 2f",
    "mov qword ptr gs:[{slots}], 0",
    "cmp qword ptr gs:[{slow}], 0",
    "je 2f",
    "or qword ptr gs:[{slow}], {free}",
    "2:",
    "jmp rcx",
    "3:",                           // such a child makes another one
    "mov gs:[{slots}+16], rsp",
    "mov gs:[{slots}+24], rcx",
    "syscall",
    "mov rcx, gs:[{slots}+24]",
    "jmp rcx",
    ".endif",
    //
    "10:",                          // fork
    "gpi_aside",
    "gpi_keep",
    "call {list}",
    "gpi_kept",
    "11:",
    "syscall",
    "test rax, rax",
    "jnz 12f",
    "gpi_keep",
    "call {begin_child}",
    "gpi_kept",
    "12:",
    "gpi_continue",
    //
    "20:",                          // clone. First the case of Go's fork, in which there may be little stack
    "mov r11d, edi",
    "and r11d, {clone_vm} | {clone_vfork}",
    "cmp r11d, {clone_vm} | {clone_vfork}",
    "jne 21f",
    "test rsi, rsi",
    "jz 1b",
    "21:",
    "gpi_aside",
    "gpi_keep",
    "mov rdx, rsi",
    "mov rsi, rdi",
    "mov rdi, rax",
    "mov rcx, r8",
    "call {prepare_birth}",
    "mov rcx, rax",                 // the child's stack pointer
    "mov r11, rdx",                 // its record
    "gpi_kept",
    "test r11, r11",
    "jz 30f",
    "test rcx, rcx",
    "jz 25f",
    "push qword ptr [rsp]",         // where the child continues
    "pop qword ptr [rcx-16]",
    "mov [rcx-8], r11",
    "push r11",
    "syscall",
    "test rax, rax",
    "jz 22f",
    "pop rcx",
    "cmp rcx, {same_record}",
    "je 12b",
    ".if {is_standalone}",
    "cmp rax, -4096",
    "ja 23f",
    "mov [rcx+{tid}], eax",
    "jmp 12b",
    "23:",                          // there is no child
    "mov dword ptr [rcx+{tid}], 0",
    ".else",
    "gpi_keep",
    "mov rdi, rcx",
    "mov rsi, rax",
    #[cfg(not(feature = "standalone"))]
    "call {born}",
    "gpi_kept",
    ".endif",
    "jmp 12b",
    "22:",                          // the child, on its own stack
    "mov rcx, [rsp-8]",
    "mov r11, [rsp-16]",
    ".if {is_standalone}",
    "cmp rcx, {same_record}",
    "je 24f",
    "cmp dword ptr [rip+{may_write_gs}], 0",
    "je 26f",
    "wrgsbase rcx",
    "24:",
    ".endif",
    "xor eax, eax",
    "jmp r11",
    ".if {is_standalone}",
    "26:",
    "push r11",
    "push rdi",
    "push rsi",
    "mov rsi, rcx",
    "mov edi, {arch_set_gs}",
    "mov eax, {arch_prctl}",
    "syscall",
    "pop rsi",
    "pop rdi",
    "pop rcx",
    "xor eax, eax",
    "jmp rcx",
    ".endif",
    "25:",                          // the child shares the stack
    "gpi_back",
    "jmp 1b",
    //
    "30:",                          // the child has a copy of the memory, and perhaps a new stack
    "test rcx, rcx",
    "jz 11b",
    "push qword ptr [rsp]",
    "pop qword ptr [rcx-16]",
    "syscall",
    "test rax, rax",
    "jnz 12b",
    "lea rsp, [rsp-16]",
    "gpi_keep",
    "call {begin_child}",
    "gpi_kept",
    words_offset!("rcx"),           // the parent had used the stack for slow paths
    thread_word!("cmp qword ptr ", "[rcx+{slow}]", ", 0"),
    "je 31f",
    "gpi_free rcx",
    "31:",
    "pop rcx",
    "lea rsp, [rsp+8]",
    "jmp rcx",
    //
    // rdi = path, rsi = arguments, rdx = environment.
    "40:",
    "gpi_aside 43f",
    "gpi_keep",
    "sub rsp, 4096",
    "test [rsp], rsp",
    "sub rsp, 4096",
    "test [rsp], rsp",
    "mov rcx, rsp",
    "mov rsi, rdi",
    "mov edi, -100",                // AT_FDCWD
    "call {environment}",
    "mov rdi, [rbp+56]",
    "mov rsi, [rbp+48]",
    "mov rdx, rax",
    "mov eax, {execve}",
    "syscall",
    "jmp 42f",
    //
    // rdi = folder, rsi = path, rdx = arguments, r10 = environment, r8 = flags.
    "41:",
    "gpi_aside 43f",
    "gpi_keep",
    "sub rsp, 4096",
    "test [rsp], rsp",
    "sub rsp, 4096",
    "test [rsp], rsp",
    "mov rcx, rsp",
    "mov rdx, r10",
    "call {environment}",
    "mov rdi, [rbp+56]",
    "mov rsi, [rbp+48]",
    "mov rdx, [rbp+40]",
    "mov r8, [rbp+32]",
    "mov r10, rax",
    "mov eax, {execveat}",
    "syscall",
    "42:",                          // the program was not executed
    "mov [rbp+8], rax",
    "call {not_executed}",
    "lea rsp, [rsp+8192]",
    "gpi_kept",
    "gpi_continue",
    "43:",
    "lea rcx, [rcx-2]",
    "jmp rcx",
    //
    "50:",                          // prctl: edi = operation, rsi = mode, rdx = filter
    "cmp edi, {set_seccomp}",
    "jne 54f",
    "gpi_aside",
    "gpi_keep",
    "mov rdi, rsi",
    "jmp 52f",
    "54:",
    "cmp edi, {set_dispatch}",
    "je 55f",
    "cmp edi, {set_tsc}",
    "jne 53f",
    "cmp esi, {forbids}",
    "jne 53f",
    "gpi_aside",
    "gpi_keep",
    "mov rdi, {no_counter}",
    "jmp 52f",
    "55:",
    "gpi_aside",
    "gpi_keep",
    "mov rcx, r10",
    "call {dispatch}",
    "mov [rbp+8], rax",
    "gpi_kept",
    "gpi_continue",
    "51:",                          // seccomp: edi = 0 or 1, mode - 1; rdx = filter
    "cmp edi, 1",
    "ja 53f",
    "gpi_aside",
    "gpi_keep",
    "add edi, 1",
    "52:",
    "mov rsi, rdx",
    "call {enter}",
    "movzx r11d, al",               // whether to undo the preparation if the kernel refuses
    "gpi_kept",
    "push r11",
    "syscall",
    "pop rcx",
    "cmp rax, -4096",
    "jbe 12b",
    "test ecx, ecx",
    "jz 12b",
    "gpi_keep",
    "call {stay}",
    "gpi_kept",
    "jmp 12b",
    "53:",
    "gpi_aside",
    "syscall",
    "jmp 12b",
    //
    "60:",                          // exit_group
    ".if {is_standalone} == 0",
    "jmp 1b",
    ".endif",
    "gpi_aside",
    "gpi_keep",
    "call {end}",
    "gpi_kept",
    "syscall",
    "jmp 12b",
    ".size gpi_system_call, . - gpi_system_call",
    exit_group = const general::__NR_exit_group,
    end = sym orphan::end,
    prctl = const general::__NR_prctl,
    seccomp = const general::__NR_seccomp,
    set_seccomp = const linux_raw_sys::prctl::PR_SET_SECCOMP,
    set_tsc = const linux_raw_sys::prctl::PR_SET_TSC,
    set_dispatch = const dispatch::PR_SET_SYSCALL_USER_DISPATCH,
    dispatch = sym dispatch::by_instruction,
    forbids = const linux_raw_sys::prctl::PR_TSC_SIGSEGV,
    no_counter = const seccomp::NO_COUNTER as i64,
    enter = sym seccomp::enter,
    stay = sym seccomp::stay,
    clone = const general::__NR_clone,
    clone3 = const general::__NR_clone3,
    fork = const general::__NR_fork,
    execve = const general::__NR_execve,
    execveat = const general::__NR_execveat,
    arch_prctl = const general::__NR_arch_prctl,
    arch_set_gs = const task::ARCH_SET_GS,
    clone_vm = const general::CLONE_VM,
    clone_vfork = const general::CLONE_VFORK,
    same_record = const SAME_RECORD,
    is_standalone = const cfg!(feature = "standalone") as u32,
    slots = const RECORD[0],
    slow = const SLOW_STACK,
    free = const SLOW_STACK_FREE,
    len = const LEN,
    pool = sym POOL,
    next = const NEXT,
    end_of_pool = const END,
    tid = const RECORD[1],
    #[cfg(not(feature = "standalone"))]
    born = sym born,
    not_executed = sym execute::not_executed,
    may_write_gs = sym MAY_WRITE_GS,
    prepare_birth = sym prepare_birth,
    list = sym inherited::list,
    begin_child = sym begin_child,
    environment = sym execute::environment,
);

const _: () = assert!(OWN_MEMORY == 0);

unsafe extern "C" {
    /// Handles a redirected system call. See the top of this file for its registers.
    pub(crate) fn gpi_system_call();
}
