//! The allocator for the little memory that the crate frida-gum needs (one counter). It does not use the
//! program's malloc, which may be hooked. gum itself has a heap of its own.
#![allow(unsafe_code, reason = "an allocator returns raw memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 4096;

#[repr(C, align(64))]
struct Heap {
    bytes: UnsafeCell<[u8; LEN]>,
    used: AtomicUsize,
}

// SAFETY: each byte is allocated once, by an atomic operation.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { bytes: UnsafeCell::new([0; LEN]), used: AtomicUsize::new(0) };

// SAFETY: blocks are disjoint parts of `bytes`, aligned as requested (up to 64), and never allocated again.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let room = |used: usize| {
            let start = used.next_multiple_of(layout.align());
            let end = start.checked_add(layout.size())?;
            (end <= LEN && layout.align() <= 64).then_some(end)
        };
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            // SAFETY: inside the array, as was just checked.
            Ok(used) => unsafe { self.bytes.get().cast::<u8>().add(used.next_multiple_of(layout.align())) },
            Err(_) => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
