//! The measured durations of calls: the layout of the records in a thread block that hold them.
//!
//! A thread block with measured calls has a [`TimesHeader`] at [`TIMES`] and, at its end, an *area* of
//! [`crate::region::RegionOrders::times_bytes`] bytes. The area contains consecutive records, whose lengths are multiples of
//! [`UNIT`] and each of which begins with a [`Record`]. The agent commits the area from its start as it adds records. A reader
//! walks the records by their lengths ([`Record::units`]).
//!
//! All times are in ticks of the clock ([`crate::clock::ClockKind`]) unless a field says otherwise.
//!
//! A call is *open* from its beginning to its end. The open calls of a thread form a chain from the innermost one outwards
//! ([`OpenCall::outer`]), which ends with a *root*. A thread has one root for its own stack, and one for each coroutine that it
//! has run.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::region::{BlockHeader, RECENT};

/// Offset of the [`TimesHeader`] in a thread block.
pub const TIMES: u64 = 2048;
/// In a standalone program, where gs leads to a thread's own record and not to its thread block: how many bytes the
/// [clock of executed instructions](TimesHeader::executed) is behind its offset in a thread block.
pub const OWN_CLOCK: u64 = crate::region::PAGE;
/// The size of a thread's area, in bytes of address space and of the sparse file.
pub const TIMES_BYTES: u64 = 1 << 30;
/// The unit in bytes of the offsets and lengths of records.
pub const UNIT: u64 = 64;

