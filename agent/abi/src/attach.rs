//! How the injector gives orders to an agent in a process that runs already.
//!
//! The injector borrows a stopped thread of the process and has it call the library's function [`CONTROL`] with an
//! [`Order`] in memory. If the process was started without the agent, the injector has mapped the library by itself, and
//! its first order is [`Command::Prepare`].

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::names::FOLDER_MAX;
use crate::plan::ThreadWords;

/// The name of the agent's function that carries out orders. On entry, rdi is the address of an [`Order`],
/// and rsp, a multiple of 16, is the top of a stack that the injector has made. The function never returns:
/// it sets [`Order::done`] and sleeps.
pub const CONTROL: &str = "gprofinject_control";

coded! {
    /// What an order tells the agent to do.
    pub enum Command as CommandCode(u64) {
        /// Do the whole set-up except for writing the patches. Other threads may run meanwhile.
        Prepare = 1,
        /// Write the patches. During this order and the ones below, all other threads are stopped, and none
        /// of them is inside a patched instruction.
        Arm = 2,
        /// Restore the program's original instructions. Hooked frames that are on a stack still return
        /// through the arena.
        Pause = 3,
        /// Write the patches again.
        Resume = 4,
        /// After [`Command::Pause`]: undo what [`Command::Arm`] has changed in the C library.
        Leave = 5,
    }
}

/// The greatest length in bytes of `FOLDER/NAME`, the path of a process's files without a suffix.
pub const PLACE_MAX: usize = FOLDER_MAX + 64;
/// The greatest number of C library functions that are redirected to the agent.
pub const DETOURS_MAX: usize = 32;
/// The number of entries in the table of mappings at [`Order::mapped`].
pub const MAPPED_MAX: usize = 1024;

/// Offset of the [`ThreadWords`] from the thread pointer in a process that was attached to: glibc's
/// `__glibc_unused2` of tcbhead_t (sysdeps/x86_64/nptl/tls.h), 512 bytes at offset 128 in all versions.
pub const WORDS: u64 = 128;
/// The offset from the thread pointer of a word with the landing pad's address, for a thread that waits
/// before it enters an exception handler (see [`Order::waiting`]).
pub const PAD: u64 = WORDS + size_of::<ThreadWords>() as u64;
/// The offset of the word that holds the waiting thread's rax.
pub const ACCUMULATOR: u64 = PAD + 8;
/// The offset of the word that holds the number of iterations for which the thread still waits.
pub const ROUNDS: u64 = ACCUMULATOR + 8;

/// An order with its result. The injector writes the whole record before the agent runs, and reads it when
/// `done` is set; in between, only the agent accesses it.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Order {
    /// The agent's assembly stores 1 here when the order is finished.
    pub done: u64,
    /// In: a [`Command`].
    pub command: CommandCode,
    /// Out: 0, or an error number (errno).
    pub result: i64,
    /// Out of [`Command::Prepare`]: the value that every thread's words must have before [`Command::Arm`].
    pub words: ThreadWords,
    /// Out of [`Command::Prepare`]: the address of the table of shadow stacks
    /// ([`crate::plan::ArenaHeader::shadows`]).
    pub shadows: u64,
    /// Out of [`Command::Prepare`]: address of [`MAPPED_MAX`] pairs of address and length, one for each
    /// mapping that the agent has made besides those of its files. 0 if the agent has mapped nothing.
    pub mapped: u64,
    /// Out of [`Command::Prepare`]: the address of a word, then the start and the end of a range of code.
    /// While the word is not 0, a thread whose exception has reached its handler waits in that code before it
    /// enters the handler.
    pub waiting: [u64; 3],
    /// Out: the last step that the agent began, to tell which one failed. 1 is patching the C library's
    /// system calls, 2 is patching the program's text.
    pub step: u64,
    /// In: address of `_Unwind_GetGR` if an unwinder is part of the program, else 0.
    pub get_gr: u64,
    /// In: the address at which the main thread's stack began.
    pub stack: u64,
    /// In: the entries of the auxiliary vector that the agent needs, type and value, ended by type 0.
    pub auxiliary: [[u64; 2]; 8],
    /// In: pairs of addresses. The first is a function of the C library that is redirected to the agent from
    /// [`Command::Arm`] on; the second is the address at which the agent can still call the function's
    /// original code.
    pub detours: [[u64; 2]; DETOURS_MAX],
    /// In: number of entries of `detours` that are in use.
    pub detours_count: u64,
    /// In: descriptors of the region file and the plan file, open in the process. [`Command::Prepare`] closes them. If
    /// one is -1, the agent opens both files by name.
    pub descriptors: [i64; 2],
    /// In: number of bytes of `place` that are in use.
    pub place_len: u64,
    /// In: `FOLDER/NAME`.
    pub place: [u8; PLACE_MAX],
}

const _: () = {
    // Written by machine code, and polled by the injector while the agent runs.
    assert!(offset_of!(Order, done) == 0);
    assert!(offset_of!(Order, command) == 8);
    assert!(offset_of!(Order, result) == 16);
};
