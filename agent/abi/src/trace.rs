//! Traces: a ring of events for each thread, in its thread block.
//!
//! A thread block of a traced run has a [`TraceHeader`] at [`TRACE`], and at its end a *ring* of
//! [`crate::region::RegionOrders::trace_bytes`] bytes: [`Slot`]s, the first of which has the first event. Event number `n` is in
//! slot `n & mask`. A thread takes a number by one instruction (`xadd` on [`TraceHeader::next`]), so a signal handler that
//! interrupts it takes another one, and then writes the slot, [`Slot::mark`] last: a slot whose mark does not have the event's
//! number is not written yet, or not any more.
//!
//! The injector reads events as they are written, and stores how many it has read in [`TraceHeader::drained`]. It relies on
//! nothing that it finds: wrong events make a wrong trace, and nothing else.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::region::RECENT;
use crate::times::{TIMES, TimesHeader};

/// Offset of the [`TraceHeader`] in a thread block.
pub const TRACE: u64 = TIMES + 512;

/// The state of a thread's ring. Everything but `drained` is written by the thread alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TraceHeader {
    /// The number of the next event.
    pub next: u64,
    /// The first number for which there may be no room. The gates leave events from this one on to compiled code.
    pub limit: u64,
    /// The number of slots, less one. It is a power of two, and smaller than
    /// [`trace_bytes`](crate::region::RegionOrders::trace_bytes) says if the ring could not be committed further.
    pub mask: u64,
    /// The address of the ring, or 0 before the first event.
    pub ring: u64,
    /// A call that is made by one whose [`flags`](crate::times::OpenCall::flags) are not less than this is not traced.
    pub deepest: u64,
    /// The least duration of a traced call, in ticks, with the overhead that is inside of its interval.
    pub least: u64,
    /// Bytes of the ring that are committed.
    pub committed: u64,
    /// The number of events that the injector has read. Written by the injector.
    pub drained: u64,
    /// The number of events for which there was no room.
    pub lost: u64,
    /// The part of `lost` that no [`Kind::Lost`] event tells of yet.
    pub untold: u64,
    /// Nonzero if the thread waits no longer, because the injector has read nothing for a while: `drained` as it was then, plus 1.
    /// When the injector has read more, the thread waits again.
    pub hopeless: u64,
    /// The number of the event before which a [`Kind::Snapshot`] is to be written.
    pub due: u64,
    /// Ticks of a [`Kind::Pause`] for which there was no room when another thread added it. The thread writes it before its next
    /// event.
    pub owed: u64,
}

coded! {
    /// What an event is. `time` and `function` are the fields of the [`Slot`].
    pub enum Kind as KindCode(u32) {
        /// The slot was never used.
        None = 0,
        /// A call of `function` begins.
        Enter = 1,
        /// The same, by a jump out of the innermost open call, with which it ends.
        Jump = 2,
        /// A call that was open at the fork by which the process began.
        Inherited = 3,
        /// A call of a function whose end is not seen.
        Mark = 4,
        /// The innermost open call, of `function`, returns.
        Exit = 5,
        /// The innermost open call, of `function`, was left in another way.
        Left = 6,
        /// The thread goes on on the stack with the number `function`.
        Chain = 7,
        /// The agent has taken `time` ticks until now.
        Pause = 8,
        /// There was no room for `time` events.
        Lost = 9,
        /// A call of `function` is open that began at `time`. Such events follow [`Kind::Lost`], from the outermost one inwards.
        Open = 10,
        /// The first of several slots with bytes that belong to the event before: `function` is their number, and `time` has the
        /// first eight.
        Data = 11,
        /// The next twelve bytes: eight in `time` and four in `function`.
        More = 12,
        /// The thread with the number `function` owns the thread block from now on.
        Thread = 13,
        /// The next `time` slots say what a reader knows that has read all slots before: the thread with the number `function` is on
        /// the stack of the [`Kind::Chain`] that follows, and a [`Kind::Open`] tells of each open call. In rings in which new
        /// events take the places of old ones, a reader that has missed some goes on here.
        Snapshot = 14,
    }
}

/// An event of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slot {
    /// When it happened, in ticks of the clock; see [`Kind`] for other meanings.
    pub time: u64,
    /// Number of the function; see [`Kind`] for other meanings.
    pub function: u32,
    /// [`mark`].
    pub mark: u32,
}

/// A ring in which new events take the places of old ones has at least so many [`Kind::Snapshot`]s, unless stacks are very deep.
pub const SNAPSHOTS: u64 = 8;
/// The greatest number of open calls, the outermost ones, that are told of together.
pub const TOLD_MOST: u64 = 1 << 12;

/// Bits of [`Slot::mark`] that are the [`Kind`].
pub const KIND_BITS: u32 = 4;

/// Returns the mark of an event: its kind and the lower bits of its number.
pub const fn mark(kind: Kind, number: u64) -> u32 {
    (number as u32) << KIND_BITS | kind.code().0
}

/// Returns the kind of an event if its mark is that of this number.
pub const fn kind(mark: u32, number: u64) -> Option<Kind> {
    if mark >> KIND_BITS != (number as u32) << KIND_BITS >> KIND_BITS {
        return None;
    }
    kind_of(mark)
}

/// Returns the kind of an event with this mark, of whatever number, or `None` if there is no such kind.
pub const fn kind_of(mark: u32) -> Option<Kind> {
    KindCode(mark & ((1 << KIND_BITS) - 1)).get()
}

/// Returns the number of slots for [`Kind::Data`] and [`Kind::More`] that so many bytes take.
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
        // Rings have fewer slots than there are numbers that a mark can tell apart.
        assert_eq!(kind(mark(Kind::Exit, n), n + (1 << 28)), Some(Kind::Exit));
        assert_eq!(kind(0, 0), Some(Kind::None));
    }
}
