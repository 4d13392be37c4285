//! The shadow stack where a thunk cannot go on by itself.
//!
//! Frames are keyed by their CFA. A frame that vanished without returning (longjmp, a thread's end, a
//! coroutine that was given up) stays until something finds it out of place: the exit of an older frame,
//! or the stack at its limit.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::arcs;
use crate::gate::Next;
use crate::threads;
use crate::words;
use core::slice;
use gprofinject_abi::plan::{Frame, GONE};
use gprofinject_abi::region::BlockHeader;

/// Two frames further apart than this are taken to be on different stacks.
const SAME_STACK: u64 = 1 << 20;
const FRAME: u64 = size_of::<Frame>() as u64;

/// The calling thread's frames, oldest first.
///
/// # Safety
/// No frame may be pushed or popped while the slice is in use, but for handlers that leave it as it was.
unsafe fn frames() -> &'static mut [Frame] {
    let words = words::get();
    // SAFETY: bottom..top are frames of the thread's own stack, or both are 0 or the same.
    unsafe {
        let (bottom, top) = ((*words).bottom, (*words).top);
        if bottom == 0 || top <= bottom {
            return &mut [];
        }
        slice::from_raw_parts_mut(bottom as *mut Frame, ((top - bottom) / FRAME) as usize)
    }
}

/// The function of the newest frame that is alive when a function with this CFA is entered. Integer code
/// only; see [`crate::gate`].
pub(crate) fn caller(cfa: u64) -> Option<u32> {
    let words = words::get();
    // SAFETY: bottom..top are frames of the thread's own stack, or there are none.
    unsafe {
        let bottom = (*words).bottom;
        let mut at = (*words).top;
        while bottom != 0 && at > bottom {
            at -= FRAME;
            let frame = &*(at as *const Frame);
            if is_alive(frame, cfa) {
                return Some(frame.function);
            }
        }
    }
    None
}

/// Whether a frame can still return when the stack pointer is at `cfa`.
fn is_alive(frame: &Frame, cfa: u64) -> bool {
    if frame.cfa <= GONE {
        return false;
    }
    // Below the stack pointer of the same stack nothing is alive.
    frame.cfa > cfa || cfa - frame.cfa > SAME_STACK
}

/// A frame returned that is not the newest one: finds it, drops what lies dead above it, and answers with
/// its return address.
pub(crate) extern "C" fn exit(cfa: u64) -> u64 {
    // SAFETY: nothing is pushed or popped below.
    if let Some(return_address) = leave(unsafe { frames() }, cfa) {
        drop_gone();
        return return_address;
    }
    // Not ours: a coroutine that another thread had begun.
    let found = threads::find_frame(Agent::get(), |frames| leave_other(frames, cfa));
    match found {
        Some(return_address) => return_address,
        // Cannot happen while frames are dropped by proof only; there is nowhere to return to.
        None => loop {
            core::hint::spin_loop();
        },
    }
}

fn leave(frames: &mut [Frame], cfa: u64) -> Option<u64> {
    let at = frames.iter().rposition(|f| f.cfa == cfa)?;
    for frame in &mut frames[at + 1..] {
        if frame.cfa != 0 && !is_alive(frame, cfa) {
            frame.cfa = GONE;
        }
    }
    frames[at].cfa = GONE;
    Some(frames[at].return_address)
}

fn leave_other(frames: &mut [Frame], cfa: u64) -> Option<u64> {
    let frame = frames.iter_mut().rev().find(|f| f.cfa == cfa)?;
    frame.cfa = GONE;
    Some(frame.return_address)
}

/// Takes gone frames off the top.
fn drop_gone() {
    let words = words::get();
    // SAFETY: the thread's own words and frames; a frame that is being reserved has CFA 0 and stops this.
    unsafe {
        while (*words).top > (*words).bottom {
            let last = ((*words).top - FRAME) as *mut Frame;
            if (*last).cfa != GONE {
                break;
            }
            (*last).cfa = 0;
            (*words).top -= FRAME;
        }
    }
}

