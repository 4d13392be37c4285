//! How the injector speaks to an agent in a process that runs already: it borrows a stopped thread, and calls the
//! library's `gprofinject_control` with an [`Order`]. Into a process that was not started by it, it has mapped the
//! library by itself; there the order [`PREPARE`] comes first.

use crate::FOLDER_MAX;
use crate::plan::{THREAD_WORDS, ThreadWords};

/// Name of the library's entry. rdi = [`Order`], rsp = a stack of our own, a multiple of 16. It never returns:
/// it says that it is done, and sleeps.
pub const CONTROL: &str = "gprofinject_control";

/// Does everything that the set-up does but the patches; other threads may run.
pub const PREPARE: u64 = 1;
/// Writes the patches. All other threads stand still, for this and what follows, outside what is patched.
pub const ARM: u64 = 2;
/// Makes the program's text what it was. Frames that are on the stack go on to return through the arena.
pub const PAUSE: u64 = 3;
/// Writes the patches once more.
pub const RESUME: u64 = 4;
/// After [`PAUSE`]: takes back what [`ARM`] has changed in the C library.
pub const LEAVE: u64 = 5;

/// Longest path of a process's files, without a suffix.
pub const PLACE_MAX: usize = FOLDER_MAX + 64;
pub const DETOURS_MAX: usize = 32;
pub const MAPPED_MAX: usize = 1024;

/// Offset of the [`ThreadWords`] from the thread pointer in a process that was attached to: glibc's
/// `__glibc_unused2` of tcbhead_t (sysdeps/x86_64/nptl/tls.h), 512 bytes at offset 128 in all versions.
pub const WORDS: u64 = 128;
/// Behind them three words of a thread that has landed in a handler and waits there (see [`Order::waiting`]): the
/// landing pad, rax, and for how many rounds more.
pub const PAD: u64 = WORDS + size_of::<ThreadWords>() as u64;
pub const ACCUMULATOR: u64 = PAD + 8;
pub const ROUNDS: u64 = ACCUMULATOR + 8;

/// In and out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Set to 1 at the end.
    pub done: u64,
    pub command: u64,
    /// Out: 0, or an errno.
    pub result: i64,
    /// Out of [`PREPARE`]: what every thread's [`crate::plan::ThreadWords`] must be before [`ARM`].
    pub words: [u64; THREAD_WORDS],
    /// Out of [`PREPARE`]: the table of shadows ([`crate::plan::ArenaHeader::shadows`]).
    pub shadows: u64,
    /// Out of [`PREPARE`]: address of a table of [`MAPPED_MAX`] pairs, address and length of what the agent has
    /// mapped beside its files; 0: nothing.
    pub mapped: u64,
    /// Out of [`PREPARE`]: address of a word; while it is not 0, threads that an exception has landed in a handler wait
    /// before they go on there; and the extent of the code in which they wait.
    pub waiting: [u64; 3],
    /// Out: what was being done last, should it fail: 1 the C library's system calls, 2 the program's text.
    pub step: u64,
    /// In: `_Unwind_GetGR` of an unwinder that is part of the program; 0: there is none.
    pub get_gr: u64,
    /// In: where the main thread's stack began.
    pub stack: u64,
    /// In: what is needed of the auxiliary vector, ended by type 0.
    pub auxiliary: [[u64; 2]; 8],
    /// In: functions of the C library that lead to the agent from [`ARM`] on, and where their own code can be
    /// called nevertheless.
    pub detours: [[u64; 2]; DETOURS_MAX],
    pub detours_count: u64,
    /// In: the region file and the plan file, open in the process; [`PREPARE`] closes them. -1: they are opened by name.
    pub descriptors: [i64; 2],
    /// In: `FOLDER/NAME`.
    pub place_len: u64,
    pub place: [u8; PLACE_MAX],
}
