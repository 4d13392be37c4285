//! The injector's orders to an agent in a process that is already running.
//!
//! The injector borrows a stopped thread of the process and makes it call the library's function [`CONTROL`] with an
//! [`Order`] in memory. If the process was started without the agent, the injector has mapped the library by itself,
//! and its first order is [`Command::Prepare`].

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ask::Question;
use crate::coded::coded;
use crate::names::FOLDER_MAX;
use crate::plan::ThreadWords;

/// The instruction after the call by which the agent's guard against panics calls the agent's own code: `mov qword [rsp], 0`
/// (the agent's `program/failure.rs`). The injector recognises a return address in the guard by it.
pub const GUARD_OUT: [u8; 8] = [0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0];

/// Name of the library's entry point for orders. On entry, rdi is the address of an [`Order`], and rsp, a multiple of
/// 16, is the top of a stack that the injector has made. The function never returns: it sets [`Order::done`] and
/// sleeps.
pub const CONTROL: &str = "gprofinject_control";

coded! {
    /// The command of an order.
    pub enum Command as CommandCode(u64) {
        /// Do the whole set-up except for the patches. Other threads may run in the meantime.
        Prepare = 1,
        /// Write the patches. For this order and the ones below, all other threads are stopped, outside the patched
        /// instructions.
        Arm = 2,
        /// Restore the program's original instructions. Frames that are on the stack still return through the arena.
        Pause = 3,
        /// Write the patches again.
        Resume = 4,
        /// After [`Command::Pause`]: undo the changes of [`Command::Arm`] to the C library, or in a standalone program write
        /// the original instructions of those patches that have stayed. No hooked frame is on any stack.
        Leave = 5,
        /// After [`Command::Prepare`], while other threads may run: prepare the hooks of a library that the process
        /// has loaded ([`Order::library`]). [`Command::Arm`] writes its patches.
        Load = 6,
        /// After [`Command::Prepare`], in a standalone program: give threads their records ([`Order::threads`]). All
        /// threads are stopped.
        Records = 7,
        /// Switch functions of a module off or on ([`Order::choice`]). All other threads are stopped, outside of the patches of
        /// these functions and of the first bytes of their thunks ([`BYPASS_LEN`]).
        Choose = 8,
    }
}

/// Maximum length of the `FOLDER/NAME` of a process's files, without a suffix.
pub const PLACE_MAX: usize = FOLDER_MAX + 64;
/// Maximum number of functions of the C library that are redirected to the agent.
pub const DETOURS_MAX: usize = 32;
/// The functions that the agent defines and a running program should call, so that their start is redirected to the agent.
/// Functions that concern children and executed programs are missing: the agent sees those in other ways, or they are not
/// followed.
pub const DETOURED: [&str; 10] = [
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_Backtrace",
    "_Unwind_SetIP",
    "_Unwind_GetCFA",
    "backtrace",
    "siglongjmp",
    "__longjmp_chk",
    "prctl",
    "syscall",
];
/// Maximum number of threads that get their records by one order.
pub const THREADS_MAX: usize = 256;
/// The number of entries in the table of mappings at [`Order::mapped`].
pub const MAPPED_MAX: usize = 1024;

/// The number of words of [`Order::refused`], which has a bit for each system call with a lower number than 64 times that.
pub const REFUSED_WORDS: usize = 8;

/// The number of words of [`Order::choice`].
pub const CHOICE_WORDS: usize = 1024;
/// The length in bytes of the jump with which the thunk of a function begins that is switched off.
pub const BYPASS_LEN: u64 = 5;

/// The length in bytes of the jump in [`Order::notice`].
pub const NOTICE_LEN: usize = 5;

/// Offset of the [`ThreadWords`] from the thread pointer in a process that was attached to: glibc's
/// `__glibc_unused2` of tcbhead_t (sysdeps/x86_64/nptl/tls.h), 512 bytes at offset 128 in all versions.
pub const WORDS: u64 = 128;
/// Offset of the landing pad of a thread that waits before it continues in an exception handler (see
/// [`Order::waiting`]): from the thread pointer, or in a standalone program from the thread's record, to which gs leads.
pub const PAD: u64 = WORDS + size_of::<ThreadWords>() as u64;
/// The offset of the word that holds the waiting thread's rax.
pub const ACCUMULATOR: u64 = PAD + 8;
/// The offset of the word that holds the number of iterations for which the thread still waits.
pub const ROUNDS: u64 = ACCUMULATOR + 8;

/// Offset of the [`ThreadWords`] from the start of a thread's record in a standalone program.
pub const RECORD_WORDS: u64 = 0;

/// The name of the function at which a standalone program begins, with the address of a [`Beginning`] in rdi.
pub const BEGIN: &str = "gprofinject_begin";

/// What the agent needs to know at the beginning of a standalone program. The injector writes it once, before the program's
/// first instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Beginning {
    /// The address of the program's first instruction, or of its dynamic linker's.
    pub entry: u64,
    /// Number of bytes of `place` that are in use.
    pub place_len: u64,
    /// `FOLDER/NAME`.
    pub place: [u8; PLACE_MAX],
}

/// A library that the process has loaded, as the injector has found it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LibraryOrder {
    /// Runtime address of the first mapped byte, which has link address 0.
    pub start: u64,
    /// Runtime addresses at which the executable segments begin and end.
    pub text: [u64; 2],
    /// The program headers: runtime address, size of one in bytes, number.
    pub headers: [u64; 3],
    /// What identifies the file's contents: device, inode, size in bytes, and the seconds and nanoseconds of its last
    /// change.
    pub file: [u64; 5],
    /// Number of the library's plan in the injector.
    pub plan: u32,
    /// Bytes of home slots that the library's functions take.
    pub slot_bytes: u32,
}

