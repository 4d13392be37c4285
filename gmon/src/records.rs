//! The file as a sequence of raw records. Nothing is allocated here: a record borrows the bytes.

use byteorder::{BigEndian, ByteOrder, LittleEndian};
use thiserror::Error;

use crate::build_id::BuildId;
use crate::format::{
    BlockForm, Endian, Format, HEADER_LEN, MAGIC, TAG_ARC, TAG_BLOCKS, TAG_HISTOGRAM, VERSION, Width,
};
use crate::profile::{Arc, Block, CountOverflow, Unit, range_fault};

/// Why bytes are not a gmon.out file. Offsets are from the file's start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    #[error("not a gmon.out file: begins with \"{}\", at offset 0, expected \"gmon\"", found.escape_ascii())]
    Magic { found: Vec<u8> },
    #[error("version {found}, at offset 4, expected 1{hint}")]
    Version { found: u32, hint: &'static str },
    #[error("{what} cut off, at offset {offset}, expected {expected} bytes, found {found}")]
    Truncated { what: &'static str, offset: u64, expected: u64, found: u64 },
    #[error("unknown record tag {tag}, at offset {offset}, expected 0 (histogram), 1 (arc) or 2 (blocks)")]
    Tag { tag: u8, offset: u64 },
    #[error("histogram {low:#x}..{high:#x} with {bins} bins, at offset {offset}, expected {expected}")]
    Range { low: u64, high: u64, bins: u32, offset: u64, expected: &'static str },
    #[error("{overflow}, at offset {offset}")]
    Overflow { offset: u64, overflow: CountOverflow },
}

impl ReadError {
    /// Returns the offset of the error in the file.
    pub fn offset(&self) -> u64 {
        match self {
            ReadError::Magic { .. } => 0,
            ReadError::Version { .. } => 4,
            ReadError::Truncated { offset, .. }
            | ReadError::Tag { offset, .. }
            | ReadError::Range { offset, .. }
            | ReadError::Overflow { offset, .. } => *offset,
        }
    }
}

/// Everything that must be known to split a file into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) block_form: BlockForm,
}

/// A record as it is in the file.
#[derive(Clone, Debug)]
pub(crate) enum Record<'a> {
    Histogram(RawHistogram<'a>),
    Arc(Arc),
    Blocks(RawBlocks<'a>),
}

/// `u64 low, u64 high, u32 bins, u32 rate, char dimension[15], char abbrev, u16 x bins`
/// (addresses in the file's width).
#[derive(Clone, Debug)]
pub(crate) struct RawHistogram<'a> {
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) rate: u32,
    pub(crate) unit: Unit,
    bins: &'a [u8],
    endian: Endian,
}

impl<'a> RawHistogram<'a> {
    /// Returns the bins as they are in the file.
    pub(crate) fn bins(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        let endian = self.endian;
        self.bins.as_chunks::<2>().0.iter().map(move |bin| u64::from(read_u16(endian, bin)))
    }
}

/// `n x (address, count)`, both in the file's width.
#[derive(Clone, Debug)]
pub(crate) struct RawBlocks<'a> {
    entries: &'a [u8],
    format: Format,
}

impl<'a> RawBlocks<'a> {
    /// Returns the basic blocks of the record.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Block> + use<'a> {
        let Format { endian, width } = self.format;
        self.entries.chunks_exact(2 * width.bytes()).map(move |entry| {
            let (addr, count) = entry.split_at(width.bytes());
            Block { addr: read_address(endian, width, addr), count: read_address(endian, width, count) }
        })
    }
}

fn read_u16(endian: Endian, bytes: &[u8]) -> u16 {
    match endian {
        Endian::Little => LittleEndian::read_u16(bytes),
        Endian::Big => BigEndian::read_u16(bytes),
    }
}

fn read_u32(endian: Endian, bytes: &[u8]) -> u32 {
    match endian {
        Endian::Little => LittleEndian::read_u32(bytes),
        Endian::Big => BigEndian::read_u32(bytes),
    }
}

fn read_address(endian: Endian, width: Width, bytes: &[u8]) -> u64 {
    match (width, endian) {
        (Width::Bits32, _) => u64::from(read_u32(endian, bytes)),
        (Width::Bits64, Endian::Little) => LittleEndian::read_u64(bytes),
        (Width::Bits64, Endian::Big) => BigEndian::read_u64(bytes),
    }
}

/// Returns the header's spare bytes as a build-id, which is unknown if the header is incomplete.
pub(crate) fn header_build_id(bytes: &[u8]) -> BuildId {
    bytes.get(HEADER_LEN - BuildId::LEN..HEADER_LEN).map_or(BuildId::UNKNOWN, BuildId::new)
}

