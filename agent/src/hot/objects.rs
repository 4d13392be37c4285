//! Distinguishes code of loaded objects from code that was made at run time.
//!
//! Just-in-time compilers search for the return addresses of their own code in the slots to which the calls have
//! pushed them. A function that is called from such code is counted, but its return slot is not changed.

use crate::os::loaded;
use core::sync::atomic::{AtomicU64, Ordering};

const PAGE_BITS: u32 = 12;
/// The number of pages in the table; a page's index is the low bits of its number.
const PLACES: usize = 4096;
/// A flag in an entry, beside the page's number.
const MADE_AT_RUN_TIME: u64 = 1 << 63;
/// An entry without a page. Zeros take no room in the library's file.
const NONE: u64 = 0;

static PAGES: [AtomicU64; PLACES] = [const { AtomicU64::new(NONE) }; PLACES];

fn place(address: u64) -> &'static AtomicU64 {
    let page = address >> PAGE_BITS;
    // The index is less than the length of the table.
    &PAGES[(page as usize) % PLACES]
}

/// Forgets all pages.
pub(crate) fn forget() {
    for page in &PAGES {
        page.store(NONE, Ordering::Relaxed);
    }
}

/// Returns whether the code around an address was made at run time, or `None` if only the dynamic linker knows.
/// Integer code only; see [`crate::hot::gate`].
pub(crate) fn known(address: u64) -> Option<bool> {
    let entry = place(address).load(Ordering::Relaxed);
    (entry != NONE && entry & !MADE_AT_RUN_TIME == address >> PAGE_BITS)
        .then_some(entry & MADE_AT_RUN_TIME != 0)
}

/// Returns whether the code around an address was made at run time, by asking the dynamic linker if necessary.
pub(crate) fn is_made_at_run_time(address: u64) -> bool {
    known(address).unwrap_or_else(|| {
        let made = !loaded::is_in_object(address);
        let entry = address >> PAGE_BITS | if made { MADE_AT_RUN_TIME } else { 0 };
        place(address).store(entry, Ordering::Relaxed);
        made
    })
}
