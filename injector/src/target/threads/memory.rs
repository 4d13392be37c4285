//! Another process's memory.
#![allow(unsafe_code, reason = "it reads and writes the memory of another process")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use libc::c_void;
use zerocopy::{FromBytes, IntoBytes};

use crate::os::proc;

/// The memory of a process, accessible whatever its protection.
pub(crate) struct Memory {
    file: File,
    /// The number of one of the process's threads.
    pid: i32,
}

impl Memory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The process has ended, or the injector may not trace it.
    pub(crate) fn open(pid: i32) -> io::Result<Memory> {
        let pid = proc::visible_thread(pid);
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Memory { file, pid })
    }

    /// Reads bytes at an address.
    ///
    /// # Errors
    /// Some of them are not mapped.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        /// The size in bytes above which one copy fewer outweighs the longer system call.
        const MANY: usize = 16 << 10;
        if bytes.len() >= MANY {
            let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let from = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
            // SAFETY: `to` is a local buffer; `from` is in the other process.
            let read = unsafe { libc::process_vm_readv(self.pid, &to, 1, &from, 1, 0) };
            if usize::try_from(read) == Ok(bytes.len()) {
                return Ok(());
            }
        }
        self.file.read_exact_at(bytes, address)
    }

    /// Writes bytes at an address, even if it is write-protected.
    ///
    /// # Errors
    /// Some of the addresses are not mapped.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address)
    }

    /// Writes words, each to its address, many with one system call. Words that cannot be written in this way
    /// are written one by one.
    ///
    /// # Errors
    /// A word cannot be written.
    pub(crate) fn write_words(&self, words: &[(u64, u64)]) -> io::Result<()> {
        /// The limit of process_vm_writev (UIO_MAXIOV).
        const MOST: usize = 1024;
        for some in words.chunks(MOST) {
            let mut values: Vec<u64> = some.iter().map(|&(_, value)| value).collect();
            let from =
                libc::iovec { iov_base: values.as_mut_ptr().cast(), iov_len: size_of_val(&values[..]) };
            let to =
                |&(address, _): &(u64, u64)| libc::iovec { iov_base: address as *mut c_void, iov_len: 8 };
            let to: Vec<libc::iovec> = some.iter().map(to).collect();
            // SAFETY: `from` is a local buffer that is only read; `to` are addresses in the other process.
            let written =
                unsafe { libc::process_vm_writev(self.pid, &from, 1, to.as_ptr(), to.len() as u64, 0) };
            for &(address, value) in some.get(written.max(0) as usize / 8..).unwrap_or_default() {
                self.write(address, &value.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Reads the word at an address.
    ///
    /// # Errors
    /// It is not mapped.
    pub(crate) fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a whole record.
    ///
    /// # Errors
    /// Some of it is not mapped.
    pub(crate) fn record<T: FromBytes + IntoBytes>(&self, address: u64) -> io::Result<T> {
        let mut record = T::new_zeroed();
        self.read(address, record.as_mut_bytes())?;
        Ok(record)
    }

    /// Reads `count` records that follow each other.
    ///
    /// # Errors
    /// Some of them are not mapped.
    pub(crate) fn records<T: FromBytes + IntoBytes + Clone>(
        &self,
        address: u64,
        count: usize,
    ) -> io::Result<Vec<T>> {
        let mut records = vec![T::new_zeroed(); count];
        self.read(address, records.as_mut_slice().as_mut_bytes())?;
        Ok(records)
    }

    /// Reads `len` bytes at an address.
    ///
    /// # Errors
    /// Some of them are not mapped.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }
}
