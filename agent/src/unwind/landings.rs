//! Where an exception lands: `_Unwind_SetIP` chooses the place, and the frames that are left are marked, as a
//! longjmp's are. And `_Unwind_GetCFA`, by which a personality knows where it is, without what sets thunks apart.
#![allow(unsafe_code)]

use super::{GET_CFA, UNWINDER_HI, UNWINDER_LO};
use crate::cells;
use crate::lookup;
use crate::words;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

/// The function that is passed on to; 0: not found (yet).
pub(super) static SET_IP: AtomicU64 = AtomicU64::new(0);

/// Marks the frames that an exception leaves for the one whose landing pad has been chosen: its callee's
/// CFA, its own stack pointer, is the context's.
unsafe extern "C" fn land(context: *mut c_void, get_cfa: unsafe extern "C" fn(*mut c_void) -> u64) {
    let here = 0_u8;
    // SAFETY: the unwinder's own function and context; the thread's own words.
    unsafe {
        let cfa = get_cfa(context);
        (*words::get()).landing = cfa;
        cells::forget(&raw const here as u64, cfa);
    }
}

/// libstdc++'s, and libc++abi's: an exception is caught. In a process that was attached to it comes here first.
static BEGIN_CATCH: AtomicU64 = AtomicU64::new(0);

extern "C" fn caught() {
    // SAFETY: the thread's own words.
    unsafe { (*words::get()).landing = 0 };
}

/// Finds it.
pub(super) fn prepare(dynamic_linker: u64) {
    BEGIN_CATCH.store(lookup::function(dynamic_linker, b"__cxa_begin_catch"), Ordering::Relaxed);
}

/// # Safety
/// As the C++ library's function of that name without the first part, to which it passes on.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn gprofinject_begin_catch() {
    core::arch::naked_asm!(
        "push rdi",
        "call {caught}",
        "pop rdi",
        "jmp [rip + {real}]",
        caught = sym caught,
        real = sym BEGIN_CATCH,
    );
}

offer!(_Unwind_GetCFA, gpi_get_cfa);
offer!(_Unwind_SetIP, gpi_set_ip);

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_land, gpi_set_ip, gpi_get_cfa",
    ".globl gpi_land, gpi_set_ip, gpi_get_cfa",
    //
    ".p2align 4",
    ".type gpi_set_ip, @function",
    "gpi_set_ip:",
    ".cfi_startproc",
    "mov r11, [rip + {set_ip}]",
    "test r11, r11",
    "jnz 2f",
    "call gpi_find_unwinder",
    "mov r11, [rip + {set_ip}]",
    "2:",
    "mov r10, [rip + {get_cfa}]",
    "test r10, r10",
    "jnz gpi_land",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_set_ip, . - gpi_set_ip",
    //
    // In: r11 = the real function, r10 = its _Unwind_GetCFA.
    ".p2align 4",
    ".type gpi_land, @function",
    "gpi_land:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "mov rsi, r10",
    "call {land}",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_land, . - gpi_land",
    //
    // The CFA without what sets thunks apart: see agent/plan/src/cfi.rs. (LuaJIT's personality takes it for
    // the address of its frame.)
    ".p2align 4",
    ".type gpi_get_cfa, @function",
    "gpi_get_cfa:",
    ".cfi_startproc",
    "mov r11, [rip + {get_cfa}]",
    "test r11, r11",
    "jnz 2f",
    "call gpi_find_unwinder",
    "mov r11, [rip + {get_cfa}]",
    "2:",
    // The unwinder itself tells frames apart by it.
    "mov rax, [rsp]",
    "cmp rax, [rip + {unwinder_lo}]",
    "jb 3f",
    "cmp rax, [rip + {unwinder_hi}]",
    "jae 3f",
    "jmp r11",
    "3:",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call r11",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "and rax, -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_get_cfa, . - gpi_get_cfa",
    land = sym land,
    set_ip = sym SET_IP,
    get_cfa = sym GET_CFA,
    unwinder_lo = sym UNWINDER_LO,
    unwinder_hi = sym UNWINDER_HI,
);

#[cfg(not(test))]
unsafe extern "C" {
    pub(crate) fn gpi_land();
}

#[cfg(test)]
pub(crate) fn gpi_land() {}
