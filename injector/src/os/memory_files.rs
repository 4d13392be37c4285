//! Files that have no name in any file system, and whose length or contents nobody can change.
#![allow(unsafe_code, reason = "it fills a mapping")]

use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use rustix::fs;

/// What precedes the name of a memory file wherever the kernel shows it.
pub(crate) const MEMORY_FILE: &str = "/memfd:";

/// Makes an empty memory file: it has no name in any file system, and [`fix_length`] can be applied to it. `shown` is its name
/// in the lists of mappings.
///
/// # Errors
/// The kernel makes none.
pub(crate) fn empty_memory_file(shown: &Path) -> io::Result<File> {
    let flags = fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING;
    Ok(fs::memfd_create(shown, flags)?.into())
}

/// Fixes the length of a memory file for ever. A mapping of a file that is truncated ends a process that accesses it.
///
/// # Errors
/// It is not a memory file.
pub(crate) fn fix_length(file: &File) -> io::Result<()> {
    Ok(fs::fcntl_add_seals(file, fs::SealFlags::SHRINK | fs::SealFlags::GROW)?)
}

/// Fixes the contents of a memory file for ever. It is not mapped for writing.
///
/// # Errors
/// It is not a memory file.
pub(crate) fn fix_contents(file: &File) -> io::Result<()> {
    Ok(fs::fcntl_add_seals(file, fs::SealFlags::WRITE)?)
}

/// Whether a file is a memory file whose length is fixed.
pub(crate) fn has_fixed_length(file: &File) -> bool {
    let fixed = fs::SealFlags::SHRINK | fs::SealFlags::GROW;
    fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(fixed))
}

/// What lists of mappings show of the memory files of [`memory_file`].
pub(crate) const NAMELESS: &str = "gprofinject";

/// Returns a new memory file that consists of these pieces, after `change` was applied to them. They begin at the
/// start of a page. Nobody can change it.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn memory_file(
    pieces: &[impl AsRef<[u8]>],
    change: impl FnOnce(&mut [u8]),
) -> io::Result<OwnedFd> {
    let file = empty_memory_file(Path::new(NAMELESS))?;
    let len = pieces.iter().map(|piece| piece.as_ref().len()).sum();
    fs::ftruncate(&file, len as u64)?;
    // From here on, nobody can truncate what this process maps.
    fix_length(&file)?;
    if len == 0 {
        return Ok(file.into());
    }
    // The pages are made at once, because a page fault for each takes longer than filling it. If there is no memory for
    // them, this fails, and the process does not end by SIGBUS.
    fs::fallocate(&file, fs::FallocateFlags::empty(), 0, len as u64)?;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses changes nothing that exists. The file is as long as the
    // mapping, for ever, and no other process has it yet. The slice ends before the mapping does.
    unsafe {
        let address = libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0);
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let bytes = std::slice::from_raw_parts_mut(address.cast::<u8>(), len);
        let mut rest = &mut *bytes;
        for piece in pieces {
            let (to, after) = std::mem::take(&mut rest).split_at_mut(piece.as_ref().len());
            to.copy_from_slice(piece.as_ref());
            rest = after;
        }
        change(bytes);
        libc::munmap(address, len);
    }
    fix_contents(&file)?;
    Ok(file.into())
}
