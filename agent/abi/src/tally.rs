//! The values of arguments and results: how often each was seen (`gprofinject --values`).
//!
//! A thread with such counts has a [`TallyHeader`] at [`TALLIES`] of its thread block. Its records are in the area for measured durations
//! ([`crate::times`]), whose bookkeeping they use; durations need not be measured for that.
//!
//! For each function and each call site, or path of open calls if calls are measured, there is a [`CallTally`], which is followed by a [`ValueTally`] for each of its values. A value has a
//! *slot* with the number of times that it was seen. If there is no free slot for a new value where it belongs, the table of slots
//! grows; if it may not grow, the least frequent of the values there gives its slot away, and its count is added to the
//! *others*, of which number, sum, extremes and a histogram are known (Metwally, Agrawal and El Abbadi 2005, "Space-Saving"). So the number of calls, their
//! sum, the extremes and the histogram are exact in any case, and the count of a value is too low by at most its *error*.
//!
//! The gates change a count by one instruction. While a gate or a slow path works on the counts of a thread, [`TallyHeader::busy`] is not 0.
//! A signal handler's call that comes in between changes no slot: it is one of the others, and of [`ValueTally::nested`].

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;
use crate::region::RECENT;
use crate::times::{Record, UNIT};
use crate::trace::{TRACE, TraceHeader};

/// Offset of the [`TallyHeader`] in a thread block.
pub const TALLIES: u64 = 3072;

/// The state of a thread's counts of values. Addresses are those of the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TallyHeader {
    /// The stack pointer of the gate that is at work, or 0.
    pub busy: u64,
    /// The address of the table of callers: [`CallEntry`] *, or 0 before the thread's first call.
    pub table: u64,
    /// The number of its entries that are in use.
    pub entries: u64,
    /// The address of this thread block in the process.
    pub base: u64,
    /// The number of calls whose values were not kept: there was no room, or the child in which they were made was not set up.
    pub lost: u64,
    /// The bytes of the records of values in the area.
    pub used: u64,
    /// The records that the gates of measured calls have found last, by stack pointer and function. They change only while `busy` is set.
    pub recent: [RecentTally; RECENT_TALLIES],
}

/// A record that a gate has found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RecentTally {
    /// [`CallTally::key`], or 0.
    pub key: u64,
    /// [`CallTally::return_address`].
    pub word: u64,
    /// The address of the [`CallTally`], all of whose values the gates can read.
    pub record: u64,
}

/// The number of recent records; a power of two.
pub const RECENT_TALLIES: usize = 32;

/// What [`RegionOrders::tallies`](crate::region::RegionOrders::tallies) is if values are kept and calls are not measured.
pub const ALONE: u32 = 1;
/// The same if calls are measured too: then a record is of a function and an open call, its caller.
pub const MEASURED: u32 = 2;
/// The same if no results are kept, so that the exits of functions need not ask.
pub const MEASURED_WITHOUT_RESULTS: u32 = 3;

/// An entry of the table of callers, which only the thread itself uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallEntry {
    /// [`CallTally::return_address`].
    pub return_address: u64,
    /// [`CallTally::key`], or 0 if the entry is free.
    pub key: u64,
    /// The address of the [`CallTally`].
    pub record: u64,
    /// Always 0.
    pub reserved: u64,
}

/// The number of places in which the search for an entry can begin; a power of two.
pub const ENTRIES: u64 = 1 << 14;
/// The number of further places behind them.
pub const ENTRIES_TAIL: u64 = 64;
/// The factors by which the two words of an entry's key are multiplied.
pub const ENTRY_HASH: [u32; 2] = [0x1e37_79b1, 0x05eb_ca6b];
/// By how much their sum is shifted to the right.
pub const ENTRY_SHIFT: u32 = 15;
/// The mask for the offset of the first place.
pub const ENTRY_MASK: u32 = ((ENTRIES - 1) * size_of::<CallEntry>() as u64) as u32;

/// Returns the offset of the entry with which the search for a key begins.
pub const fn entry_offset(return_address: u64, key: u64) -> u64 {
    let sum = return_address
        .wrapping_mul(ENTRY_HASH[0] as u64)
        .wrapping_add(key.wrapping_mul(ENTRY_HASH[1] as u64));
    sum >> ENTRY_SHIFT & ENTRY_MASK as u64
}

