//! Accessors to the records of a region file, and of a thread, for code that runs concurrently with other writers.
//!
//! The profiled process maps a region file, its children do as long as they have none of their own, and so does the
//! injector; signal handlers interrupt threads anywhere. Under such conditions, no Rust reference to a record is
//! sound. The types here contain a raw pointer, and return each field as an atomic. The ordering is `Relaxed` unless
//! a field documents another one: the field is then independent, and no reader infers anything about other memory
//! from its value.
//!
//! The methods are safe because the caller of `new`, which makes such a pointer, gives the guarantee once.
#![allow(unsafe_code, reason = "fields of mapped records are reached through raw pointers")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::plan::{Cell, Interned, ThreadWords};
use crate::region::{
    BlockHeader, LOST_NAMED, LOST_WORDS, LoadRecord, Overflow, PANIC_FILE_WORDS, RegionHeader, SLOT_CHUNKS,
    SampleRecord, Slot,
};
use crate::tally::TallyHeader;
use crate::times::TimesHeader;
use crate::trace::TraceHeader;

/// Declares a type of pointers to a record, with one method for each of its shared fields.
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
        // SAFETY: all that can be reached through the pointer is atomic, so threads may share it.
        unsafe impl Sync for $name {}

        impl $name {
            /// Returns the accessor to the record at an address.
            ///
            /// # Safety
            /// A record must be there, aligned and writable, and must stay mapped as long as the process lives. While
            /// any copy of this pointer is in use, all accesses to the record are atomic ones, or those of machine
            /// code.
            pub const unsafe fn new(record: NonNull<$record>) -> $name {
                $name(record)
            }

            /// Returns the accessor to the record at an address, or `None` if the address is 0.
            ///
            /// # Safety
            /// As for `new`, unless the address is 0.
            pub const unsafe fn at(address: u64) -> Option<$name> {
                match NonNull::new(address as *mut $record) {
                    // SAFETY: the address is not 0, so the caller has given the guarantee that `new` demands.
                    Some(record) => Some(unsafe { $name::new(record) }),
                    None => None,
                }
            }

            /// Returns the address of the record.
            pub fn address(self) -> u64 {
                self.0.as_ptr() as u64
            }

            $(
                $(#[$what])*
                #[inline(always)]
                pub fn $field(self) -> &'static $atomic {
                    // SAFETY: the caller of `new` or `at` has guaranteed that the record stays mapped, and that all
                    // accesses to it are atomic.
                    unsafe { $atomic::from_ptr((&raw mut (*self.0.as_ptr()).$field).cast()) }
                }
            )*
        }
    };
}

mod tally;
mod times;
pub use tally::{CallEntryRef, CallTallyRef, TallyRef, TextRef, ValueSlotRef, ValueTallyRef};
pub use times::{ArcTimesRef, ChainRef, FunctionTimesRef, OpenCallRef, PathNodeRef, TimesRef};

