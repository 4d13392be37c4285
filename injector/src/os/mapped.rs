//! Files that are mapped for reading.
//!
//! Whoever may write a file can truncate it while it is mapped, and an access behind its new end raises SIGBUS (mmap(2)). A handler maps
//! zeros there, so that this process goes on: readers check what they read. Only programs that this process executes have the
//! default disposition again (execve(2)).
#![allow(unsafe_code, reason = "it maps files and handles the signal that a truncated one raises")]

use std::fs::File;
use std::io::{self, Error};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file's contents, mapped for reading.
pub(crate) struct Mapped {
    address: *mut libc::c_void,
    len: usize,
    /// The entry of [`RANGES`], if there was one left.
    range: Option<&'static Range>,
}

// SAFETY: the mapping is only read, whichever thread does so, until the value is dropped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a file.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(crate) fn new(file: &File) -> io::Result<Mapped> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Mapped { address: ptr::null_mut(), len, range: None });
        }
        // SAFETY: a new mapping at an address that the kernel chooses changes nothing that exists.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Mapped { address, len, range: Range::take(address as usize, len) })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `new` has mapped `len` bytes here, readable until drop. Weak point: another process may
        // write to or truncate the file while it is read. Every byte is valid as u8, the readers
        // check what they read, and behind the end of a truncated file they find zeros ([`handle`]).
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.len != 0 {
            // Something else may be mapped here next.
            if let Some(range) = self.range {
                range.give_back();
            }
            // SAFETY: `new` has mapped it, and borrows of the bytes end before the value does.
            unsafe { libc::munmap(self.address, self.len) };
        }
    }
}

/// The addresses of a mapping. The handler of a signal reads them, so that there are no locks.
struct Range {
    start: AtomicUsize,
    /// 0 while the entry is free.
    len: AtomicUsize,
}

/// The mappings. A run has three for each module; what is beyond this number is not protected.
static RANGES: [Range; 4096] =
    [const { Range { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; 4096];

/// The start of an entry that is being filled.
const FILLING: usize = 1;

impl Range {
    /// Fills a free entry.
    fn take(start: usize, len: usize) -> Option<&'static Range> {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let is_taken = |range: &&Range| {
            range.start.compare_exchange(0, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let range = RANGES.iter().find(is_taken)?;
        range.len.store(len, Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
        Some(range)
    }

    fn give_back(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.start.store(0, Ordering::Release);
    }

    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start > FILLING && address.checked_sub(start).is_some_and(|at| at < self.len.load(Ordering::Relaxed))
    }
}

/// Installs the handler, unless the signal is ignored: then the programs that this process executes have to ignore it as well.
fn install() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and sigaction reads and writes nothing else than the two of them. The handler has the form that
    // SA_SIGINFO asks for.
    unsafe {
        let mut old = MaybeUninit::<libc::sigaction>::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), old.as_mut_ptr()) != 0
            || (*old.as_ptr()).sa_sigaction == libc::SIG_IGN
        {
            return;
        }
        (*action.as_mut_ptr()).sa_sigaction = handle as *const () as usize;
        (*action.as_mut_ptr()).sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, action.as_ptr(), ptr::null_mut());
    }
}

/// Maps a page of zeros where a file has ended. Any other SIGBUS gets the default disposition, and is raised again by the same access.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    const PAGE: usize = 4096;
    // SAFETY: the kernel gives the handler a siginfo; of a SIGBUS that it has raised itself, it has the address. mmap and sigaction are
    // system calls, which a handler may make. The page that is replaced is one of a mapping of `Mapped`, whose end it does not exceed
    // by more than the page that the mapping itself takes.
    unsafe {
        let address = (*info).si_addr() as usize;
        if (*info).si_code > 0 && RANGES.iter().any(|range| range.contains(address)) {
            let page = (address & !(PAGE - 1)) as *mut libc::c_void;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            if libc::mmap(page, PAGE, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED {
                return;
            }
        }
        let default = MaybeUninit::<libc::sigaction>::zeroed();
        libc::sigaction(libc::SIGBUS, default.as_ptr(), ptr::null_mut());
        if (*info).si_code <= 0 {
            // A process has sent it: no access raises it again.
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn behind_the_end_of_a_truncated_file_there_are_zeros() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 3 * 4096 + 100]).expect("written");
        let mapped = Mapped::new(&file).expect("mapped");
        assert!(mapped.iter().all(|&byte| byte == 7) && mapped.len() == 3 * 4096 + 100);
        file.set_len(5000).expect("truncated");
        assert_eq!((mapped[4999], mapped[5000], mapped[8192], mapped[3 * 4096 + 99]), (7, 0, 0, 0));
        let range = mapped.range.expect("there are thousands");
        assert!(range.contains(mapped.as_ptr() as usize + 8192));
        let address = mapped.as_ptr() as usize;
        drop(mapped);
        assert!(!range.contains(address));
        assert_eq!(Mapped::new(&file).expect("mapped")[..2], [7, 7]);
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let mapped = Mapped::new(&tempfile::tempfile().expect("a file")).expect("mapped");
        assert!(mapped.is_empty() && mapped.range.is_none());
    }
}
