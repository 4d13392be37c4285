//! Memory for planning and for results: allocated at once, in huge pages, and used again. That is for glibc's malloc; musl's has no such
//! settings, and both take longer there.
#![allow(unsafe_code, reason = "it tunes malloc and advises the kernel about the heap")]

use std::sync::Once;

/// Programs with smaller files are planned in a few milliseconds anyway.
const LARGE: usize = 1 << 21;
/// Planning needs about this many bytes of memory for each byte of the file.
const SHARE: usize = 16;
/// Enough for any plan, in bytes.
const MOST: usize = 1 << 29;
const PAGE: usize = 4096;

/// Prepares the allocator for planning a program whose file has `len` bytes. A large plan needs tens of
/// thousands of pages, and the kernel takes longer to provide them one by one than planning takes to fill
/// them.
pub(crate) fn expect_plan(len: usize) {
    if len < LARGE || !cfg!(target_env = "gnu") {
        return;
    }
    let room = len.saturating_mul(SHARE).min(MOST);
    // One heap serves all sizes and threads and never shrinks: a phase uses what the previous one has freed.
    malloc::set(malloc::ARENA_MAX, 1);
    malloc::set(malloc::MMAP_MAX, 0);
    malloc::set(malloc::TRIM_THRESHOLD, 2 * room as libc::c_int);
    reserve(room);
}

/// Prepares the allocator for the results of a program or library whose plan was kept, with so many hooked functions.
pub(crate) fn expect_results(functions: usize) {
    /// With fewer, a huge page takes longer than the pages that are needed.
    const MANY: usize = 1 << 13;
    /// What results need, in bytes.
    const ROOM: usize = 16 << 20;
    static BEGUN: Once = Once::new();
    if functions >= MANY && cfg!(target_env = "gnu") {
        BEGUN.call_once(|| {
            malloc::set(malloc::MMAP_THRESHOLD, 2 * ROOM as libc::c_int);
            malloc::set(malloc::TRIM_THRESHOLD, 4 * ROOM as libc::c_int);
            reserve(ROOM);
        });
    }
}

/// Makes the heap so long, with huge pages.
fn reserve(room: usize) {
    let mut heap = Vec::<u8>::new();
    if heap.try_reserve_exact(room).is_ok() {
        let first = (heap.as_ptr() as usize).next_multiple_of(PAGE);
        // SAFETY: it is a hint to the kernel, which changes no contents; a refusal only makes planning slower.
        unsafe { libc::madvise(first as *mut libc::c_void, room - PAGE, libc::MADV_HUGEPAGE) };
    }
}

/// Ends that preparation. Large and mostly empty tables are now better allocated from the kernel, whose pages
/// are zero.
pub(crate) fn plan_made() {
    const DEFAULT: libc::c_int = 1 << 16;
    malloc::set(malloc::MMAP_MAX, DEFAULT);
}

/// The settings of glibc's malloc.
#[cfg(target_env = "gnu")]
mod malloc {
    pub(super) use libc::{
        M_ARENA_MAX as ARENA_MAX, M_MMAP_MAX as MMAP_MAX, M_MMAP_THRESHOLD as MMAP_THRESHOLD,
        M_TRIM_THRESHOLD as TRIM_THRESHOLD,
    };

    pub(super) fn set(what: libc::c_int, value: libc::c_int) {
        // SAFETY: it sets a number of malloc's, which changes no contents of memory.
        unsafe { libc::mallopt(what, value) };
    }
}

/// Another malloc, which has no settings.
#[cfg(not(target_env = "gnu"))]
mod malloc {
    pub(super) const ARENA_MAX: libc::c_int = 0;
    pub(super) const MMAP_MAX: libc::c_int = 0;
    pub(super) const MMAP_THRESHOLD: libc::c_int = 0;
    pub(super) const TRIM_THRESHOLD: libc::c_int = 0;

    pub(super) fn set(_: libc::c_int, _: libc::c_int) {}
}
