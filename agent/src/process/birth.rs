//! Redirects the system calls with which the C library makes threads and forked children to the agent.
//!
//! There are three cases. In a process that was attached to, the thread words are not a TLS variable, so the agent has to initialize
//! them for each new thread; and it cannot learn of forks by a fork handler, because such a handler cannot be removed again. If
//! functions of the C library are hooked, a forked child runs through some of these hooks before the library calls the handlers. And if calls
//! are measured, fork handlers of other libraries that come before the agent's would make calls that are not.
//!
//! Each `mov eax, number` before a `syscall` is replaced by a call of a stub in this module. The stub returns to the `syscall`, or
//! makes the system call itself if the child needs preparation before it continues.
#![allow(unsafe_code, reason = "the C library's text is patched")]

use crate::hot::times::inherited;
use crate::os::kernel;
use crate::os::lookup;
use crate::os::memory;
#[cfg(not(test))]
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{self, words_offset};
use crate::process::children;
use crate::process::sharing;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::ThreadWords;
use linux_raw_sys::general;

const CLONE: u32 = general::__NR_clone;
const CLONE3: u32 = general::__NR_clone3;
/// The maximum number of places that are redirected. A C library has one each for fork, clone and clone3, or a few more.
const MOST: usize = 16;
/// The length of `mov eax, number`, and of the call that replaces it.
const LEN: usize = 5;

/// The address and the system call number of each place. Stored once.
static PLACES: [[AtomicU64; 2]; MOST] = [const { [const { AtomicU64::new(0) }; 2] }; MOST];

