//! What is decided about a clone that a program makes by an instruction of its own, before the machine code of [`crate::process::calls`]
//! makes it, and what follows in the child.
#![allow(unsafe_code, reason = "the arguments of clone3, and the structure at a thread pointer, are read")]

use crate::hot::times::inherited;
use crate::os::memory;
#[cfg(feature = "standalone")]
use crate::os::records;
use crate::os::task;
use crate::process::children;
#[cfg(not(feature = "standalone"))]
use crate::process::sharing;
use linux_raw_sys::general;

/// The preparation of a clone: the values that the machine code needs to start the child.
#[repr(C)]
pub(super) struct Birth {
    /// The child's stack pointer, or 0 if the child begins with its parent's.
    stack: u64,
    /// The address of the child's record, [`OWN_MEMORY`] or [`SAME_RECORD`]. In a program that is not standalone, a greater number than
    /// these is [`FIRST_ENTRY`] plus what [`crate::process::sharing`] has returned.
    record: u64,
}

/// The child has a copy of the memory, and so of its parent's record.
pub(super) const OWN_MEMORY: u64 = 0;
/// The child uses its parent's record while the parent waits.
pub(super) const SAME_RECORD: u64 = 1;

/// See [`Birth::record`].
#[cfg(not(feature = "standalone"))]
pub(super) const FIRST_ENTRY: u64 = SAME_RECORD + 1;
/// In a standalone program, the machine code does not use this.
#[cfg(feature = "standalone")]
pub(super) const FIRST_ENTRY: u64 = 0;

/// The first version of struct clone_args (clone(2)).
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Prepares a clone or clone3. `first`, `second` and `fifth` are arguments of the system call.
///
/// # Safety
/// The arguments must be those of a system call that the program makes.
pub(super) unsafe extern "C" fn prepare_birth(number: u64, first: u64, second: u64, fifth: u64) -> Birth {
    let (flags, lo, stack, tls);
    if number as u32 == general::__NR_clone3 {
        let is_whole = second >= size_of::<CloneArguments>() as u64;
        let last = first.wrapping_add(size_of::<CloneArguments>() as u64 - 1);
        let process = task::getpid();
        if !is_whole || [first, last].into_iter().any(|at| memory::is_unreadable(process, at)) {
            // The kernel will return an error.
            return Birth { stack: 0, record: OWN_MEMORY };
        }
        // SAFETY: both ends of the structure are readable, and it is shorter than a page.
        let arguments = unsafe { &*(first as *const CloneArguments) };
        let end = arguments.stack.wrapping_add(arguments.stack_size);
        (flags, lo, stack, tls) = (arguments.flags, arguments.stack, end, arguments.tls);
    } else {
        (flags, lo, stack, tls) = (first, 0, second, fifth);
    }
    let has = |flag: u32| flags & u64::from(flag) != 0;
    if !has(general::CLONE_VM) {
        inherited::list();
        return Birth { stack, record: OWN_MEMORY };
    }
    if has(general::CLONE_VFORK) {
        return Birth { stack, record: SAME_RECORD };
    }
    let tls = if has(general::CLONE_SETTLS) { tls } else { 0 };
    Birth { stack, record: record_of_child(flags, lo, stack, tls) }
}

/// Returns the record of a child that shares the memory: see [`Birth::record`]. The child's stack begins at `lo`, or at an unknown address
/// if that is 0, and its stack pointer is `stack`, or that of its parent if that is 0. `tls` is its thread pointer or 0.
#[cfg(feature = "standalone")]
fn record_of_child(_flags: u64, lo: u64, stack: u64, tls: u64) -> u64 {
    if stack == 0 {
        return SAME_RECORD;
    }
    let lo = if lo == 0 { lower_end(stack, tls) } else { lo };
    records::of_new_thread(if lo == 0 { [0; 2] } else { [lo, stack] })
}

/// Returns the record of a child that shares the memory, as above.
#[cfg(not(feature = "standalone"))]
fn record_of_child(flags: u64, _lo: u64, stack: u64, tls: u64) -> u64 {
    FIRST_ENTRY + sharing::expect(flags, stack, tls)
}

/// Returns the lowest address of a new thread's stack, or 0 if it is not known.
///
/// The thread pointer of musl points to a struct pthread, which has the end and the size of the thread's stack in consecutive fields
/// (pthread_impl.h, `stack` and `stack_size`). The thread's initial stack pointer is a little below that end.
#[cfg(feature = "standalone")]
fn lower_end(stack: u64, thread_pointer: u64) -> u64 {
    const PAGE: u64 = 4096;
    /// The number of words of the structure that are searched for the two fields.
    const WORDS: u64 = 32;
    /// The maximum distance of the initial stack pointer from the end of the stack.
    const BELOW: u64 = 512;
    /// The upper limit of plausible stack sizes.
    const LARGEST: u64 = 1 << 40;
    let is_aligned = thread_pointer != 0 && thread_pointer.is_multiple_of(8);
    if !is_aligned || memory::is_unreadable(task::getpid(), thread_pointer) {
        return 0;
    }
    let words = ((PAGE - thread_pointer % PAGE) / 8).min(WORDS);
    // SAFETY: the first word is readable, and the others are on the same page.
    let word = |n: u64| unsafe { *(thread_pointer as *const u64).add(n as usize) };
    let found = (1..words).find_map(|n| {
        let (end, size) = (word(n - 1), word(n));
        let is_end = end >= stack && end - stack < BELOW && (1..LARGEST.min(end)).contains(&size);
        is_end.then(|| end - size).filter(|lo| *lo < stack)
    });
    found.unwrap_or(0)
}

/// Sets up the agent in a child that has a copy of the memory.
pub(super) extern "C" fn begin_child() {
    #[cfg(feature = "standalone")]
    records::begin_child();
    children::begin();
}

/// Notes the result of a clone that has made a thread with this record.
#[cfg(not(feature = "standalone"))]
pub(super) extern "C" fn born(record: u64, result: i64) {
    sharing::born(record - FIRST_ENTRY, result);
}
