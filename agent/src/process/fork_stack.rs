//! A stack for the set-up of a forked child whose own one is nearly full: the program's limit (RLIMIT_STACK) may leave room for its own
//! calls, and not for five kilobytes more.
#![allow(unsafe_code, reason = "the stack pointer is changed")]

use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// The set-up takes a third of it at most; the rest is for a handler of the program's that interrupts it.
const LEN: usize = 16 << 10;

#[repr(C, align(4096))]
struct Stack(UnsafeCell<[u8; LEN]>);
// SAFETY: a forked child has one thread, which uses it as its stack.
unsafe impl Sync for Stack {}
static STACK: Stack = Stack(UnsafeCell::new([0; LEN]));

/// Whether the stack is in use. A handler that interrupts the set-up may fork, and its child finds the stack in use.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Does the work on a stack with enough room, in a forked child.
pub(crate) fn with_room(work: extern "C" fn()) {
    let here = 0_u8;
    if !is_nearly_full((&raw const here).addr() as u64) || IN_USE.swap(true, Ordering::Relaxed) {
        return work();
    }
    // SAFETY: nobody else uses the stack, whose end is a multiple of 16. The work does not unwind.
    unsafe { call_on((STACK.0.get() as *mut u8).add(LEN), work) };
    IN_USE.store(false, Ordering::Relaxed);
}

/// Returns whether the stack has less room below an address on it than the set-up may take.
fn is_nearly_full(at: u64) -> bool {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let agent = Agent::get();
    let (lo, hi) = if (lo..hi).contains(&at) { (lo, hi) } else { (agent.stack_lo, agent.stack_end) };
    // The program may have lowered the limit meanwhile.
    let lo = if hi == agent.stack_end { lo.max(hi.saturating_sub(task::stack_limit())) } else { lo };
    (lo..hi).contains(&at) && at - lo < LEN as u64
}

/// Calls `work` on the stack that ends at `end`.
///
/// # Safety
/// The stack is writable, `end` is a multiple of 16, and `work` returns.
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: *mut u8, work: extern "C" fn()) {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdi", "call rsi", "mov rsp, rbp", "pop rbp", "ret",);
}

#[cfg(test)]
mod tests {
    use super::*;

    static WHERE: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

    extern "C" fn note() {
        let here = 0_u8;
        WHERE.store((&raw const here).addr() as u64, Ordering::Relaxed);
    }

    #[test]
    fn work_runs_on_the_stack() {
        let start = STACK.0.get() as u64;
        // SAFETY: no other code uses the stack.
        unsafe { call_on((start as *mut u8).wrapping_add(LEN), note) };
        assert!((start..start + LEN as u64).contains(&WHERE.load(Ordering::Relaxed)));
    }
}
