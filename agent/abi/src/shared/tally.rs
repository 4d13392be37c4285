//! Accessors to what a thread counts of the values of arguments and results. Its thread writes it, with its signal handlers.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::tally::{CallEntry, CallTally, INTERVALS, TallyHeader, Text, ValueSlot, ValueTally};

shared! {
    /// The state of a thread's counts of values.
    ///
    /// The thread that owns the thread block and its signal handlers write it. The injector reads it when the process has ended, or for a
    /// dump, which may or may not include a value that is counted at the same time.
    pub struct TallyRef(TallyHeader) {
        /// Written by gates and slow paths. A signal handler leaves it as it was.
        busy: AtomicU64,
        /// Written once, when the thread begins.
        table: AtomicU64,
        /// Incremented with each new entry of the table.
        entries: AtomicU64,
        /// Written once, when the thread begins.
        base: AtomicU64,
        /// Incremented by the owner.
        lost: AtomicU64,
        /// Increased by the owner.
        used: AtomicU64,
    }
}

shared! {
    /// An entry of the table of callers.
    pub struct CallEntryRef(CallEntry) {
        /// Written before `key`.
        return_address: AtomicU64,
        /// Written once, last.
        key: AtomicU64,
        /// Written before `key`.
        record: AtomicU64,
    }
}

shared! {
    /// What is kept of the calls of a function from a call site. It is written once, when the record is made.
    pub struct CallTallyRef(CallTally) {
        return_address: AtomicU64,
        key: AtomicU64,
        values: AtomicU32,
        is_slow: AtomicU32,
        caller_kind: AtomicU32,
        caller: AtomicU32,
        node: AtomicU32,
    }
}

shared! {
    /// What is kept of a value. Its writers are those of a [`TallyRef`]. The slots and what leads to them change only while
    /// [`busy`](TallyRef::busy) is set; the other fields change by one instruction each.
    pub struct ValueTallyRef(ValueTally) {
        /// Written before `mask`, which is smaller than the table at any time.
        slots: AtomicU64,
        /// See `slots`.
        mask: AtomicU64,
        /// Written once, when the record is made; so are the four fields below.
        place: AtomicU64,
        /// See `place`.
        shift: AtomicU32,
        /// See `place`.
        class: AtomicU32,
        /// See `place`.
        index: AtomicU32,
        /// See `place`.
        is_signed: AtomicU32,
        /// Increased.
        others: AtomicU64,
        /// Lowered.
        least: AtomicU64,
        /// Raised.
        greatest: AtomicU64,
        /// Raised.
        most: AtomicU64,
        /// Incremented.
        nested: AtomicU64,
        /// Incremented.
        texts: AtomicU64,
    }
}

shared! {
    /// A value and its count. Gates increment the count.
    pub struct ValueSlotRef(ValueSlot) {
        /// Written while the count is 0, or [`busy`](TallyRef::busy) is set.
        value: AtomicU64,
        /// Incremented, or written with `value`.
        count: AtomicU64,
    }
}

shared! {
    /// A text. It is written once, when the record is made.
    pub struct TextRef(Text) {
        hash: AtomicU64,
        len: AtomicU32,
        flags: AtomicU32,
    }
}

impl ValueTallyRef {
    /// Returns the two halves of the sum of others. Each is added to, by one instruction.
    pub fn sum(self) -> &'static [AtomicU64; 2] {
        // SAFETY: the caller of `new` has guaranteed that the record stays mapped and that all accesses are atomic. An `AtomicU64` is as
        // large as a `u64`, and the record is aligned to 8.
        unsafe { &*(&raw const (*self.0.as_ptr()).sum).cast() }
    }

    /// Returns the histogram of others, whose numbers increase.
    pub fn histogram(self) -> &'static [AtomicU64; INTERVALS] {
        // SAFETY: the same holds here.
        unsafe { &*(&raw const (*self.0.as_ptr()).histogram).cast() }
    }
}

impl TextRef {
    /// Writes the bytes of a record that nobody else knows yet. Bytes for which there is no room are left out.
    pub fn write(self, bytes: &[u8]) {
        let chunks = bytes.chunks(8).take(crate::tally::TEXT_MAX / 8);
        for (n, chunk) in chunks.enumerate() {
            let word = chunk.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
            // SAFETY: the caller of `new` has guaranteed that the record stays mapped, and `n` is below the number of its words.
            unsafe { AtomicU64::from_ptr((&raw mut (*self.0.as_ptr()).bytes).cast::<u64>().add(n)) }
                .store(word, core::sync::atomic::Ordering::Relaxed);
        }
    }
}
