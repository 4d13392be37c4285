//! What a region file says of a process's libraries: those that are hooked, those that are left out, and those that were lost.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;

/// The number of entries in the table of loaded libraries.
pub const LOADS_MAX: usize = 1024;

/// A library that the process has loaded and whose functions are hooked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LoadRecord {
    /// The agent's progress with the library: a [`Load`].
    pub state: LoadCode,
    /// Number of the library's plan in the injector.
    pub plan: u32,
    /// Number of the library's first function.
    pub first_function: u32,
    /// Number of its hooked functions.
    pub functions: u32,
    /// Byte offset of its first home slot from the start of a thread block.
    pub first_slot: u32,
    /// Bytes of its home slots.
    pub slot_bytes: u32,
    /// Runtime address minus link address.
    pub bias: u64,
    /// Runtime address at which its executable segments begin.
    pub lo: u64,
    /// Runtime address at which its executable segments end.
    pub hi: u64,
    /// Runtime address of its arena.
    pub arena: u64,
    /// Bytes of its arena.
    pub arena_len: u64,
    /// Byte offset of its first basic block counter from the start of a thread block.
    pub first_counter: u32,
    /// Bytes of its basic block counters.
    pub counter_bytes: u32,
    /// Runtime address, in the process, of the table of its patches ([`crate::plan::Patch`], with runtime addresses).
    pub patches: u64,
    /// The number of its patches.
    pub patch_count: u64,
}

coded! {
    /// The state of a [`LoadRecord`].
    pub enum Load as LoadCode(u32) {
        /// The entry is not in use.
        Free = 0,
        /// The library's functions are hooked.
        Hooked = 1,
        /// The program has unloaded the library. Its counts remain.
        Gone = 2,
        /// The same, and the keys of its calls are marked with [`ARCHIVED`](super::ARCHIVED).
        Archived = 4,
        /// The library could not be hooked although it was planned: its text in memory is not that of its file, or
        /// memory is short.
        Refused = 3,
        /// Everything but the patches is ready.
        Prepared = 5,
    }
}

/// A library that is hooked in no process of glibc's. Its name decides that, so the same file may be hooked by another one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LeftOut {
    /// Its file.
    pub file: FileIdentity,
    /// [`crate::ask::Question::name`].
    pub name: u64,
}

/// What identifies the contents of a file: the device, the inode, the length in bytes, and the seconds and nanoseconds of the last change
/// of the contents, as struct stat has them.
pub type FileIdentity = [u64; 5];
/// The number of libraries in [`RegionOrders::left_out`](super::RegionOrders::left_out).
pub const LEFT_OUT: usize = 6;

/// The number of libraries in [`RegionHeader::lost`](super::RegionHeader::lost).
pub const LOST_NAMED: usize = 12;
/// The number of words that each of them takes.
pub const LOST_WORDS: usize = 26;

coded! {
    /// Why a library was lost.
    pub enum Lost as LostCode(u32) {
        /// The process could not open its file.
        File = 1,
        /// The process could not ask about it.
        Answer = 2,
        /// There was no memory for its hooks.
        Memory = 3,
        /// Its text in memory is not that of its file.
        Text = 4,
        /// Its first link address is not 0, so its headers are not at its load address.
        Base = 5,
    }
}
