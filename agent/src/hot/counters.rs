//! Basic block counters, and the clock of executed instructions: the copies of functions count at `gs:[offset]`, so gs points to the
//! thread's thread block.
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
#[cfg(not(feature = "standalone"))]
use crate::os::task;
#[cfg(feature = "standalone")]
use crate::os::{memory, words};
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::libraries;
#[cfg(not(feature = "standalone"))]
use core::arch::asm;
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::region::RegionOrders;
#[cfg(feature = "standalone")]
use gprofinject_abi::region::{PAGE, counters_offset, round_up};
use gprofinject_abi::shared::BlockRef;
#[cfg(feature = "standalone")]
use gprofinject_abi::times::OWN_CLOCK;

/// Whether functions advance the clock of executed instructions.
fn has_clock(orders: &RegionOrders) -> bool {
    orders.clock == ClockKind::Instructions.code()
}

/// Returns the number of bytes that begin with a thread's record in a standalone program, where gs leads to the record: the
/// counters follow at the same distance as in a thread block, and the page with the clock is [`OWN_CLOCK`] bytes behind its usual place. Returns 0 if
/// nothing is counted.
#[cfg(feature = "standalone")]
pub(crate) fn room(orders: &RegionOrders) -> u64 {
    match orders.counter_bytes {
        0 if has_clock(orders) => OWN_CLOCK + PAGE,
        0 => 0,
        bytes => counters_offset(orders.slot_bytes) + round_up(bytes, PAGE),
    }
}

/// Makes the basic block counters and the clock of the calling thread those of this thread block: maps them once more, behind the
/// thread's record.
#[cfg(feature = "standalone")]
pub(crate) fn count_in(agent: &Agent, block: u64) {
    if block == agent.no_block {
        return;
    }
    let orders = &agent.orders;
    count_behind(block, counters_offset(orders.slot_bytes), round_up(orders.counter_bytes, PAGE), 0);
    count_behind(block, 0, if has_clock(orders) { PAGE } else { 0 }, OWN_CLOCK);
}

/// Maps `len` bytes at the offset `from` of a thread block once more, `by` bytes behind the same offset of the calling thread's record.
#[cfg(feature = "standalone")]
fn count_behind(block: u64, from: u64, len: u64, by: u64) {
    if len == 0 {
        return;
    }
    let at = words::thread_pointer() + from + by;
    // SAFETY: the room behind the record is the calling thread's.
    let mapped = unsafe { memory::map_again_over(block + from, len, at) };
    if mapped.is_err() {
        // These counters reach no file, nor do those of a thread that had the record before.
        let flags = memory::MAP_PRIVATE | memory::MAP_ANONYMOUS | memory::MAP_FIXED | memory::MAP_NORESERVE;
        let access = memory::PROT_READ | memory::PROT_WRITE;
        // SAFETY: as above.
        let _ = unsafe { memory::mmap(at, len, access, flags, -1, 0) };
    }
}

/// Makes the basic block counters and the clock of the calling thread those of this thread block.
#[cfg(not(feature = "standalone"))]
pub(crate) fn count_in(agent: &Agent, block: u64) {
    let orders = &agent.orders;
    if orders.counter_bytes == 0 && orders.library_counter_bytes == 0 && !has_clock(orders) {
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