shared! {
    /// The header of a region file.
    ///
    /// Each field is an independent number: the injector reads them all after the process has ended, or for a dump,
    /// which may or may not include an event that happens at the same time.
    pub struct RegionRef(RegionHeader) {
        /// Written by the thread that sets up the process, with `Release`, when the hooks are in place or will never
        /// be, and by a thread that panics in the meantime. Read with `Acquire` by the injector, and by the agent for
        /// Frida's library.
        state: AtomicU32,
        /// Written by the thread that sets up, before `state`, and by the first thread that panics. A reader that
        /// loads it with `Acquire` also sees the fields that describe the trouble.
        trouble: AtomicU32,
        /// Written and read like `trouble`.
        errno: AtomicI32,
        /// Written once by the thread that sets up.
        pid: AtomicU32,
        /// Written and read like `trouble`.
        trouble_address: AtomicU64,
        /// Written once by the thread that sets up.
        bias: AtomicU64,
        /// Written once by the thread that sets up.
        agent_lo: AtomicU64,
        /// Written once by the thread that sets up.
        agent_hi: AtomicU64,
        /// Written once by the thread that sets up.
        setup_ns: AtomicU64,
        /// Incremented by each thread that needs a thread block, which thereby gets its number. The thread block is
        /// published elsewhere (in the agent's table of thread blocks), so the number itself orders nothing.
        blocks: AtomicU64,
        /// Incremented by any thread.
        lost_calls: AtomicU64,
        /// Incremented by any thread.
        lost_threads: AtomicU64,
        /// Incremented by any thread.
        bare_calls: AtomicU64,
        /// Incremented by the timer's signal handler on any thread.
        samples_outside: AtomicU64,
        /// Incremented by any thread.
        lost_timers: AtomicU64,
        /// Incremented by a thread that enters seccomp, and decremented if the kernel refuses.
        frozen: AtomicU64,
        /// Incremented by a thread that has its system calls dispatched to itself.
        dispatched: AtomicU64,
        /// Bits are set by any thread.
        unseen: AtomicU64,
        /// Incremented by children that count in this file.
        guests: AtomicU64,
        /// Incremented by children that count nowhere.
        lost_children: AtomicU64,
        /// Incremented by any thread that executes a program.
        lost_programs: AtomicU64,
        /// Incremented by any thread that loads libraries.
        lost_libraries: AtomicU64,
        /// Bits are set by any thread that loads libraries.
        left_out_seen: AtomicU64,
        /// Written once by Frida's library.
        frida_patched: AtomicU64,
        /// Written once by Frida's library.
        frida_ns: AtomicU64,
        /// Written once by the thread that sets up; so are the three fields below.
        inside_256: AtomicU64,
        /// See `inside_256`.
        outside_256: AtomicU64,
        /// See `inside_256`.
        spread_256: AtomicU64,
        /// See `inside_256`.
        short_256: AtomicU64,
        /// Written by the thread that ends the process.
        clock_at_end: AtomicU64,
    }
}

shared! {
    /// An entry of the table of loaded libraries.
    ///
    /// Only the thread that handles a change of the loaded libraries writes it, which the agent's lock ensures.
    pub struct LoadRef(LoadRecord) {
        /// Stored last, with `Release`: a reader that loads it with `Acquire` sees the other fields.
        state: AtomicU32,
        /// Written before `state`; so are all fields below.
        plan: AtomicU32,
        /// See `plan`.
        first_function: AtomicU32,
        /// See `plan`.
        functions: AtomicU32,
        /// See `plan`.
        first_slot: AtomicU32,
        /// See `plan`.
        slot_bytes: AtomicU32,
        /// See `plan`.
        bias: AtomicU64,
        /// See `plan`.
        lo: AtomicU64,
        /// See `plan`.
        hi: AtomicU64,
        /// See `plan`.
        arena: AtomicU64,
        /// See `plan`.
        arena_len: AtomicU64,
        /// See `plan`.
        first_counter: AtomicU32,
        /// See `plan`.
        counter_bytes: AtomicU32,
        /// See `plan`.
        patches: AtomicU64,
        /// See `plan`.
        patch_count: AtomicU64,
    }
}

shared! {
    /// An entry of the table of samples outside of the program. The timer's signal handler writes it on any thread.
    pub struct SampleRef(SampleRecord) {
        /// Compared and exchanged from 0 to the address that the entry is for, once.
        pc: AtomicU64,
        /// Incremented after `pc` was found or stored.
        count: AtomicU64,
    }
}

shared! {
    /// The header of a thread block.
    ///
    /// The thread that owns the thread block and its signal handlers write it. Handlers interrupt the thread but
    /// never run in parallel with it. The injector may read at any time.
    pub struct BlockRef(BlockHeader) {
        /// Stored by the owner with `Release` when the thread block is ready for it, and compared and exchanged with
        /// `AcqRel` by a thread that finds the owner dead: the writes of the dead thread are visible before the next
        /// owner writes.
        tid: AtomicU32,
        /// Written by the owner, with one read-modify-write operation for each bit, since a signal handler may commit
        /// another chunk in between.
        committed: AtomicU32,
        /// Incremented by the owner.
        lost_calls: AtomicU64,
        /// Written by the owner when it gets the thread block.
        owners: AtomicU32,
        /// Written by the thread that makes the thread block, before it has an owner.
        process: AtomicU32,
        /// Written by the thread that makes the thread block, before it has an owner.
        index: AtomicU64,
        /// Written by the owner, and replaced with 0 by a thread that stops all timers.
        timer: AtomicU64,
        /// Incremented by the owner.
        pieces: AtomicU64,
    }
}

