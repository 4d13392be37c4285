//! Which loaded object an address belongs to, by glibc's `_dl_find_object` (since glibc 2.35).
#![allow(unsafe_code, reason = "a function of the C library is called by its address")]

use crate::os::lookup;
use core::sync::atomic::{AtomicU64, Ordering};

/// glibc's struct dl_find_object (bits/dl_find_object.h).
#[repr(C)]
pub(crate) struct Object {
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub link_map: u64,
    pub eh_frame: u64,
    pub reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(u64, *mut Object) -> i32;

/// glibc's function, or 0 if glibc has none. Written once, before the first hook is in place.
pub(crate) static FIND_OBJECT: AtomicU64 = AtomicU64::new(0);

/// Finds the C library's function.
pub(crate) fn prepare(dynamic_linker: u64) {
    FIND_OBJECT.store(lookup::function(dynamic_linker, b"_dl_find_object"), Ordering::Relaxed);
}

/// Calls glibc's function. Returns -1 if there is none, as that function does if it finds nothing.
///
/// # Safety
/// `result` must be writable.
pub(crate) unsafe fn find_object(address: u64, result: *mut Object) -> i32 {
    match FIND_OBJECT.load(Ordering::Relaxed) {
        0 => -1,
        // SAFETY: the address is that of glibc's function, which writes the result and takes no lock.
        real => unsafe { core::mem::transmute::<u64, FindObject>(real)(address, result) },
    }
}

/// Where the code of a standalone program and of its libraries begins and ends. musl never unloads a library. Only the thread
/// that starts the process, and later the one that holds the dynamic linker's lock, writes here.
#[cfg(feature = "standalone")]
static CODE: [[AtomicU64; 2]; 512] = [const { [const { AtomicU64::new(0) }; 2] }; 512];
/// The number of entries in use. If there are more objects than that, every address counts as one of an object.
#[cfg(feature = "standalone")]
static CODE_LEN: AtomicU64 = AtomicU64::new(0);

/// Adds the extent of an object's code, if it is not known yet.
#[cfg(feature = "standalone")]
pub(crate) fn add_code((lo, hi): (u64, u64)) {
    let len = CODE_LEN.load(Ordering::Relaxed);
    let known = CODE.iter().take(len as usize);
    if known.into_iter().any(|[start, _]| start.load(Ordering::Relaxed) == lo) {
        return;
    }
    if let Some([start, end]) = CODE.get(len as usize) {
        start.store(lo, Ordering::Relaxed);
        end.store(hi, Ordering::Relaxed);
    }
    CODE_LEN.store((len + 1).min(CODE.len() as u64 + 1), Ordering::Release);
}

/// Returns whether an address lies in the code of a standalone program or of its libraries.
#[cfg(feature = "standalone")]
pub(crate) fn is_in_object(address: u64) -> bool {
    let len = CODE_LEN.load(Ordering::Acquire) as usize;
    len > CODE.len()
        || CODE.iter().take(len).any(|[start, end]| {
            (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
        })
}

/// Returns whether an address lies in a loaded object. If the C library cannot tell (glibc before 2.35),
/// every address counts as one that does.
#[cfg(not(feature = "standalone"))]
pub(crate) fn is_in_object(address: u64) -> bool {
    let mut object = Object { flags: 0, start: 0, end: 0, link_map: 0, eh_frame: 0, reserved: [0; 7] };
    // SAFETY: the result is a local variable.
    FIND_OBJECT.load(Ordering::Relaxed) == 0 || unsafe { find_object(address, &raw mut object) == 0 }
}