coded! {
    /// The kind of a record.
    pub enum Kind as KindCode(u32) {
        /// No record: the end of the records.
        Free = 0,
        /// An [`ArcTimes`].
        Arc = 1,
        /// A [`FunctionTimes`].
        Function = 2,
        /// A [`PathNode`].
        Node = 3,
        /// A [`Record`] that is followed by [`OpenCall`]s, which fill the rest of its length.
        Calls = 4,
        /// A [`Chain`].
        Chain = 5,
        /// A [`CallTally`](crate::tally::CallTally).
        Tally = 6,
        /// A [`Slots`](crate::tally::Slots).
        Slots = 7,
        /// A [`Text`](crate::tally::Text).
        Text = 8,
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
    /// The lowest known address of the current chain's stack. A call with a frame below this address takes the slow path, which
    /// determines the frame's stack.
    pub stack_lo: u64,
    /// The address of the first free [`OpenCall`], or 0.
    pub free: u64,
    /// The number of calls that have begun.
    pub begun: u64,
    /// The address of the table of arcs: [`TableEntry`] *.
    pub table: u64,
    /// The mask for the offsets of entries in the table: see [`table_offset`].
    pub mask: u64,
    /// The part of the overhead of a call, in ticks, that is outside of its measured interval.
    pub outside: u64,
    /// The part that is inside of the measured interval.
    pub inside: u64,
    /// The sum of both.
    pub overhead: u64,
    /// The number of bytes of records in the area.
    pub used: u64,
    /// The number of bytes of the area that are committed.
    pub committed: u64,
    /// The number of arcs in the table.
    pub arcs: u64,
    /// The number of calls that were not measured, because the area is full or memory is short.
    pub unmeasured: u64,
    /// The time at which the thread's measurements began.
    pub first: u64,
    /// The time at which the thread's last call ended.
    pub last: u64,
    /// The address of the current [`Chain`].
    pub chain: u64,
    /// The address of the first [`Chain`] in the list of all chains ([`Chain::next`]).
    pub chains: u64,
    /// The address of this thread block in the process.
    pub base: u64,
    /// The sum of the durations of the agent's slow paths, and of `ready`. All other times are those of the clock minus this sum.
    pub paused: u64,
    /// The number of nodes of the calling-context tree.
    pub nodes: u64,
    /// The sum of the measured lifetimes, from `first` to `last`, of the threads that used this thread block before.
    pub earlier: u64,
    /// The time for which the thread could have run, but had to leave the processor to others. It is a part of `paused`.
    pub ready: u64,
    /// The time at which the agent last looked what the thread's clocks show, because the thread had not run; 0 if it never has. This
    /// and the next four fields are of one moment.
    pub seen: u64,
    /// What CLOCK_MONOTONIC_RAW showed then, in nanoseconds.
    pub seen_wall_ns: u64,
    /// The CPU time of the thread then, in nanoseconds.
    pub seen_cpu_ns: u64,
    /// The part of it in the kernel.
    pub seen_system_ns: u64,
    /// The number of times that the thread had waited for something until then.
    pub seen_waits: u64,
    /// For how long the thread had been ready at some earlier moment, as the kernel says, in nanoseconds.
    pub seen_ready_ns: u64,
    /// That moment, by CLOCK_MONOTONIC_RAW in nanoseconds.
    pub seen_ready_at_ns: u64,
    /// What a call that is only counted costs in ticks, as was calibrated.
    pub short_cost: u64,
    /// The part of it that is added to `paused` with each of these calls.
    pub short_taken: u64,
    /// [`crate::region::RegionOrders::short_below`] or what the thread has raised it to, or 0 while the overhead is calibrated.
    pub short_below: u64,
    /// `last` when the thread last decided whether to raise that limit, or 0 before. This and the next two fields are of one moment.
    pub judged: u64,
    /// `begun` then.
    pub judged_begun: u64,
    /// `paused` without `ready` then.
    pub judged_paused: u64,
    /// The clock when the thread began, or last calibrated the overhead of its calls.
    pub calibrated_at: u64,
    /// How often the thread has calibrated it.
    pub calibrations: u64,
    /// The sum of the overhead inside of the measured interval that it found each time, in ticks times 256.
    pub calibrated_inside_256: u64,
    /// The same of the overhead outside.
    pub calibrated_outside_256: u64,
    /// The same of calls that are only counted.
    pub calibrated_short_256: u64,
    /// The sum of the squares of the overhead, inside and outside together, in square ticks times 256.
    pub calibrated_square_256: u64,
    /// The number of instructions that the thread has executed in functions that count them, which is the clock
    /// [`ClockKind::Instructions`](crate::clock::ClockKind::Instructions). The functions' code adds to it.
    pub executed: u64,
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

/// A bit that is set in each [`OpenCall::context`], so that no key is 0.
pub const CONTEXT: u32 = 1 << 31;
/// Multiplier of the context in the table's hash.
pub const TABLE_HASH: u32 = 0x9e37_79b1;
/// Multiplier of the called function's number in the table's hash. With a multiplier of 1, the callees of one caller, which often have
/// consecutive numbers, would form clusters in the table, and the clusters of several callers would collide.
pub const CALLEE_HASH: u32 = 0xc2b2_ae35;
/// The number of additional entries behind the table, so that a search does not have to wrap around to the table's start.
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
    /// The time at which the call began, plus the time during which its chain was not the current one.
    pub start: u64,
    /// The sum of the durations of the calls that this call has made, each with the overhead outside of its interval.
    pub children: u64,
    /// The CFA of the call's frame, minus 1 if `flags` has [`ENDS_SLOWLY`]. In a root, an address above the stack.
    pub cfa: u64,
    /// The address of the [`ArcTimes`] of this call's arc.
    pub arc: u64,
    /// The address of the open call that made this one, or of the root. In a free record, the address of the next free one, or 0.
    pub outer: u64,
    /// The value of [`TimesHeader::begun`] when this call began (itself included), plus the number of calls that began while its chain was
    /// not the current one.
    pub begun: u64,
    /// The address of its [`PathNode`], or 0.
    pub node: u64,
    /// The part of [`table_key`] that identifies this call as a caller: the number of its function, or of its node if calling paths are
    /// measured, with [`CONTEXT`].
    pub context: u32,
    /// [`TAIL`], [`ENDS_SLOWLY`], [`INHERITED`], [`TRACED`], [`HAS_RESULT`] and [`REPORTED`]. In a traced run, the bits from [`DEPTH_BIT`]
    /// on are the call's depth. In a run in which short calls are only counted, those from [`BEGUN_SHORT_BIT`] on are the low bits of
    /// [`ArcTimes::begun_short`] when the call began.
    pub flags: u32,
}

/// Bit of [`OpenCall::flags`]: the call is a tail call by [`OpenCall::outer`]. It uses that call's frame and ends together with that
/// call.
pub const TAIL: u32 = 1;
/// Bit of [`OpenCall::flags`]: [`OpenCall::cfa`] is one less than the CFA. Because no frame has such a CFA, the end of the call takes the
/// slow path. Set for inherited calls and for a signal handler's outermost call on an alternate signal stack.
pub const ENDS_SLOWLY: u32 = 2;
/// Bit of [`OpenCall::flags`]: the call was open at the fork that created the process, and the parent process counts it. In this
/// process, the call takes time but is not counted and has no duration. It has [`ENDS_SLOWLY`] as well.
pub const INHERITED: u32 = 4;
/// Bit of [`OpenCall::flags`]: the event of the call's beginning, or a listing of the call in a snapshot, has been written to the
/// thread's ring ([`crate::trace`]).
pub const TRACED: u32 = 8;
/// Bit of [`OpenCall::flags`]: when the call returns, its result is written to the thread's ring.
pub const HAS_RESULT: u32 = 16;
/// Bit of [`OpenCall::flags`]: a snapshot after lost events has listed the call as open.
pub const REPORTED: u32 = 32;
/// The lowest bit of the depth in [`OpenCall::flags`]: the number of open calls around the call, plus 1. A root has 0. The depth
/// saturates at its greatest value.
pub const DEPTH_BIT: u32 = 8;
/// The lowest bit of the number of counted calls in [`OpenCall::flags`]. No run has both this and [`DEPTH_BIT`].
pub const BEGUN_SHORT_BIT: u32 = DEPTH_BIT;

impl OpenCall {
    /// Returns whether the call is one that the process's parent has made.
    pub const fn is_inherited(&self) -> bool {
        self.flags & INHERITED != 0
    }
}

/// The measured calls of one function by another one on a thread. The fields that nearly every call changes at its end are in the
/// first [`UNIT`], which is a cache line.
///
/// If the orders have a [`RegionOrders::short_below`](crate::region::RegionOrders::short_below), calls that are found short are only
/// counted: they are no [`OpenCall`]s, and their time is that of the innermost call that is one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ArcTimes {
    /// [`Kind::Arc`].
    pub record: Record,
    /// Number of its open calls in the current chain.
    pub open: u32,
    /// Nonzero while its calls are found short, so that all but one in [`PROBE`] are only counted.
    pub short: u32,
    /// The address of the [`FunctionTimes`] of the called function.
    pub function: u64,
    /// The sum of the own times of the ended calls: their durations minus those of the calls that they made and the overhead outside of
    /// these. May be negative.
    pub own: i64,
    /// The sum of the durations of the ended calls that no other open call of the same arc contained.
    pub inclusive: u64,
    /// The number of calls that were made within the calls in `inclusive`.
    pub within: u64,
    /// The number of ended calls that were measured.
    pub calls: u64,
    /// The number of ended calls that another open call of the same arc contained.
    pub nested: u64,
    /// The least duration of an ended call, without the overhead.
    pub min: u64,
    /// The greatest duration of an ended call, without the overhead.
    pub max: u64,
    /// Number of the caller, or [`crate::region::NO_FUNCTION`].
    pub caller: u32,
    /// Number of the called function.
    pub callee: u32,
    /// The part of `own` in which the thread waited for something. Calls that have not ended are in it.
    pub waited: u64,
    /// The number of calls that have begun while `short` was set. See [`ArcTimes::counted`].
    pub begun_short: u64,
    /// `own` when the thread last decided whether the calls of the arc are short. This and the next three fields are of one moment.
    pub seen_own: i64,
    /// `calls` then.
    pub seen_calls: u64,
    /// `inclusive` then.
    pub seen_inclusive: u64,
    /// The number of calls in `inclusive` then, and of those that were made within them.
    pub seen_within: u64,
    /// Always 0.
    pub reserved_words: [u64; 7],
}

