//! Basic block counters: the copies of counted functions count at `gs:[offset]`, so gs points to the thread's thread
//! block.
//!
//! Programs on x86-64 Linux do not use gs. A new thread begins with the gs of the thread that made it. It gets its
//! own on its first hooked call, together with its thread block; before that, no counted function runs, because their
//! thunks first lead to the slow path.
#![allow(unsafe_code, reason = "an instruction sets the base of gs")]

use crate::os::task;
use crate::program::agent::Agent;
use core::arch::asm;

/// Makes the basic block counters of the calling thread those of this thread block.
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