/// The shadow stack has reached its limit: makes room, or raises the limit, or lets the call through
/// without a frame.
pub(crate) extern "C" fn deep(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    let words = words::get();
    // SAFETY: the thread's own words, frames and block.
    unsafe {
        let before = frames().len();
        let after = compact(agent, frames(), return_address, cfa);
        // What was dropped is marked as unused for the next pushes.
        let all = slice::from_raw_parts_mut((*words).bottom as *mut Frame, before);
        for frame in &mut all[after..] {
            frame.cfa = 0;
        }
        (*words).top = (*words).bottom + after as u64 * FRAME;
        let block = (*words).block as *mut BlockHeader;
        let capacity = (*block).stack_len / FRAME;
        let limit = ((*words).limit - (*words).bottom) / FRAME;
        if after as u64 > limit / 2 && limit < capacity {
            let raised = if limit * 2 < capacity { limit * 2 } else { capacity };
            (*words).limit = (*words).bottom + raised * FRAME;
        }
        if (*words).top < (*words).limit {
            return Next { target: agent.arena_lo.wrapping_add(record.resume.into()), body: 0 };
        }
        (*block).stack_full = 1;
        add(&raw mut (*agent.header()).deep_calls, 1);
    }
    arcs::body(agent, record)
}

/// Moves the frames that may still return together, and answers how many they are.
///
/// A frame is dead if a newer one lies at or above it on the same stack: then its function's frame had
/// been left when the newer one came. Where the newer one was tail-called by it (same CFA, returning into
/// the arena), the two become one: the older return address with the newer function.
fn compact(agent: &Agent, frames: &mut [Frame], return_address: u64, cfa: u64) -> usize {
    // Frames up to a reserved one stay in place: a thunk is about to fill it.
    let fixed = frames.iter().rposition(|f| f.cfa == 0).map_or(0, |i| i + 1);
    let mut newest = cfa;
    // The frame that is just tail-calling has the CFA of the new one and is alive.
    let mut tail_calling = agent.in_arena(return_address);
    // From the newest to the oldest: mark the dead.
    let mut i = frames.len();
    while i > fixed {
        i -= 1;
        let frame = frames[i];
        if frame.cfa == GONE {
            continue;
        }
        let tail_called = agent.in_arena(frame.return_address);
        if tail_called && i > fixed && frames[i - 1].cfa == frame.cfa {
            // The older frame of the pair goes on as the newer function.
            frames[i - 1].function = frame.function;
            frames[i].cfa = GONE;
            continue;
        }
        let left = frame.cfa < newest || frame.cfa == newest && !tail_calling;
        if left && newest - frame.cfa <= SAME_STACK {
            frames[i].cfa = GONE;
        } else {
            newest = frame.cfa;
            tail_calling = false;
        }
    }
    let mut kept = fixed;
    for i in fixed..frames.len() {
        if frames[i].cfa != GONE {
            frames[kept] = frames[i];
            kept += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(return_address: u64, cfa: u64, function: u32) -> Frame {
        Frame { return_address, cfa, function, reserved: 0 }
    }

    fn agent() -> Agent {
        let mut agent = *Agent::get();
        agent.arena_lo = 0x1000;
        agent.arena_hi = 0x2000;
        agent
    }

    #[test]
    fn tail_calls_become_one_frame() {
        let mut frames =
            [frame(0x9000, 800, 1), frame(0x9100, 700, 2), frame(0x1010, 700, 3), frame(0x1020, 700, 4)];
        assert_eq!(compact(&agent(), &mut frames, 0x1030, 700), 2);
        assert_eq!(frames[..2], [frame(0x9000, 800, 1), frame(0x9100, 700, 4)]);
    }

    #[test]
    fn frames_left_by_longjmp_are_dropped() {
        // Three rounds of: setjmp in the frame at 800, a call at 700 that jumps back.
        let mut frames = [frame(9, 800, 1), frame(9, 700, 2), frame(9, 700, 2), frame(9, 650, 3), frame(9, 700, 2)];
        assert_eq!(compact(&agent(), &mut frames, 9, 600), 2);
        assert_eq!(frames[..2], [frame(9, 800, 1), frame(9, 700, 2)]);
    }

    #[test]
    fn a_frame_left_by_longjmp_gives_way_to_the_same_call() {
        let mut frames = [frame(9, 800, 1), frame(9, 700, 2), frame(9, 700, 2)];
        assert_eq!(compact(&agent(), &mut frames, 9, 700), 1);
    }

    #[test]
    fn other_stacks_and_reserved_frames_are_left_alone() {
        let far = 0x7000_0000;
        let mut frames = [frame(9, 800, 1), frame(9, 0, 7), frame(9, far, 2), frame(9, 700, 3)];
        assert_eq!(compact(&agent(), &mut frames, 9, 600), 4);
    }

    #[test]
    fn an_older_frame_returns_over_dead_ones() {
        let mut frames = [frame(0x9000, 800, 1), frame(0x9100, 700, 2), frame(0x9200, 600, 3)];
        assert_eq!(leave(&mut frames, 800), Some(0x9000));
        assert!(frames.iter().all(|f| f.cfa == GONE));
        assert_eq!(leave(&mut frames, 800), None);
    }
}