/// The bit of [`CallTally::key`] for results.
pub const RESULT: u64 = 1 << 31;

/// What is kept of the calls of one function from one call site: of their arguments, or of their results. As many [`ValueTally`] follow as
/// there are values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallTally {
    /// [`Kind::Tally`](crate::times::Kind::Tally).
    pub record: Record,
    /// The return address of the call. If calls are measured, the sum of the addresses of a node and an arc: see [`OpenKey`].
    pub return_address: u64,
    /// The number of the function plus 1, with [`RESULT`] in the records of results. In those of arguments of a function with an exit, the upper half is the lower
    /// half of the exit label in the return slot: if that is not the function's own, the function was entered by a jump. If calls are
    /// measured, it is that of an [`OpenKey`].
    pub key: u64,
    /// The number of values.
    pub values: u32,
    /// Nonzero if the gates cannot read all of them.
    pub is_slow: u32,
    /// Whose values these are: a [`CallerKind`].
    pub caller_kind: CallerKindCode,
    /// The number of the function that has made the measured call, or [`NO_FUNCTION`](crate::region::NO_FUNCTION).
    pub caller: u32,
    /// The number of the node of the measured call, or 0 if there are no nodes.
    pub node: u32,
    /// Always 0.
    pub unused: u32,
    /// Always 0.
    pub reserved: [u64; 2],
}

coded! {
    /// What is known of the caller in a [`CallTally`].
    pub enum CallerKind as CallerKindCode(u32) {
        /// The return address.
        Site = 0,
        /// The function that has made the call, and the call's node.
        Measured = 1,
        /// Nothing: these are the measured calls for whose callers there was no room.
        Rest = 2,
    }
}

/// The two words by which the gates find the record of a measured call, from the open call that makes it.
///
/// The address of an arc's record in the thread's area follows from its lower half, so the two words tell all pairs of arc and node apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenKey {
    /// The sum of the addresses of its arc and its node, in place of [`CallTally::return_address`].
    pub word: u64,
    /// The lower half of the arc's address, in the upper half of [`CallTally::key`].
    pub upper: u64,
}

impl OpenKey {
    /// Returns the key of an open call with these records.
    pub const fn of(arc: u64, node: u64) -> OpenKey {
        OpenKey { word: arc.wrapping_add(node), upper: arc << 32 }
    }
}

coded! {
    /// What the words in the slots of a value are.
    pub enum ValueClass as ValueClassCode(u32) {
        /// Integers, extended with zeros.
        Unsigned = 1,
        /// Integers, extended with their sign.
        Signed = 2,
        /// The bits of floating-point numbers of 8 bytes.
        Double = 3,
        /// The bits of floating-point numbers of 4 bytes.
        Single = 4,
        /// Hashes of texts, of which some are in [`Text`] records.
        Text = 5,
    }
}

/// The number of intervals of a histogram: 0, and one for each power of two, and one for numbers below 0.
pub const INTERVALS: usize = 66;
/// The index of the interval of numbers below 0.
pub const NEGATIVE: usize = 65;

impl ValueClass {
    /// Returns the interval of a value: 0, or 1 + the exponent of the highest power of two in it, or [`NEGATIVE`]. Of floating-point
    /// numbers, the integer part counts.
    pub fn interval(self, value: u64) -> usize {
        let of = |value: u64| (u64::BITS - value.leading_zeros()) as usize;
        let of_float = |value: f64| if value < 0.0 { NEGATIVE } else { of(value as u64) };
        match self {
            ValueClass::Unsigned => of(value),
            ValueClass::Signed if (value as i64) < 0 => NEGATIVE,
            ValueClass::Signed => of(value),
            ValueClass::Double => of_float(f64::from_bits(value)),
            ValueClass::Single => of_float(f64::from(f32::from_bits(value as u32))),
            ValueClass::Text => 0,
        }
    }

