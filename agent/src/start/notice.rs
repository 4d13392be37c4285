//! How the agent learns of libraries that are loaded and unloaded while the program runs.
//!
//! The dynamic linker calls an empty function each time it has changed its lists (`_dl_debug_state`, for debuggers): after it
//! has mapped a library and before the library's constructors run, and after it has unmapped one. That function is redirected
//! to [`changed`].
#![allow(unsafe_code, reason = "the dynamic linker's text is patched")]

use crate::os::kernel;
use crate::os::lookup;
use crate::os::memory;
use crate::os::place::Place;
#[cfg(not(test))]
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::program::agent::Agent;
use crate::program::failure;
use crate::program::libraries;
use crate::start::asking;
use crate::start::loads::{lose, update};
use crate::start::pauses::DYNAMIC_LINKER;
use core::sync::atomic::Ordering;
use gprofinject_abi::attach::NOTICE_LEN;
use gprofinject_abi::region::{Lost, UNSEEN_LOADED};

/// The state of the dynamic linker's function that tells debuggers of changes.
pub(crate) struct Notice {
    /// Its address.
    pub(crate) function: u64,
    /// A jump from there to the agent.
    pub(crate) jump: [u8; NOTICE_LEN],
}

/// Hooks the libraries that are loaded, and arranges for later ones.
pub(crate) fn prepare(dynamic_linker: u64, place: &Place) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    if !asking::begin(place) {
        return;
    }
    // The lists of musl's dynamic linker, which has not begun yet, are empty, and the agent knows only of itself.
    update(cfg!(not(feature = "standalone")));
    redirect(dynamic_linker);
}

/// Prepares for libraries in a process that already runs, if they can be hooked. Returns how the agent would learn of changes,
/// if it can.
pub(crate) fn prepare_running(dynamic_linker: u64, place: &Place) -> Option<Option<Notice>> {
    let notice = notice(dynamic_linker);
    // In a process of musl's, the dynamic linker and the libraries that are there have to be hooked all the same.
    if cfg!(feature = "standalone") && notice.is_none() {
        lose(core::ptr::null(), Lost::Answer, 0);
    } else {
        notice.as_ref()?;
    }
    asking::begin(place).then_some(())?;
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    Some(notice)
}

/// The dynamic linker calls this when it has changed its lists.
extern "C" fn changed() {
    let agent = Agent::get();
    if agent.is_set_up && !agent.counts_nowhere && !kernel::is_frozen() {
        let _ = failure::guarded(|| update(false));
        libraries::nobody_is_busy();
    }
}

/// Returns the function that the dynamic linker calls after a change, and a jump from there to the agent. The function is
/// empty, so it need not run. Returns `None` if it is not as expected, or if no code can be changed.
fn notice(dynamic_linker: u64) -> Option<Notice> {
    /// ret, in some builds after endbr64; then padding up to the next function, which begins at a multiple of 16.
    const RET: u8 = 0xc3;
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let function = lookup::change_notice(dynamic_linker);
    let (lo, hi) = lookup::text_around(dynamic_linker, function);
    if function == 0
        || function < lo
        || function + 16 > hi
        || !function.is_multiple_of(16)
        || !memory::may_make_code()
    {
        return None;
    }
    // SAFETY: the bytes are in the dynamic linker's text, which is mapped.
    let code = unsafe { *(function as *const [u8; 16]) };
    let empty = code[0] == RET || code[..4] == ENDBR64 && code[4] == RET;
    let stub = gpi_changed as *const () as u64;
    let distance = i32::try_from(stub.wrapping_sub(function + NOTICE_LEN as u64) as i64).ok()?;
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    empty.then_some(Notice { function, jump })
}

/// Redirects that function, before the program's own threads exist.
fn redirect(dynamic_linker: u64) {
    let unseen = || {
        if cfg!(not(feature = "standalone")) {
            Agent::get().region.unseen().fetch_or(UNSEEN_LOADED, Ordering::Relaxed);
        }
    };
    let Some(Notice { function, jump }) = notice(dynamic_linker) else {
        unseen();
        // The libraries of the start of a program of musl's are loaded later, too.
        if cfg!(feature = "standalone") {
            lose(core::ptr::null(), Lost::Answer, 0);
        }
        return;
    };
    let page = function & !4095;
    // SAFETY: the pages are the dynamic linker's own, and no other thread runs. This thread runs the dynamic linker's code
    // again only afterwards.
    unsafe {
        if memory::mprotect(page, 4096, memory::PROT_READ | memory::PROT_WRITE).is_ok() {
            core::ptr::copy_nonoverlapping(jump.as_ptr(), function as *mut u8, jump.len());
        } else {
            unseen();
        }
        let _ = memory::mprotect(page, 4096, memory::PROT_READ | memory::PROT_EXEC);
    }
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_changed",
    ".globl gpi_changed",
    ".p2align 4",
    ".type gpi_changed, @function",
    // The dynamic linker calls this in place of an empty function, so every register is preserved.
    "gpi_changed:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "and rsp, -16",
    save_vectors!(),
    "call {changed}",
    restore_vectors!(),
    "lea rsp, [rbp-72]",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size gpi_changed, . - gpi_changed",
    changed = sym changed,
);

#[cfg(not(test))]
unsafe extern "C" {
    fn gpi_changed();
}

#[cfg(test)]
fn gpi_changed() {}
