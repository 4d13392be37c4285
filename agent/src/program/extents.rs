//! Sorted tables of address ranges, each with the index of a library. One thread changes a table while others look in it.
#![allow(unsafe_code, reason = "the tables are mapped, and reached by their addresses")]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// The addresses from `lo` up to `hi` of a library. Only the thread that handles a change of the loaded libraries writes here.
#[repr(C)]
pub(crate) struct Extent {
    lo: AtomicU64,
    hi: AtomicU64,
    /// The library's index.
    index: AtomicU32,
}

/// A table of ranges that do not overlap, sorted by their addresses.
pub(crate) struct Extents {
    /// Stored once, by [`Extents::begin`].
    table: AtomicPtr<Extent>,
    /// The number of entries for which there is room. Stored with `table`.
    room: AtomicU32,
    /// The number of entries.
    len: AtomicU32,
    /// Counts the beginnings and the ends of changes, so it is odd during a change.
    changes: AtomicU32,
}

/// What a table says of an address.
pub(crate) enum Found {
    /// The library with this index is there.
    Library(u32),
    Nothing,
    /// The table is just being changed, perhaps by code that a signal handler of this thread has interrupted.
    Changing,
}

/// Returns the number of indices, from 0 up to `len`, for which `is_before` holds. It holds for none after the first for
/// which it does not. Integer code only; see [`crate::hot::gate`].
#[inline(always)]
pub(crate) fn partition_point(len: u32, is_before: impl Fn(u32) -> bool) -> u32 {
    let (mut lo, mut hi) = (0, len);
    while lo < hi {
        let middle = (lo + hi) / 2;
        if is_before(middle) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    lo
}

impl Extents {
    pub(crate) const fn new() -> Extents {
        Extents {
            table: AtomicPtr::new(ptr::null_mut()),
            room: AtomicU32::new(0),
            len: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// Gives the table its memory.
    ///
    /// # Safety
    /// Zeros for `room` entries must be at `table`, which are writable, in nobody's use and never unmapped.
    pub(crate) unsafe fn begin(&self, table: u64, room: u32) {
        self.room.store(room, Ordering::Relaxed);
        self.table.store(table as *mut Extent, Ordering::Relaxed);
    }

    fn get(&self, at: u32) -> Option<&Extent> {
        let room = self.room.load(Ordering::Relaxed);
        let table = NonNull::new(self.table.load(Ordering::Relaxed)).filter(|_| at < room)?;
        // SAFETY: `begin` has been given a table of that many entries. Zeros are a valid `Extent`.
        Some(unsafe { table.add(at as usize).as_ref() })
    }

    /// Returns the library in whose range an address is that is not the first of the range; it may be the first one after
    /// the range, as return addresses may. Integer code only; see [`crate::hot::gate`].
    #[inline(always)]
    pub(crate) fn with_return(&self, address: u64) -> Found {
        let before = self.changes.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let after = partition_point(len, |at| match self.get(at) {
            Some(extent) => extent.lo.load(Ordering::Relaxed) < address,
            None => false,
        });
        let found = if after == 0 { None } else { self.get(after - 1) };
        let found = match found {
            Some(extent) if address <= extent.hi.load(Ordering::Relaxed) => {
                Found::Library(extent.index.load(Ordering::Relaxed))
            }
            _ => Found::Nothing,
        };
        fence(Ordering::Acquire);
        let is_settled = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        if is_settled { found } else { Found::Changing }
    }

    /// Changes the table by `change`, which gets the number of entries and returns the new one.
    fn change(&self, change: impl FnOnce(u32) -> Option<u32>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(len) = change(self.len.load(Ordering::Relaxed)) {
            self.len.store(len, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Adds a range of the library with this index.
    pub(crate) fn add(&self, lo: u64, hi: u64, index: u32) {
        self.change(|len| {
            let mut at = len;
            // Without room, nothing is moved.
            self.get(len)?;
            while at > 0 && self.get(at - 1)?.lo.load(Ordering::Relaxed) > lo {
                self.get(at)?.copy_from(self.get(at - 1)?);
                at -= 1;
            }
            self.get(at)?.set(lo, hi, index);
            Some(len + 1)
        });
    }

    /// Removes the range of the library with this index, if it is there.
    pub(crate) fn remove(&self, index: u32) {
        self.change(|len| {
            let is_it =
                |at: &u32| self.get(*at).is_some_and(|extent| extent.index.load(Ordering::Relaxed) == index);
            let removed = (0..len).find(is_it)?;
            for at in removed + 1..len {
                self.get(at - 1)?.copy_from(self.get(at)?);
            }
            Some(len - 1)
        });
    }
}

impl Extent {
    fn set(&self, lo: u64, hi: u64, index: u32) {
        self.lo.store(lo, Ordering::Relaxed);
        self.hi.store(hi, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
    }

    fn copy_from(&self, other: &Extent) {
        let index = other.index.load(Ordering::Relaxed);
        self.set(other.lo.load(Ordering::Relaxed), other.hi.load(Ordering::Relaxed), index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(extents: &Extents, address: u64) -> Option<u32> {
        match extents.with_return(address) {
            Found::Library(index) => Some(index),
            Found::Nothing | Found::Changing => None,
        }
    }

    #[test]
    fn ranges_are_found_whatever_their_order() {
        let mut memory: Vec<[u64; 3]> = vec![[0; 3]; 3];
        let extents = Extents::new();
        // SAFETY: the vector has zeros for three entries and lives longer than the table.
        unsafe { extents.begin(memory.as_mut_ptr() as u64, 3) };
        extents.add(0x5000, 0x6000, 7);
        extents.add(0x1000, 0x2000, 8);
        extents.add(0x3000, 0x4000, 9);
        // There is no room for a fourth one.
        extents.add(0x100, 0x200, 10);
        let at = [0x1000, 0x1001, 0x2000, 0x2001, 0x3800, 0x5001, 0x6001, 0x150];
        let expected = [None, Some(8), Some(8), None, Some(9), Some(7), None, None];
        assert_eq!(at.map(|at| found(&extents, at)), expected);
        extents.remove(9);
        assert_eq!([0x3800, 0x5800].map(|at| found(&extents, at)), [None, Some(7)]);
        extents.remove(9);
        extents.change(|len| {
            assert!(matches!(extents.with_return(0x5800), Found::Changing));
            Some(len)
        });
    }
}
