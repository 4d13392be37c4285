//! Traces: a ring of events for each thread, in its thread block.
//!
//! In a traced run, a thread block has a [`TraceHeader`] at [`TRACE`] and, at its end, a *ring* of
//! [`crate::region::RegionOrders::trace_bytes`] bytes, which consists of [`Slot`]s. Event number `n` is in slot `n & mask`. A thread
//! takes an event number by one instruction (`xadd` on [`TraceHeader::next`]), so that a signal handler that interrupts the thread
//! takes a different one. Then the thread writes the slot, [`Slot::mark`] last: if a slot's mark does not have the number of the
//! expected event, the event has not been written yet or has been overwritten.
//!
//! The injector reads events while the program runs, and stores in [`TraceHeader::drained`] how many it has read. It does not trust
//! the ring's contents: wrong events make the trace wrong, and have no other effect.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::region::RECENT;
use crate::times::{TIMES, TimesHeader};

/// Offset of the [`TraceHeader`] in a thread block.
pub const TRACE: u64 = TIMES + 512;

/// The state of a thread's ring. The injector writes `drained`. The thread itself writes the other fields; when the hooks are resumed,
/// another thread does so while this one is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TraceHeader {
    /// The number of the next event.
    pub next: u64,
    /// The number of the first event for which there may be no room. From this number on, the machine code at the beginning and end of
    /// calls (`gpi_call_begin`, `gpi_call_end`) leaves events to the slow path.
    pub limit: u64,
    /// The number of slots, a power of two, minus one. The ring is smaller than
    /// [`trace_bytes`](crate::region::RegionOrders::trace_bytes) if not all of it could be committed.
    pub mask: u64,
    /// The address of the ring, or 0 before the first event.
    pub ring: u64,
    /// Calls by a call whose [`flags`](crate::times::OpenCall::flags) are at least this value are too deep to be traced.
    pub deepest: u64,
    /// The minimum duration of a traced call in ticks, which includes the overhead inside its interval.
    pub least: u64,
    /// The number of bytes of the ring that are committed.
    pub committed: u64,
    /// The number of events that the injector has read. Written by the injector.
    pub drained: u64,
    /// The number of events for which there was no room.
    pub lost: u64,
    /// The part of `lost` that no [`Kind::Lost`] event reports yet.
    pub unreported: u64,
    /// Nonzero if the thread does not wait for room any more, because the injector has stopped reading: the value of `drained` at that
    /// time, plus 1. When `drained` has changed, the thread waits again.
    pub gave_up_at: u64,
    /// The number of the event before which the next [`Kind::Snapshot`] is due.
    pub due: u64,
    /// The ticks of a [`Kind::Pause`] for which the ring had no room while another thread had stopped this one. The thread writes the
    /// pause before its next event.
    pub deferred_pause: u64,
}

coded! {
    /// The kind of an event. `time` and `function` are the fields of the [`Slot`].
    pub enum Kind as KindCode(u32) {
        /// The slot was never used.
        None = 0,
        /// A call of `function` begins.
        Enter = 1,
        /// A call of `function` begins by a tail call of the innermost open call, and ends together with that call.
        Jump = 2,
        /// A call that was open at the fork by which the process began.
        Inherited = 3,
        /// A call of `function` begins. The exit of this function is not hooked, so no event marks the end of the call.
        Mark = 4,
        /// The innermost open call, of `function`, returns.
        Exit = 5,
        /// The innermost open call, of `function`, ends without a return: by a non-local jump, an exception or the end of its thread.
        Left = 6,
        /// The thread continues on the stack with the number `function`.
        Chain = 7,
        /// The agent has taken `time` ticks until now, which are not the program's. If `function` is [`READY`], other threads had the
        /// processor for so long, although this one could have run.
        Pause = 8,
        /// `time` events were lost, because the ring had no room for them.
        Lost = 9,
        /// A call of `function` that began at `time` is open. Such events follow [`Kind::Lost`] and [`Kind::Snapshot`], from the outermost
        /// call inwards.
        Open = 10,
        /// The encoded values of the event before: `function` is the number of bytes, and `time` has the first eight of them.
        Data = 11,
        /// The next twelve bytes of the values: eight in `time` and four in `function`.
        More = 12,
        /// The thread with the number `function` owns the thread block from now on.
        Thread = 13,
        /// The next `time` slots repeat the thread's state, so that a reader that has missed earlier slots can resume here: a
        /// [`Kind::Chain`] has the current stack of the thread with the number `function`, and a [`Kind::Open`] stands for each open
        /// call. Used in rings in which new events overwrite old ones.
        Snapshot = 14,
    }
}

/// The `function` of a [`Kind::Pause`] in which other threads had the processor.
pub const READY: u32 = 1;

/// An event of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slot {
    /// The time of the event in ticks of the clock; see [`Kind`] for other meanings.
    pub time: u64,
    /// The number of the function; see [`Kind`] for other meanings.
    pub function: u32,
    /// The event's kind and the lower bits of its number: see [`mark()`].
    pub mark: u32,
}

/// The least number of [`Kind::Snapshot`]s in a ring in which new events overwrite old ones, unless stacks are very deep.
pub const SNAPSHOTS: u64 = 8;
/// The maximum number of open calls in a snapshot, which lists the outermost ones.
pub const SNAPSHOT_MAX: u64 = 1 << 12;

/// The number of bits of [`Slot::mark`] that hold the [`Kind`].
pub const KIND_BITS: u32 = 4;

/// Returns the mark of an event: its kind and the lower bits of its number.
pub const fn mark(kind: Kind, number: u64) -> u32 {
    (number as u32) << KIND_BITS | kind.code().0
}

/// Returns the kind of an event from its mark, or `None` if the mark is not that of event `number`.
pub const fn kind(mark: u32, number: u64) -> Option<Kind> {
    if mark >> KIND_BITS != (number as u32) << KIND_BITS >> KIND_BITS {
        return None;
    }
    kind_of(mark)
}

/// Returns the kind of an event from its mark, whatever the event's number, or `None` if there is no such kind.
pub const fn kind_of(mark: u32) -> Option<Kind> {
    KindCode(mark & ((1 << KIND_BITS) - 1)).get()
}

/// Returns the number of [`Kind::Data`] and [`Kind::More`] slots that hold this number of bytes.
pub const fn data_slots(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 1 + bytes.saturating_sub(8).div_ceil(12) }
}

const _: () = {
    assert!(TIMES + size_of::<TimesHeader>() as u64 <= TRACE);
    assert!(TRACE + size_of::<TraceHeader>() as u64 <= RECENT);
    assert!(size_of::<Slot>() == 16);
    assert!(offset_of!(Slot, function) == 8 && offset_of!(Slot, mark) == 12);
    assert!(data_slots(8) == 1 && data_slots(9) == 2 && data_slots(20) == 2 && data_slots(21) == 3);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_that_of_one_number() {
        let n = 0x1234_5678_9abc;
        assert_eq!(kind(mark(Kind::Exit, n), n), Some(Kind::Exit));
        assert_eq!(kind(mark(Kind::Exit, n), n + 1), None);
        assert_eq!(kind(mark(Kind::Exit, n), n - (1 << 18)), None);
        // A mark has the lower 28 bits of the number, and rings have fewer slots than that.
        assert_eq!(kind(mark(Kind::Exit, n), n + (1 << 28)), Some(Kind::Exit));
        assert_eq!(kind(0, 0), Some(Kind::None));
    }
}
