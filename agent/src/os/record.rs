//! What the agent keeps of each thread of a standalone program: the memory to which the base of gs leads.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64};
use gprofinject_abi::attach::{PAD, RECORD_WORDS};
use gprofinject_abi::plan::ThreadWords;

/// What the agent knows of one thread. Only the thread itself and its signal handlers access it, but for [`Record::tid`].
#[repr(C, align(128))]
pub(crate) struct Record {
    pub(crate) words: ThreadWords,
    /// The record's own address.
    pub(crate) own: u64,
    /// The lowest address and the end of the thread's own stack, or zeros if they are not known.
    pub(crate) stack: [u64; 2],
    /// The thread that has the record: 0 if none has, and [`CLAIMED`] until the thread's number is known.
    pub(crate) tid: AtomicU32,
    pub(crate) reserved: u32,
    /// Where the thread continues after system calls that share its stack with a child: for each such call in progress,
    /// the stack pointer and the address.
    pub(crate) shared_stack: [[u64; 2]; 2],
    /// The thread's stack for slow paths: see [`crate::hot::small_stacks`].
    pub(crate) slow_stack: u64,
    /// See [`crate::os::dispatch`].
    pub(crate) dispatch: AtomicU64,
    pub(crate) free: [u64; 6],
    /// What a thread keeps while it waits for the injector before it continues in an exception handler: see
    /// `gprofinject_abi::attach::PAD`.
    pub(crate) waiting: [u64; 3],
}

const _: () = assert!(size_of::<Record>() == 384 && offset_of!(Record, own) == size_of::<ThreadWords>());
const _: () = assert!(offset_of!(Record, waiting) == PAD as usize);
const _: () = assert!(offset_of!(Record, words) == RECORD_WORDS as usize);

/// See [`Record::tid`].
pub(crate) const CLAIMED: u32 = u32::MAX;
