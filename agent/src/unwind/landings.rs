//! Handles the landing of an exception: `_Unwind_SetIP` chooses the landing pad, and the agent marks the frames that
//! are left, as for a longjmp. Also `_Unwind_GetCFA`, with which a personality routine gets the CFA, without the
//! offset that distinguishes thunks.
//!
//! An injector that wants to leave the process must not restore return addresses while an exception is in flight: the
//! unwinder has found the handler by its CFA, as the thunks' descriptions define it. Therefore this module records
//! the exceptions in flight (`ThreadWords::landing`), and while the injector waits for them ([`WAITING`]), a thread
//! whose exception has reached a handler waits in turn for the injector, in `gpi_wait`.
#![allow(unsafe_code, reason = "functions of the unwinder are defined, and called by their addresses")]

use crate::hot::callers;
use crate::os::kernel;
use crate::os::words;
#[cfg(not(test))]
use crate::os::words::thread_word;
use crate::unwind::unwinder::{
    GET_CFA, GET_GR, LINKER_HI, LINKER_LO, SET_IP, UNWINDER_HI, UNWINDER_LO, offer,
};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::attach::{ACCUMULATOR, PAD, ROUNDS};
use gprofinject_abi::region::PAGE;
use linux_raw_sys::general;

/// Nonzero while threads whose exception has reached a handler have to wait. The injector writes it while all threads
/// are stopped.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Sets the program's own `_Unwind_GetGR`, if the program contains one.
pub(crate) fn set_get_gr(function: u64) {
    if function != 0 {
        GET_GR.store(function, Ordering::Relaxed);
    }
}

/// In a forked child, no thread has to wait.
pub(crate) fn begin_child() {
    WAITING.store(0, Ordering::Relaxed);
}

/// Returns, for the injector, the address of the word that makes threads wait, and the start and end of the code in
/// which they do.
pub(crate) fn waiting() -> [u64; 3] {
    [&raw const WAITING as u64, gpi_wait as *const () as u64, gpi_wait_end as *const () as u64]
}

type GetCfa = unsafe extern "C" fn(*mut c_void) -> u64;
type GetGr = unsafe extern "C" fn(*mut c_void, i32) -> u64;

/// Marks the frames that an exception leaves on its way to the frame whose landing pad has been chosen. The context's
/// CFA is that of the callee, and so the frame's own stack pointer. Returns the address at which control is to
/// continue.
unsafe extern "C" fn land(context: *mut c_void, get_cfa: GetCfa, pad: u64) -> u64 {
    let here = 0_u8;
    // SAFETY: `gpi_land` passes the context that it got from the unwinder, and the unwinder's own function for it.
    let cfa = unsafe { get_cfa(context) };
    // The unwinder has gone from frame to frame, so this is the end of all of them.
    callers::leave(&raw const here as u64, cfa, true);
    // The agent is never taken out of a program that was started with it.
    if !words::is_attached() {
        return pad;
    }
    let landing = words::get().landing();
    // The cleanup of another exception, in which this one was thrown, is still in progress further up.
    if landing.load(Ordering::Relaxed) > cfa {
        return pad;
    }
    // SAFETY: the context is the unwinder's, as above.
    if !unsafe { is_over(context, cfa) } {
        landing.store(cfa, Ordering::Relaxed);
        return pad;
    }
    landing.store(0, Ordering::Relaxed);
    let may_wait = !kernel::is_refused(general::__NR_sched_yield) && !kernel::is_frozen();
    if WAITING.load(Ordering::Relaxed) == 0 || !may_wait {
        return pad;
    }
    // SAFETY: in a process that was attached to, this word of the thread control block or record is the agent's, and
    // only `gpi_wait` on the same thread reads it.
    unsafe { ((words::thread_pointer() + PAD) as *mut u64).write_volatile(pad) };
    gpi_wait as *const () as u64
}

/// Returns whether the unwinder has finished when control reaches this landing pad: whether it is that of a handler
/// and not of a cleanup. Personality routines have stored the exception in the first register at this time.
///
/// # Safety
/// The context must be one that the unwinder has passed.
unsafe fn is_over(context: *mut c_void, cfa: u64) -> bool {
    /// struct _Unwind_Exception (Itanium C++ ABI, 1.2.1): class, cleanup, private_1, private_2. libgcc stores the
    /// handler's CFA in the last one; private_1 is not 0 in a forced unwinding, which searches for no handler.
    const PRIVATE_1: usize = 2;
    const PRIVATE_2: usize = 3;
    let function = GET_GR.load(Ordering::Relaxed);
    if function == 0 {
        return false;
    }
    // SAFETY: the address is that of the unwinder's function, and the context is the unwinder's. A value that cannot
    // be a pointer to an exception is not dereferenced: exceptions are aligned (ABI, 1.2.1), and no page is at 0.
    unsafe {
        let function = core::mem::transmute::<u64, GetGr>(function);
        let exception = function(context, 0);
        if exception < PAGE || !exception.is_multiple_of(8) {
            return false;
        }
        let exception = exception as *const u64;
        *exception.add(PRIVATE_1) != 0 || *exception.add(PRIVATE_2) == cfa
    }
}

