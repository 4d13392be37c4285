//! The shadow stack: a cell of 16 bytes for every 8 bytes of stack, at a distance that depends on the
//! address alone.
//!
//! The address space is cut into *regions* of 64 MiB. A region gets its shadow, 128 MiB of address space
//! of which only touched pages take memory, when the first hooked function runs on a stack in it. A
//! thread's *window* is the region it was last seen in; its thunks reach that one by themselves, and come
//! here where the stack pointer is elsewhere: on a first call, on a signal stack, in a coroutine.
//!
//! So there is no order of frames to be kept: longjmp leaves cells behind that the next frame in that
//! place overwrites, a coroutine takes its frames along to any thread, and recursion is as deep as the
//! stack is.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::arcs;
use crate::callers::Nearest;
use crate::gate::{Next, RESUME};
use crate::sys;
use crate::words;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, LEFT, WINDOW, WINDOW_WORD};

pub(crate) const REGION: u64 = WINDOW;
const REGION_BITS: u32 = WINDOW.trailing_zeros();
/// User addresses have 47 bits.
const REGIONS: u64 = 1 << (47 - REGION_BITS);
const PAGE: u64 = 4096;
/// Bytes of shadow for a region. A CFA at the region's end belongs to the next region.
const SHADOW: u64 = 2 * REGION;

/// The address of each region's shadow, 0: none yet. Written once each, by compare-and-exchange.
static SHADOWS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of shadows; answers with its address.
pub(crate) fn prepare() -> Result<u64, i32> {
    let table = sys::map_zeros(REGIONS * size_of::<AtomicU64>() as u64, sys::PROT_READ | sys::PROT_WRITE)?;
    SHADOWS.store(table as *mut AtomicU64, Ordering::Relaxed);
    Ok(table)
}

/// Address of the table of shadows.
pub(crate) fn table() -> u64 {
    SHADOWS.load(Ordering::Relaxed) as u64
}

fn region(address: u64) -> Option<&'static AtomicU64> {
    let index = address >> REGION_BITS;
    let table = SHADOWS.load(Ordering::Relaxed);
    if index >= REGIONS || table.is_null() {
        return None;
    }
    // SAFETY: index < REGIONS, the length of the table, which is mapped for ever.
    Some(unsafe { &*table.add(index as usize) })
}

/// The shadow of the region that holds `address`, made if `make` says so.
pub(crate) fn shadow(address: u64, make: bool) -> Option<u64> {
    let entry = region(address)?;
    let known = entry.load(Ordering::Acquire);
    if known != 0 || !make {
        return (known != 0).then_some(known);
    }
    // A page in front, for the window's address.
    let fresh = sys::map_zeros(PAGE + SHADOW, sys::PROT_READ | sys::PROT_WRITE).ok()? + PAGE;
    // SAFETY: the last word of that page; nobody else has seen the mapping.
    unsafe { *(fresh.wrapping_add_signed(WINDOW_WORD) as *mut u64) = address & !(REGION - 1) };
    match entry.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: nobody has seen the mapping.
            let _ = unsafe { sys::munmap(fresh - PAGE, PAGE + SHADOW) };
            Some(other)
        }
    }
}

/// The cell of a frame. Integer code only unless `make`; see [`crate::gate`].
fn cell(cfa: u64, make: bool) -> Option<*mut Cell> {
    let shadow = shadow(cfa, make)?;
    Some((shadow + 2 * (cfa & (REGION - 1))) as *mut Cell)
}

/// The cell of a frame that a hooked function runs in already.
pub(crate) fn existing(cfa: u64) -> Option<*mut Cell> {
    cell(cfa, false)
}

/// Sets up a frame that unhooked code has called, as the thunk would, and notes whose call it was. Answers with
/// whether it could: if not, the thunk does it, or moves the thread's window. Integer code only; see [`crate::gate`].
pub(crate) fn fill(cfa: u64, number: u32, return_address: u64, nearest: Nearest) -> bool {
    let words = words::get();
    // SAFETY: the thread's own words.
    let cells = unsafe { (*words).cells };
    if shadow(cfa, false) != Some(cells) {
        return false;
    }
    let cell = (cells + 2 * (cfa & (REGION - 1))) as *mut Cell;
    let contents = u64::from(number) | u64::from(nearest.link_from(cfa)) << 32;
    // SAFETY: the frame's own cell, and the thread's own words. A signal handler that comes in between sees no
    // frame, or a whole one: the return address is written when the rest is there, and `last` after the cell.
    unsafe {
        (&raw mut (*cell).function).cast::<u64>().write_volatile(contents);
        (&raw mut (*cell).return_address).write_volatile(return_address);
        (&raw mut (*words).last).write_volatile(cfa);
    }
    true
}

/// Marks the frames whose CFAs lie between two addresses, both included, as left by a jump. Stacks may span any number
/// of regions; a region without a shadow has had no frames.
pub(crate) fn forget(from: u64, to: u64) {
    // A frame's CFA is a multiple of 8.
    let mut at = from.next_multiple_of(8);
    while at <= to {
        let base = at & !(REGION - 1);
        let next = base + REGION;
        let Some(shadow) = shadow(at, false) else {
            at = next;
            continue;
        };
        while at <= to && at < next {
            let cell = (shadow + 2 * (at - base)) as *mut Cell;
            // SAFETY: at - base < REGION, so the cell lies in the shadow. A cell that is not in use is not written, so
            // that untouched memory stays untouched.
            unsafe {
                if (*cell).return_address != 0 {
                    (*cell).link = LEFT;
                }
            }
            at += 8;
        }
    }
}

/// The stack pointer is outside the thread's window on entry: moves the window there.
pub(crate) extern "C" fn enter(number: u32, _return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    if move_window(cfa) {
        return Next { target: agent.arena_lo.wrapping_add(record.resume.into()), way: RESUME };
    }
    // No memory for a shadow: the call is counted, its exit is not hooked.
    // SAFETY: the region header stays mapped.
    unsafe { add(&raw mut (*agent.header()).bare_calls, 1) };
    arcs::body(agent, record)
}

fn move_window(cfa: u64) -> bool {
    let Some(shadow) = shadow(cfa, true) else { return false };
    let words = words::get();
    // SAFETY: the thread's own words. They are written with one store, so a signal handler sees the old shadow or the new one.
    unsafe { (&raw mut (*words).cells).write_volatile(shadow) };
    true
}

/// The same on exit: answers with the frame's return address, and frees its cell.
pub(crate) extern "C" fn exit(cfa: u64) -> u64 {
    move_window(cfa);
    match cell(cfa, false) {
        // SAFETY: the frame's own cell, and the thread's own words.
        Some(cell) => unsafe {
            if (*cell).link > LEFT {
                (&raw mut (*words::get()).last).write_volatile(cfa);
            }
            let return_address = (*cell).return_address;
            (*cell).return_address = 0;
            return_address
        },
        // Cannot happen: the frame's entry made the region's shadow, which is never taken away.
        None => loop {
            core::hint::spin_loop();
        },
    }
}
