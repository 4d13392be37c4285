//! Memory for planning: taken at once, in huge pages, and used again.
#![allow(unsafe_code, reason = "it tunes malloc and advises the kernel about the heap")]

/// Programs with smaller files are planned in a few milliseconds anyway.
const LARGE: usize = 1 << 21;
/// About so many bytes of memory does planning take for each byte of the file.
const SHARE: usize = 16;
/// Enough for any plan.
const MOST: usize = 1 << 29;
const PAGE: usize = 4096;

/// Prepares for planning a program whose file has `len` bytes. A large plan takes tens of thousands of
/// pages, and the kernel spends more time on handing them out one by one than we spend on filling them.
pub(crate) fn expect_plan(len: usize) {
    if len < LARGE {
        return;
    }
    let room = len.saturating_mul(SHARE).min(MOST);
    // SAFETY: hints to malloc and to the kernel, which change no contents; what they refuse is only slower.
    unsafe {
        // One heap for all sizes and threads, never made smaller: what one phase frees the next one uses.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * room as libc::c_int);
        let mut heap = Vec::<u8>::new();
        if heap.try_reserve_exact(room).is_ok() {
            let first = (heap.as_ptr() as usize).next_multiple_of(PAGE);
            libc::madvise(first as *mut libc::c_void, room - PAGE, libc::MADV_HUGEPAGE);
        }
    }
}

/// From now on large and mostly empty tables are better had from the kernel, which gives zeros.
pub(crate) fn plan_made() {
    const DEFAULT: libc::c_int = 1 << 16;
    // SAFETY: it sets a number of malloc's, which changes no contents of memory.
    unsafe { libc::mallopt(libc::M_MMAP_MAX, DEFAULT) };
}
