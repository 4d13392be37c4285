//! The shadow stack: a cell of 16 bytes for every 8 bytes of stack, at an address that depends only on the stack
//! address.
//!
//! The address space is divided into *regions* of 64 MiB. A region gets its shadow, 128 MiB of address space of which
//! only touched pages take memory, when the first hooked function runs on a stack in it. A thread's *window* is the
//! region in which it last ran; its thunks access that region's shadow by themselves, and call this module if the
//! stack pointer is elsewhere: on a first call, on a signal stack, in a coroutine.
//!
//! No order of frames has to be kept: the cells that longjmp leaves are overwritten by the next frame in that place,
//! the frames of a coroutine remain valid on any thread, and recursion may be as deep as the stack.
#![allow(unsafe_code, reason = "cells are places in a shadow, which addresses on the stack lead to")]

use crate::hot::next::Next;
use crate::os::kernel;
use crate::os::memory;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence};
use gprofinject_abi::plan::{Cell, LEFT, WINDOW, WINDOW_WORD};
use gprofinject_abi::shared::CellRef;

pub(crate) const REGION: u64 = WINDOW;
const REGION_BITS: u32 = WINDOW.trailing_zeros();
/// User addresses have 47 bits.
const REGIONS: u64 = 1 << (47 - REGION_BITS);
const PAGE: u64 = 4096;
/// Bytes of shadow for a region. A CFA at the region's end belongs to the next region.
const SHADOW: u64 = 2 * REGION;

/// The bytes of the table of shadows, and of the shadow of the first stack.
pub(crate) const FIRST: u64 = REGIONS * size_of::<AtomicU64>() as u64 + PAGE + SHADOW;

/// The address of each region's shadow, or 0 if there is none yet. Each is written once, by compare-and-exchange.
static SHADOWS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of shadows. Returns its address.
pub(crate) fn prepare() -> Result<u64, i32> {
    let table =
        memory::map_zeros(REGIONS * size_of::<AtomicU64>() as u64, memory::PROT_READ | memory::PROT_WRITE)?;
    SHADOWS.store(table as *mut AtomicU64, Ordering::Relaxed);
    Ok(table)
}

/// Returns the address of the table of shadows.
pub(crate) fn table() -> u64 {
    SHADOWS.load(Ordering::Relaxed) as u64
}

fn region(address: u64) -> Option<&'static AtomicU64> {
    let index = address >> REGION_BITS;
    let table = SHADOWS.load(Ordering::Relaxed);
    if index >= REGIONS || table.is_null() {
        return None;
    }
    // SAFETY: `index` is less than REGIONS, the length of the table, which is never unmapped.
    Some(unsafe { &*table.add(index as usize) })
}

/// Returns the shadow of the region that contains `address`. If there is none, `make` is whether to make one.
pub(crate) fn shadow(address: u64, make: bool) -> Option<u64> {
    let entry = region(address)?;
    let known = entry.load(Ordering::Acquire);
    if known != 0 || !make {
        return (known != 0).then_some(known);
    }
    // One more page in front holds the window's address.
    let fresh = memory::map_zeros(PAGE + SHADOW, memory::PROT_READ | memory::PROT_WRITE).ok()? + PAGE;
    // SAFETY: the word is the last one of that page, and no other code knows of the mapping.
    unsafe { *(fresh.wrapping_add_signed(WINDOW_WORD) as *mut u64) = address & !(REGION - 1) };
    match entry.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: no other code knows of the mapping.
            let _ = unsafe { memory::munmap(fresh - PAGE, PAGE + SHADOW) };
            Some(other)
        }
    }
}

/// Returns the cell of a frame, if the frame's region has a shadow. Every region in which a hooked function runs has
/// one. Integer code only; see [`crate::hot::gate`].
pub(crate) fn existing(cfa: u64) -> Option<CellRef> {
    shadow(cfa, false).map(|shadow| cell(shadow, cfa))
}

/// Returns the cell of a frame in the shadow of its region.
pub(crate) fn cell(shadow: u64, cfa: u64) -> CellRef {
    let at = (shadow + 2 * (cfa & (REGION - 1) & !7)) as *mut Cell;
    // SAFETY: a shadow is twice as long as a region, so the cell lies in it, and its address is a multiple of 16.
    // Shadows are never unmapped. Besides thunks, only `CellRef` accesses cells. An address within a mapping is not
    // 0.
    unsafe { CellRef::new(NonNull::new_unchecked(at)) }
}

/// Returns whether the cell's frame has neither returned nor been left by a jump.
pub(crate) fn is_alive(cell: CellRef, cfa: u64) -> bool {
    let return_address = cell.return_address().load(Ordering::Relaxed);
    return_address != 0 && return_address != cfa - 8 && cell.link().load(Ordering::Relaxed) != LEFT
}

