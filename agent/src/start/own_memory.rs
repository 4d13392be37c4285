//! Makes the agent's library in memory independent of its file in the run folder. If that is truncated, the next access to a mapping of
//! it ends the process.
#![allow(unsafe_code, reason = "the library's segments are replaced by copies")]

use crate::os::files;
use crate::os::memory;
use crate::os::own_image::{self, Segment};
use crate::os::place::Place;
use core::ptr;
use gprofinject_abi::AGENT_MEMORY_FILE;

/// Replaces the mappings of the file. What cannot be replaced stays as it is. The process has one thread.
pub(crate) fn replace(place: &Place) {
    let Ok(fd) = files::open(place.shared(AGENT_MEMORY_FILE).path(), false) else { return };
    for segment in own_image::segments() {
        // What the kernel or a security policy forbids is not done.
        let _ = copied(&segment, fd).and_then(|copy| {
            // SAFETY: no other code knows of the copy, and it has the same bytes as the segment: no code of the agent writes to its
            // statics in between, and there is no other thread.
            let moved = unsafe { memory::move_over(copy, segment.len, segment.start) };
            moved.inspect_err(|_| {
                // SAFETY: no other code knows of the copy.
                let _ = unsafe { memory::munmap(copy, segment.len) };
            })
        });
    }
    files::close(fd);
}

/// Maps a copy of a segment at another address: memory of the process if the segment is written, and otherwise the memory file with
/// the library, which `fd` refers to.
fn copied(segment: &Segment, fd: i32) -> Result<u64, i32> {
    let Segment { start, len, offset, .. } = *segment;
    if !segment.is_written {
        let execute = if segment.is_executed { memory::PROT_EXEC } else { 0 };
        // SAFETY: the kernel chooses the address, so the mapping replaces nothing.
        return unsafe { memory::mmap(0, len, memory::PROT_READ | execute, memory::MAP_PRIVATE, fd, offset) };
    }
    let flags = memory::MAP_PRIVATE | memory::MAP_ANONYMOUS;
    // SAFETY: as above. The segment is readable, and the copy is as long.
    unsafe {
        let copy = memory::mmap(0, len, memory::PROT_READ | memory::PROT_WRITE, flags, -1, 0)?;
        ptr::copy_nonoverlapping(start as *const u8, copy as *mut u8, len as usize);
        Ok(copy)
    }
}
