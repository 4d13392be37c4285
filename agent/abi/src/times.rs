//! The measured durations of calls: the records in a thread block that the thunks' code for them writes.
//!
//! A thread block with measured calls has a [`TimesHeader`] at [`TIMES`], and at its end an *area* of
//! [`crate::region::RegionOrders::times_bytes`] bytes: records of [`UNIT`] bytes or a multiple, one after the other, each of
//! which begins with a [`Record`]. The area is committed from its start on, as records are added, so a reader finds all of
//! them by their lengths ([`Record::units`]).
//!
//! All times are in ticks of the clock ([`crate::clock::ClockKind`]) unless a field says otherwise.
//!
//! A call is *open* from its beginning to its end. The open calls of a thread form a chain from the innermost one outwards
//! ([`OpenCall::outer`]), whose end is a *root*. A thread has a root for its own stack and one for each coroutine that it has
//! run.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::region::{BlockHeader, RECENT};

/// Offset of the [`TimesHeader`] in a thread block.
pub const TIMES: u64 = 2048;
/// Bytes of address space, and of the (sparse) file, for the area of a thread.
pub const TIMES_BYTES: u64 = 1 << 30;
/// Bytes by which the places and lengths of records are counted.
pub const UNIT: u64 = 64;

coded! {
    /// What a record is.
    pub enum Kind as KindCode(u32) {
        /// Nothing yet: the end of the records.
        Free = 0,
        /// An [`ArcTimes`].
        Arc = 1,
        /// A [`FunctionTimes`].
        Function = 2,
        /// A [`PathNode`].
        Node = 3,
        /// A [`Record`] alone, which is followed by [`OpenCall`]s up to its length.
        Calls = 4,
        /// A [`Chain`].
        Chain = 5,
    }
}

/// The start of each record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Record {
    /// A [`Kind`].
    pub kind: KindCode,
    /// The record's length in units of [`UNIT`] bytes.
    pub units: u32,
}

/// The state of a thread's measurements, in its thread block. Addresses are those of the process; [`TimesHeader::base`] turns
/// them into offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TimesHeader {
    /// The address of the innermost open call, or of the root of the chain if there is none. 0 before the thread's first
    /// measured call, and after the measurements have ended.
    pub top: u64,
    /// The lowest address of the stack on which the open calls of the current chain are, as far as is known. An entry
    /// below it is examined.
    pub stack_lo: u64,
    /// The address of the first free [`OpenCall`], or 0.
    pub free: u64,
    /// The number of calls that have begun.
    pub begun: u64,
    /// The address of the table of arcs: [`TableEntry`] *.
    pub table: u64,
    /// The bits of the offset of an entry in the table.
    pub mask: u64,
    /// The part of the overhead of a call that is outside of its measured interval.
    pub outside: u64,
    /// The part of the overhead of a call that is inside of its measured interval.
    pub inside: u64,
    /// The sum of both.
    pub overhead: u64,
    /// Bytes of records in the area.
    pub used: u64,
    /// Bytes of the area that are committed.
    pub committed: u64,
    /// The number of arcs in the table.
    pub arcs: u64,
    /// The number of calls that were not measured, because the area is full or memory is short.
    pub unmeasured: u64,
    /// When the thread began to be measured.
    pub first: u64,
    /// When its last call ended.
    pub last: u64,
    /// The address of the current [`Chain`].
    pub chain: u64,
    /// The address of the first of all chains.
    pub chains: u64,
    /// The address of this thread block in the process.
    pub base: u64,
    /// How long the agent's slow paths took. The clock minus this is the time that all other fields have.
    pub paused: u64,
    /// Number of nodes of the calling-context tree.
    pub nodes: u64,
    /// How long the threads lived that have used this thread block before, from `first` to `last`.
    pub earlier: u64,
}

/// An entry of the table of arcs, which only the thread itself uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TableEntry {
    /// [`table_key`], or 0 if the entry is free.
    pub key: u64,
    /// The address of the [`ArcTimes`].
    pub arc: u64,
    /// The address of the [`PathNode`], or 0.
    pub node: u64,
    /// Always 0.
    pub reserved: u64,
}