    /// Returns a number whose order among unsigned numbers is that of the value.
    pub const fn ordered(self, value: u64) -> u64 {
        const SIGN: u64 = 1 << 63;
        const SIGN_OF_SINGLE: u64 = 1 << 31;
        match self {
            ValueClass::Unsigned | ValueClass::Text => value,
            ValueClass::Signed => value ^ SIGN,
            ValueClass::Double => {
                if value & SIGN != 0 {
                    !value
                } else {
                    value | SIGN
                }
            }
            ValueClass::Single => {
                let value = value & 0xffff_ffff;
                if value & SIGN_OF_SINGLE != 0 { !value & 0xffff_ffff } else { value | SIGN_OF_SINGLE }
            }
        }
    }

    /// Returns the value that [`ordered`](ValueClass::ordered) turns into this number.
    pub const fn value_of(self, ordered: u64) -> u64 {
        const SIGN: u64 = 1 << 63;
        const SIGN_OF_SINGLE: u64 = 1 << 31;
        match self {
            ValueClass::Unsigned | ValueClass::Text => ordered,
            ValueClass::Signed => ordered ^ SIGN,
            ValueClass::Double => {
                if ordered & SIGN != 0 {
                    ordered & !SIGN
                } else {
                    !ordered
                }
            }
            ValueClass::Single => {
                if ordered & SIGN_OF_SINGLE != 0 {
                    ordered & !SIGN_OF_SINGLE & 0xffff_ffff
                } else {
                    !ordered & 0xffff_ffff
                }
            }
        }
    }
}

/// What is kept of one value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ValueTally {
    /// The address of the first [`ValueSlot`].
    pub slots: u64,
    /// The mask for the offset of a group of slots.
    pub mask: u64,
    /// Where the gates find the word, relative to their stack pointer.
    pub place: i64,
    /// By how many bits they shift it to the left and back to the right.
    pub shift: u32,
    /// A [`ValueClass`].
    pub class: ValueClassCode,
    /// The index of the value among those of the call.
    pub index: u32,
    /// Nonzero if the shift to the right extends the sign.
    pub is_signed: u32,
    /// The number of times that a value was seen which then had no slot, or lost it.
    pub others: u64,
    /// Their sum: of integers the lower and the upper half of a number of 128 bits, of floating-point numbers the bits of a double and 0.
    pub sum: [u64; 2],
    /// The least of them, as [`ValueClass::ordered`]; all bits set if there is none.
    pub least: u64,
    /// The greatest of them, in the same way; 0 if there is none.
    pub greatest: u64,
    /// The greatest number of times that a value without a slot can have been seen, apart from those that are `nested`.
    pub most: u64,
    /// The number of times that a value was seen in a signal handler's call that came while a gate was at work.
    pub nested: u64,
    /// The number of [`Text`] records that this value has made.
    pub texts: u64,
    /// Always 0.
    pub reserved: [u64; 3],
    /// The numbers of others by [interval](ValueClass::interval).
    pub histogram: [u64; INTERVALS],
    /// Always 0.
    pub unused: [u64; 6],
}

/// A value and its count, which is 0 if the slot is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ValueSlot {
    pub value: u64,
    pub count: u64,
}

/// The number of slots in a group: those in which a value may be, in one cache line.
pub const GROUP: u64 = 4;
/// The bytes of a group.
pub const GROUP_BYTES: u64 = GROUP * size_of::<ValueSlot>() as u64;
/// The number of groups with which a table begins.
pub const GROUPS_FIRST: u64 = 4;
/// The number of groups up to which it grows.
pub const GROUPS_MAX: u64 = 1024;
/// A table grows by this factor.
pub const GROWTH: u64 = 4;
/// The factor by which a value is multiplied to find its group: 2^64 divided by the golden ratio.
pub const VALUE_HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// By how much the product is shifted to the right.
pub const VALUE_SHIFT: u32 = 26;

/// Returns the offset of the group in which a value may have a slot.
pub const fn group_offset(value: u64, mask: u64) -> u64 {
    // The lower bits of floating-point numbers, and of numbers that are shifted, are often all zero.
    (value ^ value >> 32).wrapping_mul(VALUE_HASH) >> VALUE_SHIFT & mask
}

/// A table of slots: this header, at the end of [`UNIT`] bytes, then the groups of [`ValueSlot`]s, then the error of each slot. A
/// table that has grown leaves the smaller one behind.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slots {
    /// [`Kind::Slots`](crate::times::Kind::Slots).
    pub record: Record,
}