/// Fills the cell of a frame that unhooked code has called, as the thunk would, and stores its caller in `link`.
/// Returns whether that was possible: if not, the thunk does it, or moves the thread's window. Integer code only; see
/// [`crate::hot::gate`].
pub(crate) fn fill(cfa: u64, number: u32, return_address: u64, link: u32) -> bool {
    let words = words::get();
    let cells = words.cells().load(Ordering::Relaxed);
    if shadow(cfa, false) != Some(cells) {
        return false;
    }
    let cell = cell(cells, cfa);
    // A signal handler that interrupts this sees no frame, or a complete one: the return address is written when the
    // rest is there, and `last` after the cell. A handler runs on the same thread, so the order of the instructions
    // is sufficient.
    let contents = u64::from(number) | u64::from(link) << 32;
    cell.function_and_link().store(contents, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    cell.return_address().store(return_address, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    Domain::of(number).last(words).store(cfa, Ordering::Relaxed);
    true
}

/// Marks the frames whose CFAs lie between two addresses, both included, as left by a jump. Stacks may span any
/// number of regions; a region without a shadow has never had frames.
pub(crate) fn forget(from: u64, to: u64) {
    // A frame's CFA is a multiple of 8.
    let mut at = from.next_multiple_of(8);
    while at <= to {
        let next = (at & !(REGION - 1)) + REGION;
        let Some(shadow) = shadow(at, false) else {
            at = next;
            continue;
        };
        while at <= to && at < next {
            let cell = cell(shadow, at);
            // A cell that is not in use is not written, so that untouched memory stays unallocated.
            if cell.return_address().load(Ordering::Relaxed) != 0 {
                cell.link().store(LEFT, Ordering::Relaxed);
            }
            at += 8;
        }
    }
}

/// Puts the return addresses of the frames back whose CFAs lie between two addresses, both included, and marks these frames as left.
/// `is_exit_label` returns whether a word is an exit label, which shows that a frame is alive. If the stack is not known to be
/// mapped, this ends at the first page that is not, or at the end of the page if the agent makes no system calls any more.
pub(crate) fn put_back(from: u64, to: u64, is_mapped: bool, is_exit_label: impl Fn(u64) -> bool) {
    let mut at = from.next_multiple_of(8);
    // The slots below this address can be read.
    let mut readable = if is_mapped { u64::MAX } else { at.next_multiple_of(PAGE) };
    while at <= to {
        if at > readable {
            if kernel::is_frozen() {
                return;
            }
            let page = (at - 8) & !(PAGE - 1);
            readable = page + PAGE * memory::readable_pages(task::getpid(), page);
            if at > readable {
                return;
            }
        }
        let next = (at & !(REGION - 1)) + REGION;
        let Some(shadow) = shadow(at, false) else {
            at = next;
            continue;
        };
        while at <= to && at < next && at <= readable {
            let cell = cell(shadow, at);
            let return_address = cell.return_address().load(Ordering::Relaxed);
            if return_address != 0 && is_alive(cell, at) {
                // SAFETY: the slot is mapped, and a multiple of 8. It is on the calling thread's stack, above its stack pointer.
                // If the extent of that is not known, it may also belong to another stack, on which another thread runs.
                let slot = unsafe { AtomicU64::from_ptr((at - 8) as *mut u64) };
                let label = slot.load(Ordering::Relaxed);
                // The word belongs to the frame's thunk as long as it is the exit label.
                if is_exit_label(label) {
                    let is_put_back = if is_mapped {
                        slot.store(return_address, Ordering::Relaxed);
                        true
                    } else {
                        slot.compare_exchange(label, return_address, Ordering::Relaxed, Ordering::Relaxed)
                            .is_ok()
                    };
                    if is_put_back {
                        cell.link().store(LEFT, Ordering::Relaxed);
                    }
                }
            }
            at += 8;
        }
    }
}

/// Handles a stack pointer outside the thread's window on entry: moves the window there.
///
/// The thunk fills the cell then, unless it does so for no call: a call that leads here was made by unhooked code.
pub(crate) extern "C" fn enter(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    if move_window(cfa) {
        if record.is_for_callbacks() && fill(cfa, number, return_address, 0) {
            return Next::call(agent, number, record);
        }
        return Next::resume(agent, number, record);
    }
    // There is no memory for a shadow, so the call is counted, but its exit is not hooked.
    agent.region.bare_calls().fetch_add(1, Ordering::Relaxed);
    Next::body(agent, number, record)
}

/// Makes the region that holds `cfa` the thread's window. A signal handler sees either the old or the new
/// shadow. Returns `false` if there is no memory for a shadow.
fn move_window(cfa: u64) -> bool {
    let Some(shadow) = shadow(cfa, true) else { return false };
    words::get().cells().store(shadow, Ordering::Relaxed);
    true
}

/// Handles a stack pointer outside the thread's window on exit: returns the frame's return address, and frees its
/// cell.
pub(crate) extern "C" fn exit(cfa: u64) -> u64 {
    move_window(cfa);
    let Some(cell) = existing(cfa) else {
        // This cannot happen: the frame's entry made the region's shadow, which is never removed. Without it, the
        // return address is unknown.
        task::sleep_for_ever()
    };
    if cell.link().load(Ordering::Relaxed) > LEFT {
        let domain = Domain::of(cell.function().load(Ordering::Relaxed));
        domain.last(words::get()).store(cfa, Ordering::Relaxed);
    }
    let return_address = cell.return_address().load(Ordering::Relaxed);
    cell.return_address().store(0, Ordering::Relaxed);
    return_address
}
