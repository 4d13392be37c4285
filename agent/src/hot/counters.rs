//! Basic block counters: the copies of counted functions count at `gs:[offset]`, so the base of gs is the
//! address of the thread block.
//!
//! Programs on x86-64 Linux do not use gs. A new thread inherits gs from the thread that created it. It gets
//! its own gs together with its thread block on its first hooked call. No counted function runs before that,
//! because on the first call its thunk takes the slow path.
#![allow(unsafe_code, reason = "an instruction sets the base of gs")]

use crate::os::task;
use crate::program::agent::Agent;
use core::arch::asm;

/// Makes the calling thread count basic blocks in the thread block at this address from now on.
pub(crate) fn count_in(agent: &Agent, block: u64) {
    if agent.orders.counter_bytes == 0 {
        return;
    }
    if agent.fsgsbase {
        // SAFETY: the set-up has checked in AT_HWCAP2 that the kernel allows the instruction. Programs do not
        // use gs.
        unsafe { asm!("wrgsbase {}", in(reg) block, options(nostack, nomem, preserves_flags)) };
    } else {
        let _ = task::set_gs(block);
    }
}
