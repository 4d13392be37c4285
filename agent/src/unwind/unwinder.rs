//! The functions of the C library and of the unwinder's library that the definitions of this layer pass on to.
//!
//! The addresses are stored once they are found, and 0 before. Any thread may find and store one, always the same, and
//! nothing else depends on it: no order is needed.
#![allow(unsafe_code, reason = "functions are defined by their names in machine code")]

use crate::os::loaded;
use crate::os::lookup;
use core::sync::atomic::{AtomicU64, Ordering};

/// Defines the unwinder's function `$name`, which is the routine `$to`.
macro_rules! offer {
    ($name:ident, $to:ident) => {
        /// # Safety
        /// As libgcc's function of that name.
        #[cfg(not(test))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(concat!("jmp ", stringify!($to)));
        }
    };
}

pub(crate) use offer;

/// AT_BASE, for look-ups in libraries that are loaded late.
static DYNAMIC_LINKER: AtomicU64 = AtomicU64::new(0);

/// The C library's functions.
pub(crate) static ITERATE: AtomicU64 = AtomicU64::new(0);
pub(crate) static BACKTRACE: AtomicU64 = AtomicU64::new(0);

/// The unwinder's functions.
pub(crate) static GET_IP: AtomicU64 = AtomicU64::new(0);
pub(crate) static GET_CFA: AtomicU64 = AtomicU64::new(0);
pub(crate) static SET_IP: AtomicU64 = AtomicU64::new(0);
pub(crate) static GET_GR: AtomicU64 = AtomicU64::new(0);
pub(crate) static UNWIND_BACKTRACE: AtomicU64 = AtomicU64::new(0);
/// The code of the library that these are in.
pub(crate) static UNWINDER_LO: AtomicU64 = AtomicU64::new(0);
pub(crate) static UNWINDER_HI: AtomicU64 = AtomicU64::new(0);

/// Finds what is loaded already.
pub(crate) fn prepare(dynamic_linker: u64) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    loaded::prepare(dynamic_linker);
    ITERATE.store(lookup::function(dynamic_linker, b"dl_iterate_phdr"), Ordering::Relaxed);
    BACKTRACE.store(lookup::function(dynamic_linker, b"backtrace"), Ordering::Relaxed);
    find_unwinder();
}

/// AT_BASE of the process.
pub(crate) fn dynamic_linker() -> u64 {
    DYNAMIC_LINKER.load(Ordering::Relaxed)
}

/// The unwinder's library may be loaded late, but it is loaded when one of its functions is called.
extern "C" fn find_unwinder() {
    let dynamic_linker = dynamic_linker();
    for (place, name) in [
        (&GET_IP, &b"_Unwind_GetIP"[..]),
        (&GET_CFA, b"_Unwind_GetCFA"),
        (&UNWIND_BACKTRACE, b"_Unwind_Backtrace"),
        (&SET_IP, b"_Unwind_SetIP"),
        (&GET_GR, b"_Unwind_GetGR"),
    ] {
        if place.load(Ordering::Relaxed) == 0 {
            place.store(lookup::function(dynamic_linker, name), Ordering::Relaxed);
        }
    }
    let (lo, hi) = lookup::text_around(dynamic_linker, lookup::start_of(dynamic_linker, b"_Unwind_GetCFA"));
    UNWINDER_LO.store(lo, Ordering::Relaxed);
    UNWINDER_HI.store(hi, Ordering::Relaxed);
}

// Calls `find_unwinder` and keeps rdi and rsi, the arguments of the function that is to be passed on. It is called where
// a function begins: rsp = 8 modulo 16 there, and 0 here.
#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_find_unwinder",
    ".globl gpi_find_unwinder",
    ".p2align 4",
    ".type gpi_find_unwinder, @function",
    "gpi_find_unwinder:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "call {find}",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_find_unwinder, . - gpi_find_unwinder",
    find = sym find_unwinder,
);
