//! The differences between gmon.out files: byte order, address width, and the form of tag 2.

use std::fmt;

/// The first bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"gmon";
/// The only version in use (binutils `gprof/gmon_out.h`, `GMON_VERSION`).
pub(crate) const VERSION: u32 = 1;
/// The length in bytes of the magic, the version, and 12 spare bytes, in which this crate keeps a
/// [`BuildId`](crate::BuildId).
pub(crate) const HEADER_LEN: usize = 20;
/// `GMON_TAG_TIME_HIST`, `GMON_TAG_CG_ARC`, `GMON_TAG_BB_COUNT`.
pub(crate) const TAG_HISTOGRAM: u8 = 0;
pub(crate) const TAG_ARC: u8 = 1;
pub(crate) const TAG_BLOCKS: u8 = 2;

/// The byte order of every number in the file, which is that of the profiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endian {
    Little,
    Big,
}

/// The width of an address in the file, which is that of the profiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    Bits64,
    Bits32,
}

impl Width {
    /// Returns the number of bytes of an address, and of a basic block's count.
    pub const fn bytes(self) -> usize {
        match self {
            Width::Bits32 => 4,
            Width::Bits64 => 8,
        }
    }

    /// Returns the highest address.
    pub const fn max_address(self) -> u64 {
        match self {
            Width::Bits32 => u32::MAX as u64,
            Width::Bits64 => u64::MAX,
        }
    }
}

/// Byte order and address width. The file says the first and only implies the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Format {
    pub endian: Endian,
    pub width: Width,
}

impl Format {
    /// x86-64, AArch64, RISC-V 64.
    pub const LITTLE_64: Format = Format { endian: Endian::Little, width: Width::Bits64 };
    /// i386, ARM.
    pub const LITTLE_32: Format = Format { endian: Endian::Little, width: Width::Bits32 };
    /// s390x, SPARC 64.
    pub const BIG_64: Format = Format { endian: Endian::Big, width: Width::Bits64 };
    /// PowerPC, MIPS.
    pub const BIG_32: Format = Format { endian: Endian::Big, width: Width::Bits32 };

    /// All four formats.
    pub const ALL: [Format; 4] = [Self::LITTLE_64, Self::LITTLE_32, Self::BIG_64, Self::BIG_32];
}

impl fmt::Display for Endian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Endian::Little => "little-endian",
            Endian::Big => "big-endian",
        })
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-bit", 8 * self.bytes())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.width, self.endian)
    }
}

/// How a tag 2 record gives its number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockForm {
    /// As `u32 n`, which gprof reads (binutils `gprof/basic_blocks.c`) and this crate writes.
    Gprof,
    /// As `u64 n`, which glibc writes for 64-bit programs (`gmon/gmon.c`, `write_bb_counts`) and gprof cannot
    /// read.
    Glibc,
}
