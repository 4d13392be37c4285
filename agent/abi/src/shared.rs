//! The records of a region file, and of a thread, for access beside other threads that write at the same
//! time.
//!
//! A region file is mapped by the profiled process, by its children while they have no file of their own, and
//! by the injector. Signal handlers interrupt threads anywhere. Under these conditions, a Rust reference to a
//! record would be unsound. The types here hold a raw pointer, and give out each field as an atomic. Accesses
//! are `Relaxed` unless the field's documentation names another ordering. A `Relaxed` field is independent:
//! no reader concludes anything about other memory from its value.
//!
//! The methods are safe because the caller of `new` guarantees once, for all of them, that the record stays
//! valid.
#![allow(unsafe_code, reason = "fields of mapped records are reached through raw pointers")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::plan::{Cell, ThreadWords};
use crate::region::{BlockHeader, Overflow, PANIC_FILE_WORDS, RegionHeader, Slot};

/// Declares a pointer type to a record, and one method for each of its shared fields.
macro_rules! shared {
    (
        $(#[$about:meta])*
        pub struct $name:ident($record:ident) {
            $($(#[$what:meta])* $field:ident: $atomic:ident,)*
        }
    ) => {
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(NonNull<$record>);

        // SAFETY: all accesses through the pointer are atomic, and the caller of `new` guarantees that the
        // record stays mapped.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The record at an address.
            ///
            /// # Safety
            /// A record must be there, aligned and writable, and must stay mapped as long as the process lives. While any
            /// copy of this pointer is in use, all accesses to the record are atomic ones, or those of machine code.
            pub const unsafe fn new(record: NonNull<$record>) -> $name {
                $name(record)
            }

            /// The record at an address, or `None` if the address is 0.
            ///
            /// # Safety
            /// As for `new`, unless the address is 0.
            pub const unsafe fn at(address: u64) -> Option<$name> {
                match NonNull::new(address as *mut $record) {
                    // SAFETY: the caller guarantees that a record is at this address, because it is not 0.
                    Some(record) => Some(unsafe { $name::new(record) }),
                    None => None,
                }
            }

            /// Returns the record's address.
            pub fn address(self) -> u64 {
                self.0.as_ptr() as u64
            }

            $(
                $(#[$what])*
                #[inline(always)]
                pub fn $field(self) -> &'static $atomic {
                    // SAFETY: the caller of `new` has guaranteed that the record stays mapped, and that all
                    // accesses to it are atomic.
                    unsafe { $atomic::from_ptr((&raw mut (*self.0.as_ptr()).$field).cast()) }
                }
            )*
        }
    };
}

shared! {
    /// The header of a region file.
    ///
    /// The fields are independent of each other. The injector reads them when the process has ended, or for a
    /// dump; a dump may or may not include an event that happens at the same time.
    pub struct RegionRef(RegionHeader) {
        /// Written by the thread that sets up, with `Release` when the hooks are in place or will never be,
        /// and by a thread that panics before that. Read by the injector, and by the agent for Frida's
        /// library, with `Acquire`.
        state: AtomicU32,
        /// Written by the thread that sets up, before `state`, and by the first thread that panics. A reader
        /// that loads a nonzero value with `Acquire` also sees the fields that describe the trouble.
        trouble: AtomicU32,
        /// As `trouble`.
        errno: AtomicI32,
        /// Written once by the thread that sets up.
        pid: AtomicU32,
        /// As `trouble`.
        trouble_address: AtomicU64,
        /// Written once by the thread that sets up.
        bias: AtomicU64,
        /// Written once by the thread that sets up.
        setup_ns: AtomicU64,
        /// Incremented by each thread that needs a new thread block; the old value is the block's number. The
        /// agent publishes the thread block in a table of its own, so this field needs no ordering.
        blocks: AtomicU64,
        /// Added to by any thread.
        lost_calls: AtomicU64,
        /// Added to by any thread.
        lost_threads: AtomicU64,
        /// Added to by any thread.
        bare_calls: AtomicU64,
        /// Added to by the timer's signal handler on any thread.
        samples_outside: AtomicU64,
        /// Added to by any thread.
        lost_timers: AtomicU64,
        /// Incremented by a thread before it enters seccomp mode, and decremented again if it fails to enter.
        frozen: AtomicU64,
        /// Incremented by each forked child that counts in this file.
        guests: AtomicU64,
        /// Incremented by each forked child that counts nowhere.
        lost_children: AtomicU64,
        /// Added to by any thread that executes a program.
        lost_programs: AtomicU64,
        /// Written once by Frida's library.
        frida_patched: AtomicU64,
        /// Written once by Frida's library.
        frida_ns: AtomicU64,
    }
}

shared! {
    /// The header of a thread block.
    ///
    /// Only the thread that owns the thread block and its signal handlers write the header. The handlers
    /// interrupt the thread but never run in parallel with it. The injector may read at any time.
    pub struct BlockRef(BlockHeader) {
        /// Stored by the owner with `Release` when the thread block is ready for it, and compared and
        /// exchanged with `AcqRel` by a thread that finds the owner dead, so that the writes of the dead
        /// thread happen before those of the next owner.
        tid: AtomicU32,
        /// Written by the owner, with one read-modify-write operation for each bit, since a signal handler may commit
        /// another chunk in between.
        committed: AtomicU32,
        /// Added to by the owner.
        lost_calls: AtomicU64,
        /// Written by the owner when it gets the thread block.
        owners: AtomicU32,
        /// Written by the thread that makes the thread block, before the block has an owner.
        process: AtomicU32,
        /// Written by the thread that makes the thread block, before the block has an owner.
        index: AtomicU64,
        /// Written by the owner, and replaced with 0 by a thread that stops all timers.
        timer: AtomicU64,
    }
}

shared! {
    /// A home slot.
    ///
    /// Only the thread that owns the thread block and its signal handlers write the slot; their thunks
    /// increment its count. The injector may read at any time. If it sees a count but not the key yet, the
    /// count belongs to a call that is happening at that time.
    pub struct SlotRef(Slot) {
        /// Stored once, by a compare-and-exchange against 0 with `Release`, because a signal handler may take
        /// the same free slot; from then on, only the flag for linked calls in it changes.
        key: AtomicU64,
        /// Only grows. A single instruction increments it, so no signal handler can interrupt an increment.
        count: AtomicU64,
    }
}

shared! {
    /// An overflow entry. The same threads write and read it as for [`SlotRef`].
    pub struct OverflowRef(Overflow) {
        /// First replaced with a marker, so that no signal handler takes the entry. Then stored with
        /// `Release` after `function`, so that a reader that sees the key also sees the function.
        key: AtomicU64,
        /// As [`SlotRef::count`].
        count: AtomicU64,
        /// Written between the two stores of `key`.
        function: AtomicU32,
    }
}

shared! {
    /// The agent's words of a thread ([`ThreadWords`]).
    ///
    /// The thread and its signal handlers write them, and its thunks read and write them. The injector writes
    /// them while the thread is stopped.
    pub struct WordsRef(ThreadWords) {
        /// Written with one store when the thread gets a thread block, so a signal handler sees either the
        /// old or the new one.
        block: AtomicU64,
        /// Written with one store, like `block`, when the thread's window of cells moves.
        cells: AtomicU64,
        /// Written by thunks at each entry, after the frame's cell, so that a signal handler that sees the
        /// new value finds a complete cell.
        last: AtomicU64,
        /// Written once, at the first hooked call.
        first_frame: AtomicU64,
        /// Written where an exception reaches its landing pad; read by the injector while the thread is
        /// stopped.
        landing: AtomicU64,
        /// Written once, before `stack_hi`.
        stack_lo: AtomicU64,
        /// Written last, so that no address lies within the stack's extent before both words are set.
        stack_hi: AtomicU64,
    }
}

shared! {
    /// The cell of a frame.
    ///
    /// The thread that runs on the frame's stack writes the cell; its signal handlers write the cells of
    /// frames further down. The injector reads it while all threads are stopped.
    pub struct CellRef(Cell) {
        /// Written after the other two fields, so that a signal handler finds either no frame or a complete
        /// one.
        return_address: AtomicU64,
        /// Number of the function.
        function: AtomicU32,
        /// See [`Cell::link`].
        link: AtomicU32,
    }
}

impl RegionRef {
    /// Written by the first thread that panics, before `trouble`.
    pub fn panic_file(self) -> &'static [AtomicU64; PANIC_FILE_WORDS] {
        // SAFETY: the caller of `new` has guaranteed that the header stays mapped and that all accesses are
        // atomic. An `AtomicU64` is as large as a `u64`, and the header is aligned to 8.
        unsafe { &*(&raw const (*self.0.as_ptr()).panic_file).cast() }
    }
}

impl CellRef {
    /// Returns both fields as one atomic: `function` is its lower half and `link` its upper half.
    #[inline(always)]
    pub fn function_and_link(self) -> &'static AtomicU64 {
        const { assert!(core::mem::offset_of!(Cell, link) == core::mem::offset_of!(Cell, function) + 4) };
        // SAFETY: the caller of `new` has guaranteed that the cell stays mapped and that all accesses are
        // atomic. The two fields are adjacent; a cell is aligned to 8, and so is `function`.
        unsafe { AtomicU64::from_ptr((&raw mut (*self.0.as_ptr()).function).cast()) }
    }
}
