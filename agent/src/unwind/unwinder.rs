//! The functions of the C library, and of the unwinder's library, that the definitions of this layer call.
//!
//! Each address is 0 until it is found, and then stored. Any thread may find and store it, always with the same
//! value, and nothing else depends on it, so no ordering is needed.
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
pub(crate) static FORCED_UNWIND: AtomicU64 = AtomicU64::new(0);
/// The extent of the code of the library that contains these functions.
pub(crate) static UNWINDER_LO: AtomicU64 = AtomicU64::new(0);
pub(crate) static UNWINDER_HI: AtomicU64 = AtomicU64::new(0);
/// The extent of the dynamic linker's code.
pub(crate) static LINKER_LO: AtomicU64 = AtomicU64::new(0);
pub(crate) static LINKER_HI: AtomicU64 = AtomicU64::new(0);

/// Finds the functions in the libraries that are already loaded.
pub(crate) fn prepare(dynamic_linker: u64) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    loaded::prepare(dynamic_linker);
    ITERATE.store(lookup::function(dynamic_linker, b"dl_iterate_phdr"), Ordering::Relaxed);
    BACKTRACE.store(lookup::function(dynamic_linker, b"backtrace"), Ordering::Relaxed);
    let (lo, hi) = lookup::text_around(dynamic_linker, lookup::change_notice(dynamic_linker));
    LINKER_LO.store(lo, Ordering::Relaxed);
    LINKER_HI.store(hi, Ordering::Relaxed);
    find_unwinder();
}

/// Returns AT_BASE of the process.
pub(crate) fn dynamic_linker() -> u64 {
    DYNAMIC_LINKER.load(Ordering::Relaxed)
}

/// Finds the unwinder's functions. Its library may be loaded late; a thread that calls one of them has it loaded.
extern "C" fn find_unwinder() {
    let dynamic_linker = dynamic_linker();
    let functions: [(_, &[u8]); 6] = [
        (&GET_IP, b"_Unwind_GetIP"),
        (&GET_CFA, b"_Unwind_GetCFA"),
        (&UNWIND_BACKTRACE, b"_Unwind_Backtrace"),
        (&FORCED_UNWIND, b"_Unwind_ForcedUnwind"),
        (&SET_IP, b"_Unwind_SetIP"),
        (&GET_GR, b"_Unwind_GetGR"),
    ];
    lookup::store(dynamic_linker, &functions);
    let (lo, hi) = lookup::text_around(dynamic_linker, lookup::start_of(dynamic_linker, b"_Unwind_GetCFA"));
    UNWINDER_LO.store(lo, Ordering::Relaxed);
    UNWINDER_HI.store(hi, Ordering::Relaxed);
}

// Calls `find_unwinder` and preserves rdi and rsi, the arguments of the function to be called. This runs at the start
// of a function, where rsp is 8 modulo 16, so that it is 0 modulo 16 here.
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
