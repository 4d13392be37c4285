//! Tables through which indirect jumps lead.

use crate::image::Image;

/// The largest number of entries that are read of one table.
const MOST: u64 = 1 << 14;

/// A table of jump targets in the program's data, with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpTable {
    /// Its entries are 32-bit distances from the table.
    Distances(u64),
    /// Its entries are addresses.
    Addresses(u64),
}

impl JumpTable {
    /// Returns the targets of the entries. The table's end is not known: there are entries for as long as there is data.
    pub fn targets(self, image: &Image) -> impl Iterator<Item = u64> {
        (0..MOST).map_while(move |i| match self {
            JumpTable::Distances(table) => {
                let word = image.data_at(table.wrapping_add(4 * i), 4)?;
                let distance = i32::from_le_bytes(word.try_into().ok()?);
                Some(table.wrapping_add_signed(distance.into()))
            }
            JumpTable::Addresses(table) => image.pointer_at(table.wrapping_add(8 * i)),
        })
    }

    /// Returns the address of an entry.
    pub fn entry(self, index: usize) -> u64 {
        match self {
            JumpTable::Distances(table) => table.wrapping_add(4 * index as u64),
            JumpTable::Addresses(table) => table.wrapping_add(8 * index as u64),
        }
    }
}
