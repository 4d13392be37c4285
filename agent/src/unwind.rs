//! Unwinders on their way through thunks.
//!
//! The return slot of a hooked frame holds an exit label. An unwinder that comes by it looks for a
//! description of that code; the names that it asks by, `_dl_find_object` (since glibc 2.35) and
//! `dl_iterate_phdr`, are defined here, and the program and its libraries, the unwinder's among them, find
//! these definitions first. So nothing has to be taken back before somebody unwinds, nor put in place
//! again behind the catch: the tables of the arena (`agent/plan/src/emit/cfi.rs`) lead from the thunk to the
//! caller. That holds for every way to unwind: exceptions, panics, pthread_exit, cancellation.
//!
//! The answers are in `arena`. Two things remain: a backtrace must not show thunks (`backtraces`), and where an
//! exception lands, the frames that it has left are marked (`landings`). A program that has the unwinder inside
//! itself calls its own functions of these names: the plan leads them here (`gpi_backtrace`, `gpi_land`).
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::lookup;
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

mod arena;
mod backtraces;
mod landings;

pub(crate) use arena::is_in_object;
pub(crate) use backtraces::gpi_backtrace;
pub(crate) use landings::{begin_child, gpi_land, set_get_gr, waiting};

/// AT_BASE, for look-ups in libraries that are loaded late.
static DYNAMIC_LINKER: AtomicU64 = AtomicU64::new(0);

/// What the unwinder's contexts are asked by; 0: not found (yet).
static GET_IP: AtomicU64 = AtomicU64::new(0);
static GET_CFA: AtomicU64 = AtomicU64::new(0);
/// The code of the library that these are in.
static UNWINDER_LO: AtomicU64 = AtomicU64::new(0);
static UNWINDER_HI: AtomicU64 = AtomicU64::new(0);

/// Finds what is loaded already.
pub(crate) fn prepare(dynamic_linker: u64) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    arena::prepare(dynamic_linker);
    backtraces::prepare(dynamic_linker);
    find_unwinder();
}

/// The unwinder's library may be loaded late; who calls it has it loaded.
extern "C" fn find_unwinder() {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    for (place, name) in [
        (&GET_IP, &b"_Unwind_GetIP"[..]),
        (&GET_CFA, b"_Unwind_GetCFA"),
        (&backtraces::UNWIND_BACKTRACE, b"_Unwind_Backtrace"),
        (&landings::SET_IP, b"_Unwind_SetIP"),
        (&landings::GET_GR, b"_Unwind_GetGR"),
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
    // See `own_end`.
    ".hidden _end",
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

/// Our own library's extent.
fn own_start() -> u64 {
    let start: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines it.
    unsafe {
        core::arch::asm!("lea {}, [rip + __ehdr_start]", out(reg) start, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        start = 0;
    }
    start
}

fn own_end() -> u64 {
    let end: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines it.
    unsafe {
        core::arch::asm!("lea {}, [rip + _end]", out(reg) end, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        end = 0;
    }
    end
}

/// Whether a frame is there on our account: a backtrace does not show it.
fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_arena(pc) || (own_start()..own_end()).contains(&pc)
}