/// Of so many consecutive calls of an arc whose calls are short, one is measured. A power of two.
pub const PROBE: u64 = 1024;
/// After so many measured calls of an arc, a thread decides whether they are short. A power of two.
pub const TRIAL: u64 = 256;

impl ArcTimes {
    /// Returns the number of calls that were only counted.
    pub const fn counted(&self) -> u64 {
        self.begun_short - self.begun_short / PROBE
    }
}

/// The number of buckets in [`FunctionTimes::histogram`].
pub const BUCKETS: usize = 176;
/// The logarithm of the number of equally wide buckets for each power of two.
pub const BUCKET_BITS: u32 = 2;

/// The initial value of [`FunctionTimes::pending`], which stands for no call.
pub const NO_CALL: u64 = 1;
/// The initial count, -1, of the bucket in which [`NO_CALL`] will be counted, so that the count is then 0.
pub const BEFORE_NO_CALL: u64 = u64::MAX;

/// Returns the bucket of a duration.
pub const fn bucket(duration: u64) -> usize {
    let exponent = (duration | 1 << BUCKET_BITS).ilog2() - BUCKET_BITS;
    let bucket = ((exponent << BUCKET_BITS) as u64 + (duration >> exponent)) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Returns the least duration in a bucket. A bucket ends where the next one begins; the last bucket has no upper bound.
pub const fn bucket_start(bucket: usize) -> u64 {
    let steps = 1 << BUCKET_BITS;
    match (bucket as u64 / steps).checked_sub(1) {
        None => bucket as u64,
        Some(exponent) => (steps + bucket as u64 % steps) << exponent,
    }
}

/// The measured calls of one function on a thread, from all callers. The function's inclusive time is the sum of its arcs' inclusive
/// times minus [`nested_inclusive`](FunctionTimes::nested_inclusive), which is 0 without
/// recursion.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FunctionTimes {
    /// [`Kind::Function`].
    pub record: Record,
    /// The function's number.
    pub number: u32,
    /// Number of its open calls in the current chain.
    pub open: u32,
    /// The sum of the durations of the ended calls that an open call of another arc of the function contained, but none of their own
    /// arc. [`ArcTimes::inclusive`] contains these durations.
    pub nested_inclusive: u64,
    /// The number of calls that were made within the calls in `nested_inclusive`.
    pub nested_within: u64,
    /// The number of calls in `nested_inclusive`.
    pub nested: u64,
    /// The duration of the last ended call, without the overhead, with bit 0 set. `histogram` does not include this call yet. The
    /// bucket of a call depends on the clock, and a store whose address the processor does not know until the clock has been read
    /// would delay the loads that follow. Therefore the end of each call updates the bucket of the call before.
    pub pending: u64,
    /// Always 0.
    pub reserved: [u64; 2],
    /// The numbers of ended calls by their durations without the overhead, in ticks; see [`bucket`].
    pub histogram: [u64; BUCKETS],
}