offer!(_Unwind_GetCFA, gpi_get_cfa);
offer!(_Unwind_SetIP, gpi_set_ip);

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_land, gpi_set_ip, gpi_get_cfa, gpi_cfa, gpi_wait, gpi_wait_end",
    ".globl gpi_land, gpi_set_ip, gpi_get_cfa, gpi_cfa, gpi_wait, gpi_wait_end",
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
    "mov rdx, rsi",
    "mov rsi, r10",
    "call {land}",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "mov rsi, rax",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_land, . - gpi_land",
    //
    // This runs in place of a landing pad, where rax, rdx and callee-saved registers are in use. It waits until the
    // injector takes the thread out, or no longer wants to leave, or for about a second.
    ".p2align 4",
    ".type gpi_wait, @function",
    "gpi_wait:",
    thread_word!("mov ", "[{accumulator}]", ", rax"),
    thread_word!("mov qword ptr ", "[{rounds}]", ", 2000000"),
    "2:",
    "cmp qword ptr [rip + {waiting}], 0",
    "je 3f",
    thread_word!("dec qword ptr ", "[{rounds}]"),
    "jz 3f",
    "mov eax, {sched_yield}",
    "syscall",
    "jmp 2b",
    "3:",
    thread_word!("mov rax, ", "[{accumulator}]"),
    thread_word!("jmp qword ptr ", "[{pad}]"),
    "gpi_wait_end:",
    ".size gpi_wait, . - gpi_wait",
    //
    // Returns the CFA without the offset that distinguishes thunks: see agent/plan/src/emit/cfi.rs. (LuaJIT's
    // personality routine uses it as the address of its frame.)
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
    // The unwinder itself needs the offset to distinguish frames.
    "mov rax, [rsp]",
    "cmp rax, [rip + {unwinder_lo}]",
    "jb 3f",
    "cmp rax, [rip + {unwinder_hi}]",
    "jae 3f",
    "jmp r11",
    // An auditor (LD_AUDIT) may have the dynamic linker call functions in place of the code that calls them. Then rbx is the
    // frame of its _dl_runtime_profile, which has the return address of the true call at rbx + 48
    // (sysdeps/x86_64/dl-trampoline.h).
    "3:",
    "cmp rax, [rip + {linker_lo}]",
    "jb gpi_cfa",
    "cmp rax, [rip + {linker_hi}]",
    "jae gpi_cfa",
    "mov rax, [rbx + 48]",
    "cmp rax, [rip + {unwinder_lo}]",
    "jb gpi_cfa",
    "cmp rax, [rip + {unwinder_hi}]",
    "jae gpi_cfa",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_get_cfa, . - gpi_get_cfa",
    //
    // In: rdi = the context, r11 = the real function.
    ".p2align 4",
    ".type gpi_cfa, @function",
    "gpi_cfa:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call r11",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "and rax, -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_cfa, . - gpi_cfa",
    land = sym land,
    set_ip = sym SET_IP,
    get_cfa = sym GET_CFA,
    unwinder_lo = sym UNWINDER_LO,
    unwinder_hi = sym UNWINDER_HI,
    linker_lo = sym LINKER_LO,
    linker_hi = sym LINKER_HI,
    waiting = sym WAITING,
    accumulator = const ACCUMULATOR,
    pad = const PAD,
    rounds = const ROUNDS,
    sched_yield = const general::__NR_sched_yield,
);

#[cfg(not(test))]
unsafe extern "C" {
    pub(crate) fn gpi_land();
    pub(crate) fn gpi_cfa();
    fn gpi_wait();
    fn gpi_wait_end();
}

#[cfg(test)]
pub(crate) fn gpi_land() {}
#[cfg(test)]
pub(crate) fn gpi_cfa() {}
#[cfg(test)]
fn gpi_wait() {}
#[cfg(test)]
fn gpi_wait_end() {}
