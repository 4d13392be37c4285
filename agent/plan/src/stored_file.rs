//! A plan file that an earlier run has written. Its tables are used where they are, so it stays in memory, as plans do.

use std::borrow::Cow;
use std::fmt;

use gprofinject_abi::VERSION;
use gprofinject_abi::plan::{MAGIC, PlanHeader, Table};
use gprofinject_image::tables;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The part of a plan file from its header to the end of its arena, in memory or mapped.
pub struct StoredFile {
    bytes: &'static [u8],
    header: PlanHeader,
}

impl StoredFile {
    /// Takes the bytes. Returns `None` if they do not begin with a header of this version, or do not hold the arena.
    pub fn new(bytes: &'static [u8]) -> Option<StoredFile> {
        let (header, _) = PlanHeader::read_from_prefix(bytes).ok()?;
        let end = header.arena_file.checked_add(header.arena_len)?;
        let is_whole = header.magic == MAGIC
            && header.version == VERSION
            && header.arena_file >= size_of::<PlanHeader>() as u64
            && end <= bytes.len() as u64;
        is_whole.then_some(StoredFile { bytes, header })
    }

    /// The header.
    pub(crate) fn header(&self) -> PlanHeader {
        self.header
    }

    /// What is between the header and the arena.
    pub(crate) fn tables(&self) -> &[u8] {
        self.bytes.get(size_of::<PlanHeader>()..self.header.arena_file as usize).unwrap_or_default()
    }

    /// The arena's contents.
    pub(crate) fn arena(&self) -> &[u8] {
        let start = self.header.arena_file as usize;
        self.bytes.get(start..start + self.header.arena_len as usize).unwrap_or_default()
    }

    /// Returns a table, or `None` if the file does not contain all of it.
    pub(crate) fn table<T: FromBytes + Immutable + KnownLayout + Copy>(
        &self,
        table: Table,
    ) -> Option<Cow<'static, [T]>> {
        let (offset, count) = (usize::try_from(table.offset).ok()?, usize::try_from(table.count).ok()?);
        let entries = self.bytes.get(offset..offset.checked_add(count.checked_mul(size_of::<T>())?)?)?;
        tables::entries(entries)
    }
}

impl fmt::Debug for StoredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}
