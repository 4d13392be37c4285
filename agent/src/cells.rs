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
use crate::gate::Next;
use crate::sys;
use crate::words;
use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, ThreadWords, WINDOW};

const REGION: u64 = WINDOW;
const REGION_BITS: u32 = WINDOW.trailing_zeros();
/// User addresses have 47 bits.
const REGIONS: u64 = 1 << (47 - REGION_BITS);
/// The search for a caller gives up after this many bytes of stack without a hooked frame.
const FARTHEST: u64 = 1 << 20;
/// Bytes of shadow for a region, and the cell behind its end, which a CFA at the end has.
const _: () = assert!(
    offset_of!(ThreadWords, window).is_multiple_of(16)
        && offset_of!(ThreadWords, cells) == offset_of!(ThreadWords, window) + 8
);
const SHADOW: u64 = 2 * REGION + 4096;

/// The address of each region's shadow, 0: none yet. Written once each, by compare-and-exchange.
static SHADOWS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of regions.
pub(crate) fn prepare() -> Result<(), i32> {
    let table = sys::map_zeros(REGIONS * size_of::<AtomicU64>() as u64, sys::PROT_READ | sys::PROT_WRITE)?;
    SHADOWS.store(table as *mut AtomicU64, Ordering::Relaxed);
    Ok(())
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
fn shadow(address: u64, make: bool) -> Option<u64> {
    let entry = region(address)?;
    let known = entry.load(Ordering::Acquire);
    if known != 0 || !make {
        return (known != 0).then_some(known);
    }
    let fresh = sys::map_zeros(SHADOW, sys::PROT_READ | sys::PROT_WRITE).ok()?;
    match entry.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: nobody has seen the mapping.
            let _ = unsafe { sys::munmap(fresh, SHADOW) };
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

/// The function of the newest hooked frame that is older than one with this CFA: the next cell in use up
/// the stack whose frame still returns into the arena. Where a signal handler was entered on a stack of
/// its own, the search goes on where the interrupted code was. Integer code only; see [`crate::gate`].
pub(crate) fn caller(agent: &Agent, return_address: u64, cfa: u64) -> Option<u32> {
    newest_above(agent, cfa).or_else(|| newest_above(agent, interrupted(return_address, cfa)?))
}

/// If a signal handler was entered: the stack pointer of the code that it interrupted, which may be on
/// another stack.
fn interrupted(return_address: u64, cfa: u64) -> Option<u64> {
    /// glibc's __restore_rt: mov rax, 15; syscall.
    const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    /// Offset of rsp in struct ucontext: flags, link, stack (40 bytes), then register 15.
    const RSP: u64 = 40 + 15 * 8;
    // Byte by byte: a comparison of slices may use vector registers.
    for (i, byte) in RESTORER.iter().enumerate() {
        // SAFETY: a return address lies in code, and that of a signal handler in the nine bytes above;
        // the comparison ends at the first other byte.
        if unsafe { *(return_address as *const u8).add(i) } != *byte {
            return None;
        }
    }
    // SAFETY: the kernel has put a struct ucontext where a caller's frame would be (rt_sigframe).
    Some(unsafe { *((cfa + RSP) as *const u64) })
}

/// The function of the first live frame above an address. Integer code only; see [`crate::gate`].
fn newest_above(agent: &Agent, cfa: u64) -> Option<u32> {
    let shadow = shadow(cfa, false)?;
    let cfa = cfa & !7;
    let base = cfa & !(REGION - 1);
    let mut at = cfa + 8;
    // The stack's own pages are readable up to its end; cells in use lie below that end, so a slot is
    // read only where a cell says that there is a frame.
    let end = if base + REGION - cfa > FARTHEST { cfa + FARTHEST } else { base + REGION };
    while at < end {
        let cell = (shadow + 2 * (at - base)) as *const Cell;
        // SAFETY: at - base < REGION, so the cell lies in the shadow; a cell in use belongs to a frame
        // that was on the stack, and a stack's upper part stays mapped while its lower part is in use.
        // The argument is weak where a stack was unmapped and another one was mapped below its place.
        unsafe {
            let return_address = (*cell).return_address;
            if return_address != 0 && return_address != at - 8 && agent.in_arena(*((at - 8) as *const u64)) {
                return Some((*cell).function);
            }
        }
        at += 8;
    }
    None
}

/// Frees the cells of frames between two addresses of a stack: they are left by a jump. A jump from one
/// stack to another leaves the second one's alone.
pub(crate) fn forget(from: u64, to: u64) {
    let Some(shadow) = shadow(from, false) else { return };
    let base = from & !(REGION - 1);
    if to <= from || to - base > REGION {
        return;
    }
    // A frame's CFA is a multiple of 8, and its return slot lies below the target's stack pointer.
    let mut at = from.next_multiple_of(8);
    while at <= to {
        let cell = (shadow + 2 * (at - base)) as *mut Cell;
        // SAFETY: at - base <= REGION, so the cell lies in the shadow; its frame is below the stack
        // pointer from now on.
        unsafe {
            if (*cell).return_address != 0 {
                (*cell).return_address = 0;
            }
        }
        at += 8;
    }
}

/// The stack pointer is outside the thread's window on entry: moves the window there.
pub(crate) extern "C" fn enter(number: u32, _return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    if move_window(cfa) {
        return Next { target: agent.arena_lo.wrapping_add(record.resume.into()), body: 0 };
    }
    // No memory for a shadow: the call is counted, its exit is not hooked.
    // SAFETY: the region header stays mapped.
    unsafe { add(&raw mut (*agent.header()).bare_calls, 1) };
    arcs::body(agent, record)
}

fn move_window(cfa: u64) -> bool {
    let Some(shadow) = shadow(cfa, true) else { return false };
    let words = words::get();
    let both = [cfa & !(REGION - 1), shadow];
    // One store: a signal handler sees the old pair or the new one. Not in `known`, so vector registers
    // are saved.
    // SAFETY: the thread's own words; `window` and `cells` are 16 bytes at a multiple of 16.
    unsafe {
        asm!(
            "movups {value}, [{from}]",
            "movaps [{to}], {value}",
            value = out(xmm_reg) _, from = in(reg) &raw const both, to = in(reg) &raw mut (*words).window,
            options(nostack),
        );
    }
    true
}

/// The same on exit: answers with the frame's return address, and frees its cell.
pub(crate) extern "C" fn exit(cfa: u64) -> u64 {
    move_window(cfa);
    match cell(cfa, false) {
        // SAFETY: the frame's own cell.
        Some(cell) => unsafe {
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
