//! Tables of numbers in bytes that an earlier run has kept: they are used where they are.

use std::borrow::Cow;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Each table begins at a multiple of so many bytes.
const ALIGNMENT: usize = 8;

/// Writes tables, one after the other: of each the number of its entries, and the entries.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Adds a table.
    pub fn add<T: IntoBytes + Immutable>(&mut self, table: &[T]) {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        self.0.extend((table.len() as u64).to_le_bytes());
        self.0.extend(table.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// Returns all tables.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads what a [`Writer`] has written, table by table.
pub struct Reader<'d>(&'d [u8]);

impl<'d> Reader<'d> {
    /// Reads these bytes.
    pub fn new(bytes: &'d [u8]) -> Reader<'d> {
        Reader(bytes)
    }

    /// Returns the bytes of the next table, whose entries have this size, or `None` if the bytes do not contain all of it.
    pub fn bytes(&mut self, size: usize) -> Option<&'d [u8]> {
        let (count, rest) = self.0.split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(size)?;
        let table = rest.get(..len)?;
        self.0 = rest.get(len.checked_next_multiple_of(ALIGNMENT)?..)?;
        Some(table)
    }

    /// Returns the next table, or `None` if the bytes do not contain all of it.
    pub fn table<T: FromBytes + Immutable + KnownLayout + Copy>(&mut self) -> Option<Cow<'d, [T]>> {
        let bytes = self.bytes(size_of::<T>())?;
        entries(bytes)
    }

    /// Whether all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns bytes as entries, where they are if they are aligned. Returns `None` if they are no whole number of entries.
pub fn entries<T: FromBytes + Immutable + KnownLayout + Copy>(bytes: &[u8]) -> Option<Cow<'_, [T]>> {
    if let Ok(entries) = <[T]>::ref_from_bytes(bytes) {
        return Some(Cow::Borrowed(entries));
    }
    let entries = bytes.chunks_exact(size_of::<T>());
    if !entries.remainder().is_empty() {
        return None;
    }
    entries.map(|entry| T::read_from_bytes(entry).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_were_written() {
        let mut writer = Writer::default();
        writer.add(b"abc");
        writer.add::<u64>(&[]);
        writer.add(&[[1_u32, 2], [3, 4], [5, 6]]);
        let bytes = writer.into_bytes();
        let mut shifted = vec![0];
        shifted.extend(&bytes);
        for bytes in [&bytes[..], &shifted[1..]] {
            let mut reader = Reader::new(bytes);
            assert_eq!(reader.bytes(1), Some(&b"abc"[..]));
            assert_eq!(reader.table::<u64>().as_deref(), Some(&[][..]));
            assert_eq!(reader.table().as_deref(), Some(&[[1_u32, 2], [3, 4], [5, 6]][..]));
            assert!(reader.is_at_end() && reader.table::<u8>().is_none());
        }
        for len in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..len]);
            let read =
                reader.bytes(1).and_then(|_| reader.table::<u64>()).and_then(|_| reader.table::<[u32; 2]>());
            assert!(read.is_none(), "{len} bytes");
        }
        assert!(Reader::new(&[0xff; 16]).table::<u64>().is_none());
    }
}