/// Checks the header, and returns the byte order, which the bytes of the version show.
///
/// # Errors
/// The header is not that of a gmon.out file of version 1.
pub(crate) fn read_header(bytes: &[u8], forced: Option<Endian>) -> Result<Endian, ReadError> {
    if bytes.len() >= MAGIC.len() && !bytes.starts_with(MAGIC) {
        return Err(ReadError::Magic { found: bytes[..MAGIC.len()].to_vec() });
    }
    if bytes.len() < HEADER_LEN {
        let found = bytes.len() as u64;
        return Err(ReadError::Truncated { what: "header", offset: 0, expected: HEADER_LEN as u64, found });
    }
    let version = &bytes[4..8];
    let is_version = |endian| read_u32(endian, version) == VERSION;
    match forced {
        Some(endian) if is_version(endian) => Ok(endian),
        None if is_version(Endian::Little) => Ok(Endian::Little),
        None if is_version(Endian::Big) => Ok(Endian::Big),
        None => Err(ReadError::Version { found: read_u32(Endian::Little, version), hint: "" }),
        Some(endian) => Err(ReadError::Version {
            found: read_u32(endian, version),
            hint: match endian {
                Endian::Little if is_version(Endian::Big) => " (the file is big-endian)",
                Endian::Big if is_version(Endian::Little) => " (the file is little-endian)",
                _ => "",
            },
        }),
    }
}

/// Iterates over the records after the header, up to the first error.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    position: usize,
    layout: Layout,
    failed: bool,
}

impl<'a> Records<'a> {
    /// Returns the records of `bytes`, which are the whole file with a valid header.
    pub(crate) fn new(bytes: &'a [u8], layout: Layout) -> Records<'a> {
        Records { bytes, position: HEADER_LEN.min(bytes.len()), layout, failed: false }
    }

    fn take(&mut self, what: &'static str, len: u64) -> Result<&'a [u8], ReadError> {
        let rest = &self.bytes[self.position..];
        match usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)) {
            Some((taken, _)) => {
                self.position += taken.len();
                Ok(taken)
            }
            None => Err(ReadError::Truncated {
                what,
                offset: self.position as u64,
                expected: len,
                found: rest.len() as u64,
            }),
        }
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, ReadError> {
        Ok(read_u32(self.layout.format.endian, self.take(what, 4)?))
    }

    fn address(&mut self, what: &'static str) -> Result<u64, ReadError> {
        let Format { endian, width } = self.layout.format;
        Ok(read_address(endian, width, self.take(what, width.bytes() as u64)?))
    }

    fn histogram(&mut self, offset: u64) -> Result<RawHistogram<'a>, ReadError> {
        let low = self.address("histogram's start address")?;
        let high = self.address("histogram's end address")?;
        let bins = self.u32("histogram's number of bins")?;
        let rate = self.u32("histogram's rate")?;
        let name = self.take("histogram's dimension", 16)?;
        if let Some(expected) = range_fault(low, high, u64::from(bins)) {
            return Err(ReadError::Range { low, high, bins, offset, expected });
        }
        let mut unit = Unit { dimension: [0; 15], abbrev: name[15] };
        unit.dimension.copy_from_slice(&name[..15]);
        let endian = self.layout.format.endian;
        let bins = self.take("histogram's bins", 2 * u64::from(bins))?;
        Ok(RawHistogram { low, high, rate, unit, bins, endian })
    }

    fn blocks(&mut self) -> Result<RawBlocks<'a>, ReadError> {
        let format = self.layout.format;
        let number = match (self.layout.block_form, format.width) {
            // glibc's n is a size_t; where that has 32 bits, the form is correct by chance.
            (BlockForm::Glibc, Width::Bits64) => self.address("number of basic blocks")?,
            _ => u64::from(self.u32("number of basic blocks")?),
        };
        // A length beyond 64 bits is beyond the file as well.
        let len = number.saturating_mul(2 * format.width.bytes() as u64);
        Ok(RawBlocks { entries: self.take("basic blocks", len)?, format })
    }

    fn record(&mut self) -> Result<Record<'a>, ReadError> {
        let offset = self.position as u64;
        match self.take("record tag", 1)?[0] {
            TAG_HISTOGRAM => Ok(Record::Histogram(self.histogram(offset)?)),
            TAG_ARC => Ok(Record::Arc(Arc {
                from: self.address("arc's caller")?,
                to: self.address("arc's function")?,
                count: u64::from(self.u32("arc's count")?),
            })),
            TAG_BLOCKS => Ok(Record::Blocks(self.blocks()?)),
            tag => Err(ReadError::Tag { tag, offset }),
        }
    }
}

/// A record, or an error, with the offset of the record's tag.
type Item<'a> = (u64, Result<Record<'a>, ReadError>);

impl<'a> Iterator for Records<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        if self.failed || self.position == self.bytes.len() {
            return None;
        }
        let offset = self.position as u64;
        let record = self.record();
        self.failed = record.is_err();
        Some((offset, record))
    }
}