impl FunctionTimes {
    /// Returns the histogram including the pending call.
    pub fn complete_histogram(&self) -> [u64; BUCKETS] {
        let mut histogram = self.histogram;
        // A value of 0 means that the record is not initialized yet.
        if self.pending != 0 {
            let count = &mut histogram[bucket(self.pending)];
            *count = count.wrapping_add(1);
        }
        // If the process is killed during the end of the first call, `BEFORE_NO_CALL` may remain.
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
    /// Number of measured calls that have ended.
    pub calls: u64,
    /// The sum of the own times of the ended calls, as in [`ArcTimes::own`].
    pub own: i64,
    /// The address of the parent, or 0.
    pub parent_address: u64,
    /// The part of `own` in which the thread waited for something, as [`ArcTimes::waited`].
    pub waited: u64,
    /// The number of calls that were only counted.
    pub counted: u64,
}

/// [`PathNode::function`] of the node to which calls are charged when the tree is full.
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
    /// The time at which the chain ceased to be the current one, or 0 while it is current.
    pub since: u64,
    /// The value of [`TimesHeader::begun`] when the chain ceased to be the current one.
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
    assert!(size_of::<ArcTimes>() as u64 == 3 * UNIT);
    assert!(PROBE.is_power_of_two() && TRIAL.is_power_of_two());
    assert!(size_of::<TableEntry>() == 32);
    // The fields that each call changes are in one cache line.
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
