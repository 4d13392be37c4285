//! A part of a memory file, mapped, to which processes may write at any time.
#![allow(unsafe_code, reason = "it maps a file, and accesses the memory")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use gprofinject_abi::region::PAGE;

use crate::os::memory_files;

/// The bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;
/// The words of a line of the processor's cache.
const LINE: usize = 8;

/// What may be done with a mapped part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Clear,
}

/// A mapped part of a memory file.
#[derive(Debug)]
pub(crate) struct Part {
    address: NonNull<AtomicU64>,
    words: usize,
    /// The offset in the file.
    start: u64,
    access: Access,
}

impl Part {
    /// Maps the pages of a memory file that contain the range. Nothing is read: a hole that is accessed would take memory.
    ///
    /// # Errors
    /// The length of the file is not fixed, so that an access may end this process (SIGBUS); the range is empty, or not inside the
    /// file; or it cannot be mapped.
    pub(crate) fn of(file: &File, range: Range<u64>, access: Access) -> io::Result<Part> {
        let start = range.start / PAGE * PAGE;
        let end = range.end.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let is_inside = range.start < range.end && end <= file.metadata()?.len().next_multiple_of(PAGE);
        if !is_inside || !memory_files::has_fixed_length(file) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = usize::try_from(end - start).map_err(io::Error::other)?;
        let offset = libc::off_t::try_from(start).map_err(io::Error::other)?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Clear => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses changes nothing that exists.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), offset)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Part { address, words: len / WORD as usize, start, access })
    }

    /// The words of the part.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `of` has mapped so many words here, at the start of a page, readable until drop. The file has them for ever, because
        // nobody can shorten it. Other processes may write to them; this process accesses them as atomic words only, of which every
        // value is valid.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }

    /// The offset in the file behind the part.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.words as u64 * WORD
    }

    /// Whether a range of the file is in the part.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.end()
    }

    /// Copies the words from an offset in the file on. What is not in the part is left as it is.
    pub(crate) fn read(&self, offset: u64, into: &mut [u64]) {
        let first = (offset.saturating_sub(self.start) / WORD) as usize;
        for (word, shared) in into.iter_mut().zip(self.words().iter().skip(first)) {
            *word = shared.load(Ordering::Relaxed);
        }
    }

    /// Sets the words of a range of the file to zero that are not zero. The range begins and ends at pages.
    ///
    /// # Errors
    /// The part is not mapped for that, or the range is not in it.
    pub(crate) fn clear(&self, range: Range<u64>) -> io::Result<()> {
        let index = |offset: u64| Some((offset.checked_sub(self.start)? / WORD) as usize);
        let words = index(range.start)
            .zip(index(range.end))
            .and_then(|(first, end)| self.words().get(first..end))
            .filter(|_| self.access == Access::Clear)
            .ok_or(io::ErrorKind::InvalidInput)?;
        for line in words.chunks(LINE) {
            // A line that is written is copied back to memory, so only those are written that must be.
            if line.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed)) != 0 {
                line.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
        }
        Ok(())
    }
}

// SAFETY: the memory is accessed as atomic words, from whichever thread, until the value is dropped.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped it, and borrows of the words end before the value does.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.words * WORD as usize) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;

    #[test]
    fn words_are_read_and_cleared() {
        let file = memory_files::empty_memory_file(Path::new("part")).expect("made");
        file.set_len(5 * PAGE).expect("resized");
        assert!(Part::of(&file, 0..PAGE, Access::Read).is_err(), "it could be truncated");
        memory_files::fix_length(&file).expect("fixed");
        for range in [0..0, PAGE..PAGE, 0..5 * PAGE + 1, 6 * PAGE..7 * PAGE, 0..u64::MAX] {
            assert!(Part::of(&file, range.clone(), Access::Read).is_err(), "{range:?}");
        }
        file.write_all_at(&[7; 40], 2 * PAGE - 20).expect("written");
        file.write_all_at(&[9; 8], 4 * PAGE - 8).expect("written");

        let part = Part::of(&file, PAGE + 100..3 * PAGE, Access::Read).expect("mapped");
        let mut words = [1; 4];
        part.read(2 * PAGE - 16, &mut words);
        assert_eq!(words, [0x0707_0707_0707_0707; 4]);
        let mut words = [1; 4];
        part.read(3 * PAGE - 8, &mut words);
        assert_eq!(words, [0, 1, 1, 1], "nothing behind the part is read");
        assert!(part.clear(PAGE..3 * PAGE).is_err(), "it is mapped for reading");

        let part = Part::of(&file, PAGE..4 * PAGE, Access::Clear).expect("mapped");
        for range in [0..PAGE, PAGE..5 * PAGE] {
            assert!(part.clear(range).is_err());
        }
        part.clear(PAGE..3 * PAGE).expect("cleared");
        let mut bytes = [1; 5 * PAGE as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        let rest: Vec<_> = (0..).zip(bytes).filter(|(_, byte)| *byte != 0).collect();
        assert_eq!(rest, (4 * PAGE - 8..4 * PAGE).map(|at| (at, 9)).collect::<Vec<_>>());
    }
}
