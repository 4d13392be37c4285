//! Leaves thunks out of forced unwindings: `_Unwind_ForcedUnwind` calls a stop function of the program for each frame.
//!
//! The unwinder keeps the stop function's address in the exception, until the unwinding ends; landing pads may run
//! meanwhile, and nothing says when it has ended. So no memory of a call of `_Unwind_ForcedUnwind` can hold the program's
//! function. It is replaced by an *entrance* of the agent, which belongs to that function for the life of the process:
//! programs have few stop functions. If there are more than [`ENTRANCES`], further ones see the thunks.
//!
//! In a process that the agent may be taken out of, stop functions are not replaced, because an exception may be in flight
//! when it leaves.
#![allow(unsafe_code, reason = "functions of the unwinder are defined, and called by their addresses")]

use crate::os::words;
use crate::program::agent::Agent;
use crate::unwind::backtraces::shown;
use crate::unwind::library::is_ours;
use crate::unwind::unwinder::offer;
#[cfg(not(test))]
use crate::unwind::unwinder::{FORCED_UNWIND, GET_IP};
use core::ffi::c_void;
use core::mem::transmute;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of stop functions that the agent can stand for.
const ENTRANCES: usize = 64;
/// Bytes of the machine code of an entrance.
const ENTRANCE_LEN: usize = 16;

/// The program's function behind an entrance, and the `_Unwind_GetIP` of the unwinder that calls it. Both are 0 until the
/// entrance is taken. The second word is written first, by compare-and-exchange, and the first one after it; neither
/// changes afterwards.
struct Taken {
    stop: AtomicU64,
    get_ip: AtomicU64,
}

static TAKEN: [Taken; ENTRANCES] =
    [const { Taken { stop: AtomicU64::new(0), get_ip: AtomicU64::new(0) } }; ENTRANCES];

/// Returns the address that the unwinder is to call in place of a stop function.
extern "C" fn entrance_for(stop: u64, get_ip: u64) -> u64 {
    if stop == 0 || get_ip == 0 || words::is_attached() {
        return stop;
    }
    for (number, taken) in TAKEN.iter().enumerate() {
        let is_mine =
            || taken.stop.load(Ordering::Acquire) == stop && taken.get_ip.load(Ordering::Relaxed) == get_ip;
        let take = || {
            let free = taken.get_ip.compare_exchange(0, get_ip, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if free {
                taken.stop.store(stop, Ordering::Release);
            }
            free
        };
        if is_mine() || take() {
            return gpi_entrances as *const () as u64 + (number * ENTRANCE_LEN) as u64;
        }
    }
    stop
}

type Stop = unsafe extern "C" fn(i32, i32, u64, *mut c_void, *mut c_void, *mut c_void) -> i32;

/// Calls the program's stop function, unless the frame is one of the agent's.
///
/// # Safety
/// The unwinder has called the entrance of this number with the other arguments.
unsafe extern "C" fn stopped(
    version: i32,
    actions: i32,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
    argument: *mut c_void,
    number: u64,
) -> i32 {
    const URC_NO_REASON: i32 = 0;
    /// The context is not that of a frame.
    const UA_END_OF_STACK: i32 = 16;
    let Some(taken) = TAKEN.get(number as usize) else { return URC_NO_REASON };
    // SAFETY: the unwinder got the entrance's address after both words were written, from a program that has promised that
    // the first one is its stop function. The context is the unwinder's, and the second word is its function for contexts.
    unsafe {
        let stop = transmute::<u64, Stop>(taken.stop.load(Ordering::Acquire));
        let get_ip = taken.get_ip.load(Ordering::Relaxed);
        let call = |context| stop(version, actions, class, exception, context, argument);
        if actions & UA_END_OF_STACK != 0 {
            return call(context);
        }
        let pc = transmute::<u64, unsafe extern "C" fn(*mut c_void) -> u64>(get_ip)(context);
        if is_ours(Agent::get(), pc) {
            return URC_NO_REASON;
        }
        shown(context, pc, get_ip, || call(context))
    }
}

offer!(_Unwind_ForcedUnwind, gpi_forced_unwind);

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_stop, gpi_forced_unwind, gpi_entrances",
    ".globl gpi_stop, gpi_forced_unwind, gpi_entrances",
    //
    ".p2align 4",
    ".type gpi_forced_unwind, @function",
    "gpi_forced_unwind:",
    ".cfi_startproc",
    "mov r11, [rip + {forced_unwind}]",
    "mov r10, [rip + {get_ip}]",
    "test r11, r11",
    "jnz gpi_stop",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call gpi_find_unwinder",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "mov r11, [rip + {forced_unwind}]",
    "mov r10, [rip + {get_ip}]",
    "test r11, r11",
    "jnz gpi_stop",
    "mov eax, 2", // _URC_FATAL_PHASE2_ERROR: there is no unwinder
    "ret",
    ".cfi_endproc",
    ".size gpi_forced_unwind, . - gpi_forced_unwind",
    //
    // In: the arguments of _Unwind_ForcedUnwind; r11 = the real function, r10 = its _Unwind_GetIP. The agent has no frame
    // when the real function runs.
    ".p2align 4",
    ".type gpi_stop, @function",
    "gpi_stop:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "mov rdi, rsi",
    "mov rsi, r10",
    "call {entrance_for}",
    "mov rsi, rax",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_stop, . - gpi_stop",
    //
    // In: the arguments of a stop function, in six registers.
    ".p2align 4",
    ".type gpi_entrances, @function",
    "gpi_entrances:",
    ".cfi_startproc",
    ".rept {entrances}",
    ".p2align 4",
    "call 2f",
    ".endr",
    ".p2align 4",
    // The return address of that call shows which entrance it is.
    "2:",
    ".cfi_adjust_cfa_offset 8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "lea r11, [rip + gpi_entrances]",
    "sub rax, r11",
    "shr rax, {entrance_shift}",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "call {stopped}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_entrances, . - gpi_entrances",
    entrances = const ENTRANCES,
    entrance_shift = const ENTRANCE_LEN.trailing_zeros(),
    forced_unwind = sym FORCED_UNWIND,
    get_ip = sym GET_IP,
    entrance_for = sym entrance_for,
    stopped = sym stopped,
);

#[cfg(not(test))]
unsafe extern "C" {
    pub(crate) fn gpi_stop();
    fn gpi_entrances();
}

#[cfg(test)]
pub(crate) fn gpi_stop() {}
#[cfg(test)]
fn gpi_entrances() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_function_keeps_its_entrance() {
        let first = entrance_for(0x1000, 0x10);
        assert_eq!(entrance_for(0x1000, 0x10), first);
        // Another unwinder reads its contexts in another way.
        assert_eq!(entrance_for(0x1000, 0x20), first + ENTRANCE_LEN as u64);
        for stop in 2..ENTRANCES as u64 {
            assert_ne!(entrance_for(0x1000 * stop, 0x10), 0x1000 * stop);
        }
        assert_eq!(entrance_for(0x1000, 0x10), first);
        // Without an entrance of its own, a function is called by the unwinder itself.
        assert_eq!(entrance_for(0xffff_0000, 0x10), 0xffff_0000);
        assert_eq!(entrance_for(0, 0x10), 0);
    }
}