/// Bit of [`OpenCall::context`], so that no key is 0.
pub const CONTEXT: u32 = 1 << 31;
/// Multiplier of the context in the table's hash.
pub const TABLE_HASH: u32 = 0x9e37_79b1;
/// Multiplier of the called function's number. With 1, the functions that a caller with many callees calls would take a run of
/// consecutive entries, and the runs of such callers would push each other along.
pub const CALLEE_HASH: u32 = 0xc2b2_ae35;
/// The number of entries that follow the table's last one, so that a search does not have to begin again at its start.
pub const TABLE_TAIL: u64 = 64;

/// Returns the key of the arc by which a call with this context ([`OpenCall::context`]) calls a function.
pub const fn table_key(context: u32, callee: u32) -> u64 {
    (context as u64) << 32 | callee as u64
}

/// Returns the offset in the table at which the search for an arc begins.
pub const fn table_offset(context: u32, callee: u32, mask: u64) -> u64 {
    const BITS: u32 = size_of::<TableEntry>().trailing_zeros();
    let hash = context.wrapping_mul(TABLE_HASH).wrapping_add(callee.wrapping_mul(CALLEE_HASH));
    ((hash << BITS) as u64) & mask
}

/// A call that has not ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct OpenCall {
    /// When it began. Time in which its chain was not the current one is added.
    pub start: u64,
    /// The durations of the calls that it has made, each with the overhead outside of it.
    pub children: u64,
    /// The CFA of its frame, less 1 if `flags` has [`ENDS_SLOWLY`]; above the stack in a root.
    pub cfa: u64,
    /// The address of its [`ArcTimes`].
    pub arc: u64,
    /// The address of the open call that made it, or of the root. In a free record, that of the next free one, or 0.
    pub outer: u64,
    /// [`TimesHeader::begun`] after it had begun. The calls that began while its chain was not the current one are added.
    pub begun: u64,
    /// The address of its [`PathNode`], or 0.
    pub node: u64,
    /// What identifies it in the key of the calls that it makes: its function's number, or that of its node if paths are
    /// measured; with [`CONTEXT`].
    pub context: u32,
    /// [`TAIL`], [`ENDS_SLOWLY`], [`INHERITED`], [`TRACED`], [`HAS_RESULT`] and [`TOLD`], and in a traced run from [`DEPTH_BIT`] on the number of open calls
    /// around it.
    pub flags: u32,
}

/// Bit of [`OpenCall::flags`]: the call began by a jump out of [`OpenCall::outer`], in whose frame it is, and ends together with
/// that one.
pub const TAIL: u32 = 1;
/// Bit of [`OpenCall::flags`]: [`OpenCall::cfa`] is one less than the CFA. No frame has such an address, so the machine code at the
/// end of calls leaves this one to compiled code: it is inherited, or a signal handler's outermost one on a stack of its own.
pub const ENDS_SLOWLY: u32 = 2;
/// Bit of [`OpenCall::flags`]: the call was open at the fork by which the process began, and its parent counts it. It takes time in
/// this process, but is no call of its own and has no duration here. It has [`ENDS_SLOWLY`] as well.
pub const INHERITED: u32 = 4;

/// Bit of [`OpenCall::flags`]: the event of its beginning has been written to the thread's ring ([`crate::trace`]).
pub const TRACED: u32 = 8;
/// Bit of [`OpenCall::flags`]: when the call returns, its result is written to the thread's ring.
pub const HAS_RESULT: u32 = 16;
/// Bit of [`OpenCall::flags`]: after events were lost, the thread's ring tells that the call is open.
pub const TOLD: u32 = 32;
/// First bit of the depth in [`OpenCall::flags`], of which a root has 0. Deeper calls than it can say have the greatest one.
pub const DEPTH_BIT: u32 = 8;

impl OpenCall {
    /// Returns whether the call is one that the process's parent has made.
    pub const fn is_inherited(&self) -> bool {
        self.flags & INHERITED != 0
    }
}

