//! Removes thunks from backtraces: `_Unwind_Backtrace` and glibc's `backtrace` are called with a filter.
#![allow(
    unsafe_code,
    reason = "functions of the C library and of the unwinder are defined, and called by their addresses"
)]

use crate::os::memory;
use crate::program::agent::Agent;
use crate::program::libraries;
use crate::unwind::library::is_ours;
use crate::unwind::unwinder::{BACKTRACE, GET_IP, SET_IP, UNWIND_BACKTRACE, offer};
use core::ffi::c_void;
use core::sync::atomic::Ordering;

/// The data that `gpi_backtrace` keeps while the original function runs.
#[repr(C)]
struct Request {
    trace: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    argument: *mut c_void,
    get_ip: unsafe extern "C" fn(*mut c_void) -> u64,
}

/// The callback for `_Unwind_Backtrace`: forwards the program's own frames.
unsafe extern "C" fn filter(context: *mut c_void, request: *mut c_void) -> i32 {
    const URC_NO_REASON: i32 = 0;
    // SAFETY: `gpi_backtrace` has passed its request, and has not returned. The context is the unwinder's, and these
    // are the unwinder's functions for it.
    unsafe {
        let request = &*request.cast::<Request>();
        let pc = (request.get_ip)(context);
        if is_ours(Agent::get(), pc) {
            return URC_NO_REASON;
        }
        shown(context, pc, request.get_ip as usize as u64, || (request.trace)(context, request.argument))
    }
}

/// Makes a call of the program's function for frames, with a context whose program counter is `pc`. For an address in a copy,
/// the function gets the address in the original. The unwinder has already determined how it goes on from the frame, and
/// afterwards gets its own address back.
///
/// # Safety
/// The context must be that of the unwinder whose `_Unwind_GetIP` has the address `get_ip`.
pub(super) unsafe fn shown(context: *mut c_void, pc: u64, get_ip: u64, call: impl FnOnce() -> i32) -> i32 {
    type SetIp = unsafe extern "C" fn(*mut c_void, u64);
    let original = original(Agent::get(), pc);
    let set_ip = SET_IP.load(Ordering::Relaxed);
    if original == pc || set_ip == 0 || get_ip != GET_IP.load(Ordering::Relaxed) {
        return call();
    }
    // SAFETY: the context is that of the unwinder that has both functions.
    unsafe {
        let set_ip = core::mem::transmute::<u64, SetIp>(set_ip);
        set_ip(context, original);
        let answer = call();
        set_ip(context, pc);
        answer
    }
}

/// Returns the address of the instruction that an address in a copied function replaces, and other addresses unchanged.
fn original(agent: &Agent, pc: u64) -> u64 {
    match libraries::with_arena(pc) {
        Some(library) => library.original(pc),
        None => agent.program.original(pc),
    }
}

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn backtrace(buffer: *mut u64, size: i32) -> i32 {
    match BACKTRACE.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: the address is that of glibc's function, and the caller's buffer has room for `size` addresses.
        real => unsafe { filtered(real, buffer, size) },
    }
}

/// Calls a function that fills an array with the addresses of a backtrace, and removes the agent's frames from the result.
///
/// # Safety
/// `real` must be the address of such a function, and the buffer must have room for `size` addresses.
pub(super) unsafe fn filtered(real: u64, buffer: *mut u64, size: i32) -> i32 {
    type Backtrace = unsafe extern "C" fn(*mut u64, i32) -> i32;
    let agent = Agent::get();
    let room = if size < 1 << 20 { 2 * size + 2 } else { size };
    let bytes = (room.max(0) as u64 * 8).next_multiple_of(4096);
    // SAFETY: the caller has promised that the address is that of such a function, and that the program's buffer has room for
    // `size` addresses; ours has room for `room` addresses, and no other code knows of it.
    unsafe {
        let real = core::mem::transmute::<u64, Backtrace>(real);
        let own = if size > 0 {
            memory::map_zeros(bytes, memory::PROT_READ | memory::PROT_WRITE).ok()
        } else {
            None
        };
        let all = own.map_or(buffer, |own| own as *mut u64);
        let found = real(all, if own.is_some() { room } else { size });
        let (mut from, mut to) = (0, 0);
        while from < found && to < size {
            let pc = *all.add(from as usize);
            if !is_ours(agent, pc) {
                *buffer.add(to as usize) = original(agent, pc);
                to += 1;
            }
            from += 1;
        }
        if let Some(own) = own {
            let _ = memory::munmap(own, bytes);
        }
        to
    }
}

offer!(_Unwind_Backtrace, gpi_unwind_backtrace);

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_backtrace, gpi_unwind_backtrace",
    ".globl gpi_backtrace, gpi_unwind_backtrace",
    //
    ".p2align 4",
    ".type gpi_unwind_backtrace, @function",
    "gpi_unwind_backtrace:",
    ".cfi_startproc",
    "mov r11, [rip + {unwind_backtrace}]",
    "test r11, r11",
    "jnz 2f",
    "call gpi_find_unwinder",
    "mov r11, [rip + {unwind_backtrace}]",
    "test r11, r11",
    "jnz 2f",
    "mov eax, 5", // _URC_END_OF_STACK: there is no unwinder
    "ret",
    "2:",
    "mov r10, [rip + {get_ip}]",
    "test r10, r10",
    "jnz gpi_backtrace",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_unwind_backtrace, . - gpi_unwind_backtrace",
    //
    // In: r11 = the real function, r10 = its _Unwind_GetIP.
    ".p2align 4",
    ".type gpi_backtrace, @function",
    "gpi_backtrace:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov [rsp], rdi",
    "mov [rsp+8], rsi",
    "mov [rsp+16], r10",
    "lea rdi, [rip + {filter}]",
    "mov rsi, rsp",
    "call r11",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    ".cfi_endproc",
    ".size gpi_backtrace, . - gpi_backtrace",
    filter = sym filter,
    unwind_backtrace = sym UNWIND_BACKTRACE,
    get_ip = sym GET_IP,
);

#[cfg(not(test))]
unsafe extern "C" {
    pub(crate) fn gpi_backtrace();
}

#[cfg(test)]
pub(crate) fn gpi_backtrace() {}