/// A thread of a standalone program that is about to get a record, or has one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ThreadOrder {
    /// Input: the thread's number.
    pub tid: u64,
    /// Input: the base of fs, the C library's thread pointer.
    pub fs: u64,
    /// Input: the base of gs. Output: the base that it must have, the address of the thread's own record.
    pub gs: u64,
}

/// An order with its result. The injector writes the whole record before the agent runs, and reads it when `done` is
/// set; in between, only the agent accesses it.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Order {
    /// Set to 1 by the agent's machine code at the end.
    pub done: u64,
    /// Input: a [`Command`].
    pub command: CommandCode,
    /// Output: 0, or an errno.
    pub result: i64,
    /// Output of [`Command::Prepare`]: the values that every thread's words must have before [`Command::Arm`].
    pub words: ThreadWords,
    /// Output of [`Command::Prepare`]: the table of shadows ([`crate::plan::ArenaHeader::shadows`]).
    pub shadows: u64,
    /// Output of [`Command::Prepare`]: address of [`MAPPED_MAX`] pairs of address and length, which describe the
    /// agent's mappings other than those of its files; 0 if the agent has mapped nothing.
    pub mapped: u64,
    /// Output of [`Command::Prepare`]: first the address of a word; while it is nonzero, threads in which an
    /// exception has reached a handler wait before they continue there. Then the start and the end of the code in
    /// which they wait.
    pub waiting: [u64; 3],
    /// Output of [`Command::Leave`], for the functions of the program and for those of libraries: the address that the record
    /// of a function with number 0 would have, and the address to which the offsets in records are relative.
    pub records_of_functions: [[u64; 2]; 2],
    /// Output: the last step that was begun, for the report of a failure. 1: the C library's system calls; 2: the
    /// libraries' text; 3: the program's.
    pub step: u64,
    /// Input of every order: the system calls that the agent must not make, one bit for each number. A seccomp filter of the
    /// process may refuse them.
    pub refused: [u64; REFUSED_WORDS],
    /// Input of every order: 1 if `refused` accounts for all filters that the process has now, also for those that it has installed
    /// since the agent was put in. The agent then carries out the order although it makes no other system calls any more.
    pub knows_filters: u64,
    /// Input of [`Command::Prepare`]: the number of the overflow user in the process's user namespace, if only processes that may trace
    /// this one can have a socket in its network namespace without a number in its user and PID namespaces. Otherwise 0.
    pub outsider: u64,
    /// Input: 1 if the thread that carries out the order belongs to a standalone program and has no record yet, else 0.
    /// The agent then uses the main thread's.
    pub bare: u64,
    /// Output of [`Command::Prepare`] in a standalone program: the addresses at which the records of threads begin and
    /// end. The main thread's is in the library.
    pub records: [u64; 2],
    /// Input and output of [`Command::Records`].
    pub threads: [ThreadOrder; THREADS_MAX],
    /// Input: number of entries of `threads` that are in use.
    pub threads_count: u64,
    /// Input: address of `_Unwind_GetGR` if an unwinder is part of the program, or for [`Command::Load`] of that library in a
    /// process of musl's; else 0.
    pub get_gr: u64,
    /// Input: the address at which the main thread's stack began.
    pub stack: u64,
    /// Input: the entries of the auxiliary vector that the agent needs, type and value, terminated by type 0.
    pub auxiliary: [[u64; 2]; 8],
    /// Output of [`Command::Prepare`]: address of the empty function that the dynamic linker calls after it has loaded or
    /// unloaded a library, or 0 if libraries are not hooked; and in the second word the bytes of a jump from there to the
    /// agent, of which there are [`NOTICE_LEN`].
    pub notice: [u64; 2],
    /// Output of [`Command::Prepare`] and [`Command::Load`]: the places that are free for the next library, whose own
    /// address is 0 here. All zeros if libraries are not hooked.
    pub free: Question,
    /// Input of [`Command::Load`].
    pub library: LibraryOrder,
    /// Input of [`Command::Choose`]: 0 for the program; for a library, the number of its first function.
    pub module: u64,
    /// Input of [`Command::Choose`]: the index in the module of the function that the first bit of `choice` stands for.
    pub first: u64,
    /// Input of [`Command::Choose`]: 1 to switch the functions off, 0 to switch them on.
    pub off: u64,
    /// Input of [`Command::Choose`]: one bit for each function, set for those that are to be switched.
    pub choice: [u64; CHOICE_WORDS],
    /// Input: functions of the C library that are redirected to the agent from [`Command::Arm`] on, and the addresses
    /// by which the agent can still call their own code.
    pub detours: [[u64; 2]; DETOURS_MAX],
    /// Input: number of entries of `detours` that are in use.
    pub detours_count: u64,
    /// Input: descriptors of the region file and the plan file, open in the process. [`Command::Prepare`] closes
    /// them. If one is -1, the agent opens both files by name. For [`Command::Load`], the second one is the library's
    /// plan file, which it closes.
    pub descriptors: [i64; 2],
    /// Input: number of bytes of `place` that are in use.
    pub place_len: u64,
    /// Input: `FOLDER/NAME`.
    pub place: [u8; PLACE_MAX],
}

const _: () = {
    // Written by machine code, and polled by the injector while the agent runs.
    assert!(offset_of!(Order, done) == 0);
    assert!(offset_of!(Order, command) == 8);
    assert!(offset_of!(Order, result) == 16);
};
