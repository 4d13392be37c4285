//! How the agent reads the arguments and results of traced calls: a list of *fetches* for each function.
//!
//! The injector knows the types (from debug information, prototypes or the user) and where the calling convention puts each
//! value. It turns both into [`Fetch`]es, each of which says where one value is and how it is read. The agent executes them at
//! the beginning and at the end of a call. It needs no types, and does not allocate.
//!
//! The fetches of a module are a *table* ([`Fetches`]): a [`FetchHeader`], then a [`CallFetches`] for each function by its
//! number, then the fetches.
//!
//! What a fetch yields is one *value*, encoded as bytes:
//!
//! | first byte | then |
//! |---|---|
//! | [`UNREADABLE`] | the address that could not be read: 8 bytes |
//! | [`SCALAR`] | the value: 8 bytes, extended with its sign or with zeros; a floating-point number as its bits |
//! | [`STRING`] | flags ([`CUT`]), the number of bytes, these bytes |
//! | [`RAW`] | the number of bytes, these bytes |
//!
//! Numbers are little-endian. The values of a call's arguments follow each other in the order of its fetches. If they are longer
//! than [`CALL_MAX`], the last ones are missing.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::coded::coded;

/// First byte of a value whose memory cannot be read, or is not read because the process makes no system calls any more.
pub const UNREADABLE: u8 = 0;
/// First byte of a number.
pub const SCALAR: u8 = 1;
/// First byte of a string.
pub const STRING: u8 = 2;
/// First byte of an object as it is in memory.
pub const RAW: u8 = 3;
/// Bit of a string's flags: the string has more bytes than these.
pub const CUT: u8 = 1;

/// The greatest number of bytes of a string that are read.
pub const STRING_MAX: usize = 96;
/// The greatest number of bytes of an object that are read.
pub const RAW_MAX: usize = 64;
/// The greatest number of bytes of all encoded values of a call's arguments, or of its result.
pub const CALL_MAX: usize = 256;
/// The greatest number of fetches for the arguments of a function. More would not fit into [`CALL_MAX`] bytes.
pub const FETCHES_MAX: usize = CALL_MAX / 2;

coded! {
    /// What a fetch reads.
    pub enum Op as OpCode(u8) {
        /// A number of [`Fetch::size`] bytes, in the first source.
        Scalar = 1,
        /// A number of [`Fetch::size`] bytes, in memory at the address in the first source.
        Load = 2,
        /// A string that ends with a zero byte, at the address in the first source.
        CString = 3,
        /// A string at the address in the first source. The second source has its length in bytes.
        Str = 4,
        /// A `std::string` of libstdc++ at the address in the first source. Its first two words are the address of the
        /// characters and their number.
        StdString = 5,
        /// A `std::string` of libc++ at the address in the first source. If bit 0 of its first byte is set, its second and
        /// third words are the number of characters and their address; otherwise the other bits of the first byte are their
        /// number, and they follow it.
        LibcxxString = 6,
        /// A `std::string` of libstdc++'s old ABI at the address in the first source. Its only word is the address of the
        /// characters, which end with a zero byte.
        OldString = 7,
        /// An object of [`Fetch::size`] bytes, whose first 8 are in the first source and whose others are in the second one.
        Words = 8,
        /// An object of [`Fetch::size`] bytes among the arguments on the stack, at the CFA plus the first of
        /// [`Fetch::offsets`].
        Stack = 9,
        /// An object of [`Fetch::size`] bytes in memory at the address in the first source.
        Bytes = 10,
        /// A string whose address and length in bytes are words of an object, at the address in the first source. The lowest
        /// byte of [`Fetch::size`] is the index of the address among these words, and the next one that of the length.
        Text = 11,
    }
}

/// How one value is read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Fetch {
    /// An [`Op`].
    pub op: OpCode,
    /// 1 if the number is extended with its sign, [`FLOAT`] if it is a floating-point number whose values are kept ([`crate::tally`]),
    /// otherwise 0.
    pub is_signed: u8,
    /// Where its words are: less than [`INTEGERS`] for an integer register by its place in the calling convention (rdi, rsi,
    /// rdx, rcx, r8, r9, then rax), [`VECTOR`] plus a number for the lower half of a vector register, or [`ON_STACK`].
    pub sources: [u8; 2],
    /// The number of bytes of the value.
    pub size: u32,
    /// For sources that are [`ON_STACK`]: the distance in bytes from the CFA up to the word.
    pub offsets: [u32; 2],
}

/// [`Fetch::is_signed`] of a floating-point number.
pub const FLOAT: u8 = 2;

/// The number of integer registers that are sources.
pub const INTEGERS: u8 = 7;
/// The source that is rdx: the third argument, and the second word of a result.
pub const RDX: u8 = 2;
/// The source that is rax: the first word of a result. For the arguments of a function, rax has no meaning.
pub const RAX: u8 = 6;
/// The source that is xmm0. The others follow.
pub const VECTOR: u8 = 16;
/// The number of vector registers that are sources.
pub const VECTORS: u8 = 8;
/// The source that is a word on the stack.
pub const ON_STACK: u8 = 32;

/// The start of a table of fetches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FetchHeader {
    /// The number of functions.
    pub functions: u32,
    /// The number of fetches.
    pub fetches: u32,
    /// Always 0.
    pub reserved: u64,
}

/// Which fetches are those of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CallFetches {
    /// The index of the first one.
    pub first: u32,
    /// The number of those for the arguments.
    pub arguments: u16,
    /// The number of those for the result, which follow.
    pub results: u16,
}

/// A table of fetches, as the agent uses it.
#[derive(Clone, Copy, Debug)]
pub struct Fetches<'t> {
    functions: &'t [CallFetches],
    fetches: &'t [Fetch],
}

impl<'t> Fetches<'t> {
    /// Returns the table in these bytes, which are aligned to 8. Returns `None` if they are too short for what the header says.
    pub fn read(bytes: &'t [u8]) -> Option<Fetches<'t>> {
        let (header, rest) = FetchHeader::ref_from_prefix(bytes).ok()?;
        let (functions, rest) =
            <[CallFetches]>::ref_from_prefix_with_elems(rest, header.functions as usize).ok()?;
        let (fetches, _) = <[Fetch]>::ref_from_prefix_with_elems(rest, header.fetches as usize).ok()?;
        Some(Fetches { functions, fetches })
    }

    /// Returns the fetches for the arguments of a function and those for its result. Both are empty if the table does not have
    /// the function.
    pub fn of(&self, number: u32) -> (&'t [Fetch], &'t [Fetch]) {
        let found = || {
            let call = self.functions.get(number as usize)?;
            let all = self.fetches.get(call.first as usize..)?;
            let (arguments, rest) = all.split_at_checked(call.arguments.into())?;
            Some((arguments, rest.get(..call.results.into())?))
        };
        found().unwrap_or_default()
    }
}

const _: () = {
    assert!(size_of::<Fetch>() == 16);
    assert!(size_of::<FetchHeader>() == 16);
    assert!(size_of::<CallFetches>() == 8);
    // The length of a value is a byte.
    assert!(STRING_MAX <= u8::MAX as usize);
    assert!(RAW_MAX <= u8::MAX as usize);
    assert!(INTEGERS <= VECTOR && VECTOR + VECTORS <= ON_STACK);
    assert!(FETCHES_MAX <= u16::MAX as usize);
};