/// Returns the machine code of `mov eax, number; syscall`.
fn wanted(number: u32) -> [u8; 7] {
    let mut bytes = [0xb8, 0, 0, 0, 0, 0x0f, 0x05];
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns the address of the stub for a system call.
fn stub(number: u64) -> u64 {
    if number == u64::from(CLONE3) { gpi_clone3 as *const () as u64 } else { gpi_clone as *const () as u64 }
}

/// Finds the places, while other threads may run.
///
/// # Errors
/// Returns ENOENT if the C library has no such place with which it forks, or too many places.
pub(crate) fn prepare(dynamic_linker: u64) -> Result<(), i32> {
    if find(lookup::libc_text(dynamic_linker), &[CLONE, CLONE3])? { Ok(()) } else { Err(kernel::ENOENT) }
}

/// Redirects the fork system calls of the C library, if this is its text, unless that was done before. The hooks of the library are in
/// place: a system call that a hook has overwritten is not found. Calls that make threads are not redirected, because there the
/// thread words are a TLS variable. If the redirection fails, the agent in a child starts when the C library calls the fork handlers. In a
/// process that was attached to, [`redirect`] has redirected all of these calls already, and in a standalone program, each system call
/// that forks has a hook of its own.
pub(crate) fn redirect_forks(text: (u64, u64)) {
    let is_done = PLACES.iter().any(|[place, _]| place.load(Ordering::Relaxed) != 0);
    if cfg!(feature = "standalone") || words::is_attached() || is_done || !children::is_in(text) {
        return;
    }
    if find(text, &[CLONE]).is_ok() && redirect().is_err() {
        let _ = put_back();
    }
}

/// Finds the places of the system calls with these numbers in the C library's text. Returns whether one of them can fork (clone).
fn find((lo, hi): (u64, u64), numbers: &[u32]) -> Result<bool, i32> {
    // SAFETY: the range is the C library's text, which is mapped and readable.
    let text = unsafe { slice::from_raw_parts(lo as *const u8, (hi - lo) as usize) };
    let mut places = PLACES.iter();
    let mut clones = false;
    for (offset, bytes) in text.windows(7).enumerate() {
        let number = if bytes[0] == 0xb8 && bytes[5] == 0x0f { u32::from(bytes[1]) } else { continue };
        let Some(number) = numbers.iter().copied().find(|&n| n & 0xff == number && bytes == wanted(n)) else {
            continue;
        };
        let Some([place, known]) = places.next() else { return Err(kernel::ENOENT) };
        place.store(lo + offset as u64, Ordering::Relaxed);
        known.store(number.into(), Ordering::Relaxed);
        clones |= number == CLONE;
    }
    Ok(clones)
}

/// Replaces the instructions at the places by calls of the stubs. All other threads are stopped, and none of them is between a
/// place's two instructions.
///
/// # Errors
/// Returns ENOENT if the agent is out of reach of a near call, or the error number of mprotect.
pub(crate) fn redirect() -> Result<(), i32> {
    for [place, number] in &PLACES {
        let place = place.load(Ordering::Relaxed);
        if place == 0 {
            break;
        }
        let stub = stub(number.load(Ordering::Relaxed));
        let distance =
            i32::try_from(stub.wrapping_sub(place + LEN as u64) as i64).map_err(|_| kernel::ENOENT)?;
        let mut call = [0xe8, 0, 0, 0, 0];
        call[1..].copy_from_slice(&distance.to_le_bytes());
        write(place, &call)?;
    }
    Ok(())
}

/// Restores the original instructions.
///
/// # Errors
/// Returns the first error number of mprotect. The other places are restored.
pub(crate) fn put_back() -> Result<(), i32> {
    let mut result = Ok(());
    for [place, number] in &PLACES {
        let place = place.load(Ordering::Relaxed);
        if place == 0 {
            break;
        }
        let done = write(place, &wanted(number.load(Ordering::Relaxed) as u32)[..LEN]);
        result = result.and(done);
    }
    result
}

fn write(place: u64, bytes: &[u8]) -> Result<(), i32> {
    let page = place & !4095;
    let len = (place + bytes.len() as u64).next_multiple_of(4096) - page;
    // SAFETY: the pages are the C library's own, and no thread runs their code now.
    unsafe {
        memory::mprotect(page, len, memory::PROT_READ | memory::PROT_WRITE)?;
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), place as *mut u8, bytes.len());
        memory::mprotect(page, len, memory::PROT_READ | memory::PROT_EXEC).map(|_| ())
    }
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_clone, gpi_clone3",
    ".globl gpi_clone, gpi_clone3",
    // Initializes the words of a new thread whose thread control block is at \\block. The words make the thread's first thunk take the
    // slow path. Does nothing if the words are TLS variables.
    ".macro gpi_new_words block",
    "cmp qword ptr [rip+{words}], 0",
    "je 7f",
    words_offset!("rax"),
    "add rax, \\block",
    "mov rcx, [rip+{words}]",
    "mov [rax], rcx",
    "mov rcx, [rip+{words}+8]",
    "mov [rax+8], rcx",
    "mov qword ptr [rax+16], 0",
    "mov qword ptr [rax+24], 0",
    "mov qword ptr [rax+32], 0",
    "mov qword ptr [rax+40], 0",
    "mov qword ptr [rax+48], 0",
    "mov rcx, [rip+{words}+16]",
    "mov [rax+56], rcx",
    "mov qword ptr [rax+64], 0",
    "mov qword ptr [rax+72], 0",
    "mov qword ptr [rax+80], 0",
    "mov qword ptr [rax+88], 0",
    "mov qword ptr [rax+96], 0",
    "mov qword ptr [rax+104], 0",
    "mov qword ptr [rax+{slow}], 0",
    "7:",
    ".endm",
    // Calls a function of the agent before or after a fork. Preserves all registers except rax, rcx and r11, including vector
    // registers.
    ".macro gpi_around function",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r8",
    "push r9",
    "push r10",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    save_vectors!(),
    "call \\function",
    restore_vectors!(),
    "mov rsp, rbp",
    "pop rbp",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    ".endm",
    // Makes the system call in the stub if the child has a copy of the memory. Label 5: the child has a copy of the memory and a new
    // stack. Label 4: the child shares the memory, and the stub returns to the C library's `syscall`.
    ".macro gpi_make number",
    "gpi_around {list}",
    "mov eax, \\number",
    "syscall",
    "test rax, rax",
    "jnz 3f",
    "gpi_around {begin}",
    "xor eax, eax",
    "3:",
    "add qword ptr [rsp], 2",       // return to the instruction after the syscall
    "4:",
    "ret",
    "5:",                           // glibc's clone()
    "gpi_around {list}",
    "mov eax, \\number",
    "pop r9",
    "add r9, 2",
    "syscall",
    "test rax, rax",
    "jnz 6f",
    "gpi_around {begin}",
    "xor eax, eax",
    "6:",
    "jmp r9",
    ".endm",
    //
    // rdi = flags, rsi = stack, rdx, r10, r8 = the thread's control block.
    ".p2align 4",
    ".type gpi_clone, @function",
    "gpi_clone:",
    "test edi, {set_tls}",
    "jz 2f",
    "gpi_new_words r8",
    "2:",
    "mov eax, {clone}",
    "test edi, {clone_vm}",
    "jnz 8f",
    "test rsi, rsi",
    "jnz 5f",
    "gpi_make {clone}",
    // A child that shares the memory. If it does not get thread words, it shares its parent's.
    "8:",
    "test edi, {set_tls} | {clone_vfork}",
    "jnz 4b",
    "test rsi, rsi",
    "jz 10f",
    "gpi_around {expect}",
    "pop r9",
    "add r9, 2",
    "push rax",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jnz 9f",
    "jmp r9",
    "9:",
    "push rax",
    "push rdi",
    "push rsi",
    "mov rdi, [rsp+24]",
    "mov rsi, [rsp+16]",
    "gpi_around {born}",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "lea rsp, [rsp+8]",
    "jmp r9",
    "10:",                          // it shares the stack as well
    "gpi_around {expect}",
    "mov eax, {clone}",
    "ret",
    ".size gpi_clone, . - gpi_clone",
    //
    // rdi = struct clone_args: flags at 0, stack at 40, the thread's control block at 56; rsi = its size.
    ".p2align 4",
    ".type gpi_clone3, @function",
    "gpi_clone3:",
    "test dword ptr [rdi], {set_tls}",
    "jz 2f",
    "mov r11, [rdi+56]",
    "gpi_new_words r11",
    "2:",
    "mov eax, {clone3}",
    "test dword ptr [rdi], {clone_vm}",
    "jnz 4f",
    "cmp qword ptr [rdi+40], 0",
    "jne 5f",
    "gpi_make {clone3}",
    ".size gpi_clone3, . - gpi_clone3",
    words = sym WORDS,
    slow = const words::SLOW_STACK,
    begin = sym children::begin,
    list = sym inherited::list,
    set_tls = const general::CLONE_SETTLS,
    clone_vm = const general::CLONE_VM,
    clone_vfork = const general::CLONE_VFORK,
    expect = sym sharing::expect,
    born = sym sharing::born,
    clone = const CLONE,
    clone3 = const CLONE3,
);

const _: () = assert!(size_of::<ThreadWords>() == 112, "gpi_new_words writes all of them");

/// The initial values of a new thread's first two words and its word for libraries. All other words are initially 0.
static WORDS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Stores these initial values. Until this is called, stubs leave the words of new threads alone.
pub(crate) fn set_words(block: u64, cells: u64, library_last: u64) {
    WORDS[0].store(block, Ordering::Relaxed);
    WORDS[1].store(cells, Ordering::Relaxed);
    WORDS[2].store(library_last, Ordering::Relaxed);
}

/// Returns whether one of the places lies in a range of addresses.
pub(crate) fn is_redirected(lo: u64, hi: u64) -> bool {
    let is_in = |at: u64| at < hi && lo < at + LEN as u64;
    PLACES
        .iter()
        .any(|[place, _]| Some(place.load(Ordering::Relaxed)).filter(|at| *at != 0).is_some_and(is_in))
}

#[cfg(not(test))]
unsafe extern "C" {
    fn gpi_clone();
    fn gpi_clone3();
}

#[cfg(test)]
fn gpi_clone() {}
#[cfg(test)]
fn gpi_clone3() {}