/// The measured calls of one function by another one on a thread. What the end of nearly every call changes is in the first
/// [`UNIT`], a cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ArcTimes {
    /// [`Kind::Arc`].
    pub record: Record,
    /// Number of its open calls in the current chain.
    pub open: u32,
    /// Always 0.
    pub reserved: u32,
    /// The address of the [`FunctionTimes`] of the called function.
    pub function: u64,
    /// The durations of the ended calls without those of the calls that they made and the overhead outside of these. May be
    /// negative.
    pub own: i64,
    /// The durations of the ended calls that no other open call of the same arc contained.
    pub inclusive: u64,
    /// The number of calls that were made within those.
    pub within: u64,
    /// The number of ended calls.
    pub calls: u64,
    /// The number of ended calls that another open call of the same arc contained.
    pub nested: u64,
    /// The least duration of an ended call, without the overhead.
    pub min: u64,
    /// The greatest one.
    pub max: u64,
    /// Number of the caller, or [`crate::region::NO_FUNCTION`].
    pub caller: u32,
    /// Number of the called function.
    pub callee: u32,
    /// Always 0.
    pub reserved_words: [u64; 5],
}

/// The number of buckets in [`FunctionTimes::histogram`].
pub const BUCKETS: usize = 176;
/// Each power of two has `1 << BUCKET_BITS` buckets, equally wide.
pub const BUCKET_BITS: u32 = 2;

/// The first [`FunctionTimes::pending`], which no call has left.
pub const NO_CALL: u64 = 1;
/// The first value of the bucket in which [`NO_CALL`] will be counted: -1.
pub const BEFORE_NO_CALL: u64 = u64::MAX;

/// Returns the bucket of a duration.
pub const fn bucket(duration: u64) -> usize {
    let exponent = (duration | 1 << BUCKET_BITS).ilog2() - BUCKET_BITS;
    let bucket = ((exponent << BUCKET_BITS) as u64 + (duration >> exponent)) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Returns the least duration in a bucket. The bucket ends where the next one begins, and the last one has all longer durations.
pub const fn bucket_start(bucket: usize) -> u64 {
    let steps = 1 << BUCKET_BITS;
    match (bucket as u64 / steps).checked_sub(1) {
        None => bucket as u64,
        Some(exponent) => (steps + bucket as u64 % steps) << exponent,
    }
}

/// What is measured of a function's calls on a thread beside its arcs. Its inclusive time is the sum of its arcs' ones without
/// what is counted here: most calls are contained in no other one of their function.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FunctionTimes {
    /// [`Kind::Function`].
    pub record: Record,
    /// The function's number.
    pub number: u32,
    /// Number of its open calls in the current chain.
    pub open: u32,
    /// The durations of the ended calls that an open call of another arc of the function contained, but none of their own
    /// arc: they are in [`ArcTimes::inclusive`].
    pub nested_inclusive: u64,
    /// The number of calls that were made within those.
    pub nested_within: u64,
    /// The number of those calls.
    pub nested: u64,
    /// The duration of the last ended call, without the overhead, with bit 0 set. `histogram` does not have it yet. The place
    /// in the histogram depends on the clock; a store to an address that the processor does not know until the clock has been
    /// read delays the loads that follow, so each call stores into the histogram for the one before.
    pub pending: u64,
    /// Always 0.
    pub reserved: [u64; 2],
    /// The numbers of ended calls by their durations without the overhead, in ticks; see [`bucket`].
    pub histogram: [u64; BUCKETS],
}

impl FunctionTimes {
    /// Returns the histogram with the call that is pending.
    pub fn complete_histogram(&self) -> [u64; BUCKETS] {
        let mut histogram = self.histogram;
        // 0: the record is being made.
        if self.pending != 0 {
            let count = &mut histogram[bucket(self.pending)];
            *count = count.wrapping_add(1);
        }
        // A process that is killed in the first call's end may leave `BEFORE_NO_CALL`.
        histogram.map(|count| if count == BEFORE_NO_CALL { 0 } else { count })
    }
}