shared! {
    /// A home slot.
    ///
    /// The owner of the thread block and its signal handlers write it; thunks count in it. The injector may read at
    /// any time: if it sees a count whose key it does not see yet, the count belongs to a call that happens at the
    /// same time.
    pub struct SlotRef(Slot) {
        /// Stored once, by a compare-and-exchange against 0 with `Release`, because a signal handler may use the same
        /// free slot; after that, it does not change.
        key: AtomicU64,
        /// Only increases, by one instruction each time, which a signal handler cannot interrupt.
        count: AtomicU64,
    }
}

shared! {
    /// An overflow entry. Its writers and readers are those of a [`SlotRef`].
    pub struct OverflowRef(Overflow) {
        /// First exchanged for a mark, so that no signal handler uses the entry; then stored with `Release`, after
        /// `function`: a reader that sees the key sees the function.
        key: AtomicU64,
        /// Written like [`SlotRef::count`].
        count: AtomicU64,
        /// Written between the two stores of `key`.
        function: AtomicU32,
    }
}

shared! {
    /// The agent's words of a thread ([`ThreadWords`]).
    ///
    /// The thread and its signal handlers write them; thunks read and write them. The injector writes them while the
    /// thread is stopped.
    pub struct WordsRef(ThreadWords) {
        /// Written when the thread gets a thread block, with one store: a signal handler sees the old address or the
        /// new one.
        block: AtomicU64,
        /// Written when the thread's window moves, with one store, like `block`.
        cells: AtomicU64,
        /// Written by thunks at each entry, after the frame's cell: a signal handler that sees it sees a complete
        /// cell.
        last: AtomicU64,
        /// Written once, at the first hooked call.
        first_frame: AtomicU64,
        /// Written when an exception lands; read by the injector while the thread is stopped.
        landing: AtomicU64,
        /// Written once, before `stack_hi`.
        stack_lo: AtomicU64,
        /// Written last, so that no address lies within the stack's extent before both words are set.
        stack_hi: AtomicU64,
        /// Written like `last`, by thunks of libraries.
        library_last: AtomicU64,
        /// Written last when such a call begins, and first when it ends.
        deep: AtomicU64,
        /// Written before `deep`.
        deep_from: AtomicU64,
        /// Written after `clear_to` when the part grows: a signal handler sees a part that is clear.
        clear_from: AtomicU64,
        clear_to: AtomicU64,
        vain: AtomicU64,
        /// Becomes less before a frame's cell is filled.
        bare: AtomicU64,
    }
}

shared! {
    /// The cell of a frame.
    ///
    /// The thread that runs the frame writes it, and so do the thread's signal handlers for frames further down. The
    /// injector reads it while all threads are stopped.
    pub struct CellRef(Cell) {
        /// Written after the other two, so that a signal handler sees no frame or a complete one.
        return_address: AtomicU64,
        /// Number of the function.
        function: AtomicU32,
        /// See [`Cell::link`]. Thunks also write its highest byte alone.
        link: AtomicU32,
    }
}

shared! {
    /// An interned label.
    ///
    /// Any thread and any signal handler may take a label that is not in use. It keeps its meaning for ever.
    pub struct InternedRef(Interned) {
        /// Stored with `Release` after `function`: a reader that loads it with `Acquire` sees the function.
        return_address: AtomicU64,
        /// Compared and exchanged from 0 to the number plus 1, once.
        function: AtomicU32,
    }
}