/// Returns the units of a table of slots with so many groups.
pub const fn slots_units(groups: u64) -> u64 {
    1 + (groups * (GROUP_BYTES + GROUP * 8)).div_ceil(UNIT)
}

/// The bytes of a text that are kept.
pub const TEXT_MAX: usize = 96;
/// The number of texts that one value makes.
pub const TEXTS_MAX: u64 = 256;

/// A text, or a part of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Text {
    /// [`Kind::Text`](crate::times::Kind::Text).
    pub record: Record,
    /// [`text_hash`].
    pub hash: u64,
    /// The number of bytes.
    pub len: u32,
    /// Flags: [`CUT`](crate::args::CUT), or [`NOT_READ`].
    pub flags: u32,
    /// The bytes.
    pub bytes: [u8; TEXT_MAX],
    /// Always 0.
    pub reserved: u64,
}

/// A flag: the memory could not be read.
pub const NOT_READ: u32 = 2;

/// The units of a [`Text`].
pub const TEXT_UNITS: u64 = size_of::<Text>() as u64 / UNIT;

/// Returns the hash of a text: FNV-1a, with its flags. It is not 0.
pub fn text_hash(bytes: &[u8], flags: u32) -> u64 {
    let add = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, add);
    add(hash, &(flags as u8)) | 1
}

/// A record is made only while those of values have fewer bytes than this, so that a thread's counts are bounded.
pub const AREA_MAX: u64 = 16 << 20;
/// A table of slots grows, and texts are kept, only while those records have fewer bytes than this.
pub const GROWTH_MAX: u64 = 8 << 20;
/// The number of entries that the table of callers may have.
pub const ENTRIES_MAX: u64 = ENTRIES / 4 * 3;
/// The bytes for [`CallerKind::Rest`] records, beside [`AREA_MAX`], and the entries for them, beside [`ENTRIES_MAX`].
pub const REST_MAX: (u64, u64) = (2 << 20, ENTRIES / 8);

const _: () = {
    assert!(TRACE + size_of::<TraceHeader>() as u64 <= TALLIES);
    assert!(TALLIES + size_of::<TallyHeader>() as u64 <= RECENT);
    assert!(size_of::<CallEntry>() == 32 && size_of::<RecentTally>() == 24);
    assert!(size_of::<CallTally>() as u64 == UNIT);
    assert!(size_of::<ValueTally>() as u64 == 11 * UNIT);
    assert!(offset_of!(ValueTally, histogram) as u64 == 2 * UNIT);
    assert!(size_of::<Text>() as u64 == 2 * UNIT);
    assert!(GROUP_BYTES == UNIT && size_of::<Slots>() as u64 <= UNIT);
    assert!(TEXT_MAX == crate::args::STRING_MAX);
};

#[cfg(test)]
mod tests {
    use super::ValueClass;

    #[test]
    fn values_have_an_order() {
        let sorted = |class: ValueClass, values: &[u64]| {
            assert!(values.is_sorted_by_key(|&value| class.ordered(value)), "{class:?}");
            for &value in values {
                assert_eq!(class.value_of(class.ordered(value)), value, "{class:?}");
            }
        };
        sorted(ValueClass::Unsigned, &[0, 1, u64::MAX / 2, u64::MAX]);
        sorted(ValueClass::Signed, &[i64::MIN, -1, 0, 1, i64::MAX].map(|n| n as u64));
        sorted(ValueClass::Double, &[f64::MIN, -1.5, -0.0, 0.0, 2.5, f64::INFINITY].map(f64::to_bits));
        sorted(ValueClass::Single, &[f32::MIN, -1.5, 0.0, 2.5].map(|n| u64::from(n.to_bits())));
    }

    #[test]
    fn intervals_are_powers_of_two() {
        let of = |class: ValueClass, value: u64| class.interval(value);
        assert_eq!([0, 1, 2, 3, 4, u64::MAX].map(|n| of(ValueClass::Unsigned, n)), [0, 1, 2, 2, 3, 64]);
        assert_eq!([-1_i64, 0, 8].map(|n| of(ValueClass::Signed, n as u64)), [65, 0, 4]);
        assert_eq!([-0.5, 0.5, 5.0].map(|n: f64| of(ValueClass::Double, n.to_bits())), [65, 0, 3]);
    }
}