/// A node of a thread's calling-context tree.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PathNode {
    /// [`Kind::Node`].
    pub record: Record,
    /// Number of the function, or [`crate::region::NO_FUNCTION`] in the root, or [`REST`].
    pub function: u32,
    /// The node's own number: nodes are numbered as they are made, from 1 on.
    pub number: u32,
    /// Number of the parent, or 0 in the root.
    pub parent: u32,
    /// Always 0.
    pub reserved: u32,
    /// Number of calls that have ended.
    pub calls: u64,
    /// As [`ArcTimes::own`].
    pub own: i64,
    /// The address of the parent, or 0.
    pub parent_address: u64,
    /// Always 0.
    pub reserved_words: [u64; 2],
}

/// [`PathNode::function`] of the node that stands for all calls for which there was no other one.
pub const REST: u32 = u32::MAX;

/// A stack on which a thread has had open calls: its own, or a coroutine's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Chain {
    /// [`Kind::Chain`].
    pub record: Record,
    /// The address of the next chain, or 0.
    pub next: u64,
    /// The innermost open call while the chain is not the current one.
    pub top: u64,
    /// The address of the root.
    pub root: u64,
    /// The lowest address of the stack, as far as is known.
    pub lo: u64,
    /// The end address of the stack, as far as is known.
    pub hi: u64,
    /// When it ceased to be the current one; 0 while it is.
    pub since: u64,
    /// [`TimesHeader::begun`] when it ceased to be the current one.
    pub begun: u64,
}

const _: () = {
    assert!(size_of::<BlockHeader>() as u64 <= TIMES);
    assert!(TIMES + size_of::<TimesHeader>() as u64 <= RECENT);
    assert!(size_of::<Record>() == 8);
    assert!(size_of::<OpenCall>() as u64 == UNIT);
    assert!(size_of::<FunctionTimes>() as u64 == 23 * UNIT);
    assert!(size_of::<PathNode>() as u64 == UNIT);
    assert!(size_of::<Chain>() as u64 == UNIT);
    assert!(size_of::<ArcTimes>() as u64 == 2 * UNIT);
    assert!(size_of::<TableEntry>() == 32);
    // What each call changes is in one cache line.
    assert!(offset_of!(ArcTimes, min) as u64 == UNIT);
    assert!(offset_of!(FunctionTimes, histogram) as u64 == UNIT);
    // Each bucket begins where the one before ends.
    let mut at = 0;
    while at < BUCKETS {
        let start = bucket_start(at);
        assert!(bucket(start) == at && (at == 0 || bucket(start - 1) == at - 1));
        at += 1;
    }
    assert!(bucket(u64::MAX) == BUCKETS - 1);
};

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use super::{CONTEXT, TABLE_TAIL, TableEntry, table_offset};

    /// Returns the greatest distance of an entry from where the search for it begins, in a table that is as full as it may become.
    fn farthest(keys: &[(u32, u32)]) -> usize {
        let entries = (2 * keys.len()).next_power_of_two();
        let mut used = vec![false; 2 * entries];
        let mut farthest = 0;
        for &(context, callee) in keys {
            let mask = ((entries - 1) * size_of::<TableEntry>()) as u64;
            let start = table_offset(context | CONTEXT, callee, mask) as usize / size_of::<TableEntry>();
            let mut at = start;
            while used[at] {
                at += 1;
            }
            used[at] = true;
            farthest = farthest.max(at - start);
        }
        farthest
    }

    #[test]
    fn entries_are_near_their_places() {
        let pairs = |callers: u32, callees: u32| -> Vec<(u32, u32)> {
            (0..callers).flat_map(|caller| (0..callees).map(move |callee| (caller, callee))).collect()
        };
        for (callers, callees) in [(400, 400), (1, 60_000), (60_000, 1), (30_000, 5), (5, 30_000)] {
            let farthest = farthest(&pairs(callers, callees));
            assert!(farthest < TABLE_TAIL as usize / 2, "{callers} callers, {callees} callees: {farthest}");
        }
    }
}
