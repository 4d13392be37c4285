//! Basic block counters: the copies of counted functions count at `gs:[offset]`, so gs points to the thread's thread
//! block.
//!
//! Programs on x86-64 Linux do not use gs. A new thread begins with the gs of the thread that made it. It gets its
//! own on its first hooked call, together with its thread block; before that, no counted function runs, because their
//! thunks first lead to the slow path.
//!
//! The counters of the program are committed with the thread block. A library may never run in a thread, and libraries may
//! have many counters, so theirs are committed in chunks: when a thread comes through the hook of a function for the first
//! time, or by another arc, the slow path commits the counters that the function needs ([`commit`]). Counters that are not
//! committed are private zeros, in which counts are lost.
#![allow(unsafe_code, reason = "an instruction sets the base of gs")]

use crate::hot::thread_blocks;
use crate::os::task;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::libraries;
use core::arch::asm;
use gprofinject_abi::shared::BlockRef;

/// Makes the basic block counters of the calling thread those of this thread block.
pub(crate) fn count_in(agent: &Agent, block: u64) {
    if agent.orders.counter_bytes == 0 && agent.orders.library_counter_bytes == 0 {
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

/// Commits the counters that a thread needs to run a function, in its own thread block. Returns `false` if the file system
/// or memory is full.
pub(crate) fn commit(agent: &Agent, block: BlockRef, function: u32) -> bool {
    if agent.orders.library_counter_bytes == 0 || Domain::of(function) == Domain::Program {
        return true;
    }
    let Some(library) = libraries::of_function(function) else { return true };
    let range = library.counters.get(function.wrapping_sub(library.first) as usize);
    range.is_none_or(|range| thread_blocks::commit_library_counters(agent, block, *range))
}
