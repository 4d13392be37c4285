//! Many small parts of another process's memory, read at once.
#![allow(unsafe_code, reason = "it reads the memory of another process")]

use libc::c_void;

/// A part of a process's memory: an address and a number of bytes.
pub(super) type Part = (u64, usize);

/// Memory that may contain anything, and of which any part may be missing.
pub(super) trait Memory {
    /// Reads parts, one behind the other, into `bytes`, which has room for all of them, and returns the number of bytes that were read. What
    /// cannot be read ends the reading.
    fn gather(&self, parts: &[Part], bytes: &mut [u8]) -> usize;

    /// Reads the bytes at an address. Returns whether all of them were read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.gather(&[(address, bytes.len())], bytes) == bytes.len()
    }

    /// Returns the word at an address.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// The memory of a process, by the number of one of its threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process(pub(super) i32);

impl Memory for Process {
    fn gather(&self, parts: &[Part], bytes: &mut [u8]) -> usize {
        /// The limit of process_vm_readv (UIO_MAXIOV).
        const MOST: usize = 1024;
        let mut done = 0;
        for some in parts.chunks(MOST) {
            let from =
                |&(address, len): &Part| libc::iovec { iov_base: address as *mut c_void, iov_len: len };
            let from: Vec<libc::iovec> = some.iter().map(from).collect();
            let wanted: usize = some.iter().map(|&(_, len)| len).sum();
            let Some(rest) = bytes.get_mut(done..).and_then(|rest| rest.get_mut(..wanted)) else { break };
            let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            // SAFETY: `to` is a buffer of that length that nothing else uses; `from` are addresses in the other process.
            let read = unsafe {
                libc::process_vm_readv(self.0, &to, 1, from.as_ptr(), from.len() as libc::c_ulong, 0)
            };
            let read = usize::try_from(read).unwrap_or(0);
            done += read;
            if read < wanted {
                break;
            }
        }
        done
    }
}

/// Returns the word at an offset of bytes that were read.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the 32 bits at an offset of bytes that were read.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
