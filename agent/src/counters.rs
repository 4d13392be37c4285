//! Block counters: the copies of counted functions count at `gs:[offset]`, so gs points to the thread's block.
//!
//! Programs on x86-64 Linux do not use gs; a thread begins with its parent's. It gets its own with its block, on its
//! first hooked call, and before that no counted function runs: their thunks lead here first.
//!
//! Also: which instruction of the program a place in a copy stands for.
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::sys;
use crate::threads;
use core::arch::asm;
use gprofinject_abi::region::{COUNTER_BIT, PAGE, counters_offset, round_up};

/// The thread counts in this block from now on.
pub(crate) fn count_in(agent: &Agent, block: u64) {
    if agent.counter_bytes == 0 {
        return;
    }
    if agent.fsgsbase {
        // SAFETY: the kernel has said that the instruction may be used; nobody else uses gs.
        unsafe { asm!("wrgsbase {}", in(reg) block, options(nostack, nomem, preserves_flags)) };
    } else {
        let _ = sys::set_gs(block);
    }
}

/// Makes a block's counters lasting. False: no memory for them; they count, but for nobody.
pub(crate) fn commit(agent: &Agent, block: u64) -> bool {
    let len = round_up(agent.counter_bytes, PAGE);
    len == 0 || threads::commit(block, COUNTER_BIT, counters_offset(agent.slot_bytes), len)
}

/// The address in the program that an address in a copy stands for; others stay as they are. Integer code only; see
/// [`crate::gate`].
pub(crate) fn original(agent: &Agent, pc: u64) -> u64 {
    if !agent.in_copies(pc) {
        return pc;
    }
    let offset = (pc - agent.arena_lo) as u32;
    let (mut lo, mut hi) = (0, agent.originals_count);
    let mut text = None;
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        // SAFETY: middle < originals_count; the table is part of the plan file, mapped for ever.
        let entry = unsafe { *agent.originals.add(middle as usize) };
        if entry.offset <= offset {
            text = Some(entry.text);
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    text.map_or(pc, |text| agent.text_lo.wrapping_add(text.into()))
}
