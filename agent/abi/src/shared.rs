//! The records of a region file, and of a thread, as code reaches them that runs beside other writers.
//!
//! A region file is mapped by the profiled process, by its children while they have none of their own, and by the
//! injector; signal handlers interrupt threads anywhere. No Rust reference to a record can be held under such conditions.
//! The types here hold a raw pointer, and give out each field as an atomic. The order is `Relaxed` unless the field says
//! otherwise: then a field stands for itself, and no reader concludes anything about other memory from its value.
//!
//! The methods are safe because the promise is made once, where such a pointer is made (`new`).
#![allow(unsafe_code, reason = "fields of mapped records are reached through raw pointers")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::plan::{Cell, ThreadWords};
use crate::region::{BlockHeader, Overflow, PANIC_FILE_WORDS, RegionHeader, Slot};

/// Declares a pointer type to a record, and one method for each of its fields that is shared.
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

        // SAFETY: all that can be reached through the pointer is atomic, and `new` promises that it stays mapped.
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
                    // SAFETY: the caller's promise.
                    Some(record) => Some(unsafe { $name::new(record) }),
                    None => None,
                }
            }

            /// Where the record is.
            pub fn address(self) -> u64 {
                self.0.as_ptr() as u64
            }

            $(
                $(#[$what])*
                #[inline(always)]
                pub fn $field(self) -> &'static $atomic {
                    // SAFETY: whoever has made this pointer has promised that the record stays mapped, and that all
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
    /// Each field is a number that stands for itself: the injector reads them all when the process has ended, or for a
    /// dump, where it makes no difference whether an event is in it that happens at the same time.
    pub struct RegionRef(RegionHeader) {
        /// Written by the thread that sets up, with `Release` when the hooks are in place or will never be, and by a thread that
        /// panics meanwhile. Read by the injector, and by the agent for Frida's library, with `Acquire`.
        state: AtomicU32,
        /// Written by the thread that sets up, before `state`, and by the first thread that panics. A reader that finds it
        /// with `Acquire` finds what it is about.
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
        /// Added to by each thread that wants a block, which thereby gets its number. The block is published elsewhere (the
        /// agent's table of blocks), so the number itself orders nothing.
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
        /// Added to by a thread that enters seccomp, and subtracted from if it does not after all.
        frozen: AtomicU64,
        /// Added to by children that count in this file.
        guests: AtomicU64,
        /// Added to by children that count nowhere.
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
    /// The thread that owns the block writes it, and signal handlers of that thread, which interrupt it but never run
    /// beside it. The injector may read at any time.
    pub struct BlockRef(BlockHeader) {
        /// Stored by the owner with `Release` when the block is ready for it, and compared and exchanged with `AcqRel` by a
        /// thread that finds the owner dead: what the dead thread has written is there before the next one writes.
        tid: AtomicU32,
        /// Written by the owner, with one read-modify-write operation for each bit, since a signal handler may commit
        /// another chunk in between.
        committed: AtomicU32,
        /// Added to by the owner.
        lost_calls: AtomicU64,
        /// Written by the owner, when it gets the block.
        owners: AtomicU32,
        /// Written by the thread that makes the block, before it has an owner.
        process: AtomicU32,
        /// Written by the thread that makes the block, before it has an owner.
        index: AtomicU64,
        /// Written by the owner, and exchanged for 0 by a thread that stops all timers.
        timer: AtomicU64,
    }
}

shared! {
    /// A home slot.
    ///
    /// The owner of the block writes it, and signal handlers of that thread; thunks count in it. The injector may read at
    /// any time: a count whose key it does not see yet belongs to the call that happens at the same time.
    pub struct SlotRef(Slot) {
        /// Stored once, by a compare-and-exchange against 0 with `Release`, because a signal handler may take the same free
        /// slot; from then on only the mark of linked calls in it changes.
        key: AtomicU64,
        /// Only grows, by one instruction each, which a signal handler cannot interrupt.
        count: AtomicU64,
    }
}

shared! {
    /// An overflow entry. As for [`SlotRef`].
    pub struct OverflowRef(Overflow) {
        /// First exchanged for a mark, so that no signal handler takes the entry; then stored with `Release`, behind
        /// `function`: a reader that finds the key finds the function.
        key: AtomicU64,
        /// As [`SlotRef::count`].
        count: AtomicU64,
        /// Written between the two stores of `key`.
        function: AtomicU32,
    }
}

shared! {
    /// The words of a thread.
    ///
    /// The thread writes them, and its signal handlers; thunks read and write them. The injector writes them while the
    /// thread stands still.
    pub struct WordsRef(ThreadWords) {
        /// Written when the thread gets a block, with one store: a signal handler finds the old one or the new one.
        block: AtomicU64,
        /// Written when the thread's window moves, with one store, as `block`.
        cells: AtomicU64,
        /// Written by thunks at each entry, behind the frame's cell: a signal handler that finds it finds a whole cell.
        last: AtomicU64,
        /// Written once, at the first hooked call.
        first_frame: AtomicU64,
        /// Written where an exception lands; read by the injector while the thread stands still.
        landing: AtomicU64,
        /// Written once, before `stack_hi`.
        stack_lo: AtomicU64,
        /// Written last, so that no address lies within the extent before both are there.
        stack_hi: AtomicU64,
    }
}

shared! {
    /// The cell of a frame.
    ///
    /// The thread that the frame is on writes it, and its signal handlers do for frames further down. The injector reads
    /// it while all threads stand still.
    pub struct CellRef(Cell) {
        /// Written behind the other two, so that a signal handler finds no frame, or a whole one.
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
        // SAFETY: as for the other fields. An atomic is as long as its number, and aligned to 8 as the header is.
        unsafe { &*(&raw const (*self.0.as_ptr()).panic_file).cast() }
    }
}

impl CellRef {
    /// `function` in the lower half and `link` in the upper half: both at once.
    #[inline(always)]
    pub fn function_and_link(self) -> &'static AtomicU64 {
        const { assert!(core::mem::offset_of!(Cell, link) == core::mem::offset_of!(Cell, function) + 4) };
        // SAFETY: as for the single fields, which stand side by side; a cell is aligned to 8, and so is their place.
        unsafe { AtomicU64::from_ptr((&raw mut (*self.0.as_ptr()).function).cast()) }
    }
}
