//! Handles a program that has its system calls dispatched to itself: `prctl(PR_SET_SYSCALL_USER_DISPATCH)`. What that means for the agent's
//! own system calls is in [`crate::os::dispatch`].
#![allow(unsafe_code, reason = "the system call is made for the program")]

use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::timers;
use crate::os::dispatch::{self, EXEMPT};
use crate::os::kernel;
use crate::process::originals::{PRCTL, SYSCALL};
use crate::program::agent::Agent;
use crate::program::failure;
use core::arch::asm;
use core::sync::atomic::Ordering;
use linux_raw_sys::general;

/// linux/prctl.h, which the crate linux-raw-sys does not have in this version.
pub(crate) const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
const OFF: u64 = 0;
/// System calls are dispatched unless they are made in the range.
const EXCLUSIVE_ON: u64 = 1;
/// System calls are dispatched if they are made in the range.
const INCLUSIVE_ON: u64 = 2;

/// The program's arguments after the first one: mode, start and length of the range, address of the selector.
type Arguments = [u64; 4];

/// Makes the call with these arguments, or other ones that mean the same to the program. `make` makes the system call.
fn carry_out(arguments: Arguments, make: impl FnOnce(Arguments) -> i64) -> i64 {
    let Some((arguments, before)) = failure::guarded(|| prepare(arguments)) else { return make(arguments) };
    let result = make(arguments);
    let has_failed = i32::try_from(result).unwrap_or(-1) != 0;
    match (before, arguments[0]) {
        (Some(before), _) if has_failed => {
            dispatch::restore(before);
            let _ = failure::guarded(|| {
                let agent = Agent::get();
                agent.region.dispatched().fetch_sub(1, Ordering::Relaxed);
                timers::start_again(agent);
            });
        }
        (None, OFF) if !has_failed => {
            dispatch::restore(EXEMPT);
            let _ = failure::guarded(|| timers::start_again(Agent::get()));
        }
        (None, EXCLUSIVE_ON | INCLUSIVE_ON) if !has_failed => dispatch::restore(EXEMPT),
        _ => {}
    }
    result
}

/// Returns the arguments for the kernel, and the thread's word of [`dispatch`] before, if the thread now has one that makes the agent's
/// calls depend on the selector.
fn prepare(arguments: Arguments) -> (Arguments, Option<u64>) {
    let [mode, start, len, selector] = arguments;
    let agent = Agent::get();
    if !agent.is_set_up || kernel::is_frozen_for_good() {
        return (arguments, None);
    }
    let (own, own_len) = kernel::own_calls();
    let in_range = own.wrapping_sub(start) < len && (own + own_len).wrapping_sub(start) <= len;
    let is_apart = start.wrapping_add(len) <= own || own + own_len <= start;
    match mode {
        EXCLUSIVE_ON if start == 0 && len == 0 => return ([mode, own, own_len, selector], None),
        EXCLUSIVE_ON if in_range => return (arguments, None),
        INCLUSIVE_ON if is_apart => return (arguments, None),
        EXCLUSIVE_ON | INCLUSIVE_ON => {}
        _ => return (arguments, None),
    }
    // While the selector blocks calls, the thread can make no room for new arcs.
    if let Some(block) = threads::block(agent) {
        thread_blocks::commit_all(agent, block);
    }
    // The return from the signal handler is a system call, too.
    timers::stop(agent);
    agent.region.dispatched().fetch_add(1, Ordering::Relaxed);
    let before = dispatch::depend_on(selector);
    if before.is_none() {
        kernel::freeze(true);
    }
    (arguments, before)
}

/// In place of the C library's `prctl`, whose first argument is the operation.
pub(crate) extern "C" fn by_prctl(operation: u64, mode: u64, start: u64, len: u64, selector: u64) -> i64 {
    carry_out([mode, start, len, selector], |[mode, start, len, selector]| {
        let function = PRCTL.load(Ordering::Relaxed) as *const ();
        // SAFETY: this is the C library's function, and these are the program's arguments.
        let function: extern "C" fn(u64, u64, u64, u64, u64) -> i32 =
            unsafe { core::mem::transmute(function) };
        function(operation, mode, start, len, selector).into()
    })
}

/// In place of the C library's `syscall`, whose first arguments are the number of prctl and the operation.
pub(crate) extern "C" fn by_syscall(
    number: u64,
    operation: u64,
    mode: u64,
    start: u64,
    len: u64,
    selector: u64,
) -> i64 {
    carry_out([mode, start, len, selector], |[mode, start, len, selector]| {
        let function = SYSCALL.load(Ordering::Relaxed) as *const ();
        // SAFETY: as above.
        let function: extern "C" fn(u64, u64, u64, u64, u64, u64) -> i64 =
            unsafe { core::mem::transmute(function) };
        function(number, operation, mode, start, len, selector)
    })
}

/// In place of a `syscall` instruction of the program. `operation` and the following ones are the first arguments of the system call.
/// Returns what the instruction does.
pub(crate) extern "C" fn by_instruction(
    operation: u64,
    mode: u64,
    start: u64,
    len: u64,
    selector: u64,
) -> i64 {
    carry_out([mode, start, len, selector], |[mode, start, len, selector]| {
        let result: i64;
        // SAFETY: the program makes this system call. The instruction is not one of the agent's own, which the program has not exempted.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") u64::from(general::__NR_prctl) => result,
                in("rdi") operation, in("rsi") mode, in("rdx") start, in("r10") len, in("r8") selector,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    })
}