shared! {
    /// The state of a thread's ring of events.
    ///
    /// The thread that owns the thread block and its signal handlers write it; the injector writes `drained`. For a resumption of
    /// the hooks, another thread writes events while the owner is stopped.
    pub struct TraceRef(TraceHeader) {
        /// Incremented by the slots of an event before they are written.
        next: AtomicU64,
        /// Written when more room becomes known.
        limit: AtomicU64,
        /// Written before `ring`, once.
        mask: AtomicU64,
        /// Written once, before `limit`.
        ring: AtomicU64,
        /// Written before `ring`, once.
        deepest: AtomicU64,
        /// See `deepest`.
        least: AtomicU64,
        /// Increased when more of the ring is committed.
        committed: AtomicU64,
        /// Written by the injector, which has read the slots of all events before this one.
        drained: AtomicU64,
        /// Increased by the owner.
        lost: AtomicU64,
        /// Increased with `lost`.
        unreported: AtomicU64,
        /// Written by the owner.
        gave_up_at: AtomicU64,
        /// Written before `ring`, and then raised by the owner.
        due: AtomicU64,
        /// Written by another thread while the owner is stopped, and set to 0 by the owner.
        deferred_pause: AtomicU64,
    }
}

impl RegionRef {
    /// The fields of [`RegionHeader::lost`]. The thread that has incremented `lost_libraries` to an entry's number writes the
    /// entry, and its first word last, with `Release`.
    pub fn lost(self) -> &'static [[AtomicU64; LOST_WORDS]; LOST_NAMED] {
        // SAFETY: as for `panic_file`.
        unsafe { &*(&raw const (*self.0.as_ptr()).lost).cast() }
    }

    /// Written by the first thread that panics, before `trouble`.
    pub fn panic_file(self) -> &'static [AtomicU64; PANIC_FILE_WORDS] {
        // SAFETY: the caller of `new` has guaranteed that the header stays mapped and that all accesses are
        // atomic. An `AtomicU64` is as large as a `u64`, and the header is aligned to 8.
        unsafe { &*(&raw const (*self.0.as_ptr()).panic_file).cast() }
    }
}

impl BlockRef {
    /// The state of the thread's measured calls.
    pub fn times(self) -> TimesRef {
        let at = (self.address() + crate::times::TIMES) as *mut TimesHeader;
        // SAFETY: the caller of `new` has guaranteed that the thread block stays mapped, which has this record behind its
        // header, and that all accesses are atomic.
        unsafe { TimesRef::new(NonNull::new_unchecked(at)) }
    }

    /// The state of the thread's ring of events.
    pub fn trace(self) -> TraceRef {
        let at = (self.address() + crate::trace::TRACE) as *mut TraceHeader;
        // SAFETY: as in `times`.
        unsafe { TraceRef::new(NonNull::new_unchecked(at)) }
    }

    /// The state of the thread's counts of values.
    pub fn tally(self) -> TallyRef {
        let at = (self.address() + crate::tally::TALLIES) as *mut TallyHeader;
        // SAFETY: as in `times`.
        unsafe { TallyRef::new(NonNull::new_unchecked(at)) }
    }

    /// Written like `committed`.
    pub fn committed_chunks(self) -> &'static [AtomicU64] {
        // SAFETY: the caller of `new` has guaranteed that the header stays mapped and that all accesses are
        // atomic. An `AtomicU64` is as large as a `u64`, and the header is aligned to 8.
        unsafe {
            let words = &raw const (*self.0.as_ptr()).committed_chunks;
            &*words.cast::<[AtomicU64; SLOT_CHUNKS as usize / 64]>()
        }
    }
}

impl CellRef {
    /// Returns `function` (the lower half) and `link` (the upper half) as one atomic word.
    #[inline(always)]
    pub fn function_and_link(self) -> &'static AtomicU64 {
        const { assert!(core::mem::offset_of!(Cell, link) == core::mem::offset_of!(Cell, function) + 4) };
        // SAFETY: the invariant is that of the single fields, which are adjacent; a cell is aligned to 8, and so is
        // this pair.
        unsafe { AtomicU64::from_ptr((&raw mut (*self.0.as_ptr()).function).cast()) }
    }
}
