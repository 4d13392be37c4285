//! Finds the caller of a call from unhooked code: the newest hooked frame that is still alive.
//!
//! Frames are kept in no list (see [`cells`]), but a stack is ordered: when a function is entered, every
//! frame below its own is gone. So a thread's last event limits where its newest live frame can be. An event
//! is an entry into a hooked function with a cell or a return from one;
//! [`gprofinject_abi::plan::ThreadWords::last`] is the CFA of the last one. While the thread is on its own
//! stack, no frame newer than `last` is alive:
//!
//! - If the frame at `last` is alive, it is the caller.
//! - If it is gone, and unhooked code had called it, its cell's *link* refers to the frame that was the
//!   newest when it was entered. Nothing has been entered since, so that one is the newest now, or the first
//!   of its own callers that is still alive.
//! - If it is gone and hooked code had called it, the cells above it are searched. The search usually ends at
//!   the frame of its caller. It is made only once, because its result becomes `last`.
//!
//! The stacks of coroutines and signal handlers, and stacks of unknown extent, are not the thread's own.
//! There, `last` may be on another stack, or another thread may have run on this stack since. The caller of a
//! call there is found by a search upwards from the call's frame. The same holds for the first call on the
//! thread's own stack after an event on another stack.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "the kernel's description of an interrupted thread is read")]

use crate::hot::cells::{self, REGION, existing};
use crate::hot::links;
use crate::hot::nearest::Nearest;
use crate::hot::search::{Begin, Search, is_alive};
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;

/// Returns the newest live frame that is older than the frame with this CFA, which unhooked code has called.
/// For a signal handler, the search begins at the stack pointer of the interrupted code, which may be on
/// another stack, or in a leaf function, which has no cell.
pub(crate) fn nearest(agent: &Agent, return_address: u64, cfa: u64) -> Nearest {
    if !agent.is_restorer(return_address) {
        if agent.is_start_of_context(return_address) {
            distrust_within(cfa);
        }
        return above(agent, cfa, false);
    }
    let (rsp, rip) = interrupted_at(cfa);
    let nearest = above(agent, rsp, true);
    Nearest { function: agent.leaf_at(rip).or(nearest.function), ..nearest }
}

/// Returns the stack pointer and the program counter of the code that was interrupted by the signal whose
/// handler's frame has this CFA.
fn interrupted_at(cfa: u64) -> (u64, u64) {
    /// Offsets in struct ucontext: flags, link, stack (40 bytes), then registers 15 and 16.
    const RSP: u64 = 40 + 15 * 8;
    const RIP: u64 = RSP + 8;
    // SAFETY: the return address shows that the frame is a signal handler's, and the kernel has put a struct
    // ucontext where a caller's frame would be (struct rt_sigframe).
    unsafe { (*((cfa + RSP) as *const u64), *((cfa + RIP) as *const u64)) }
}

/// The newest live frame above an address. If `interrupted` is set, the search is for a signal handler, and
/// the address is the interrupted code's stack pointer.
fn above(agent: &Agent, from: u64, interrupted: bool) -> Nearest {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let start = (from & !7) + 8;
    if from < lo || from >= hi {
        let found = Search::elsewhere(agent, from).first(start);
        return Nearest { function: found.map(|(_, function)| function), link: 0 };
    }
    // A signal handler that runs after this load leaves a `last` from which a search finds the same frame.
    let last = words.last().load(Ordering::Relaxed);
    let search = Search { agent, end: hi, readable: start };
    if !interrupted && search.is_left_behind(last, lo, start) {
        distrust_within(from);
        return above(agent, from, false);
    }
    let found = match search.begin(last, lo, start) {
        Begin::With(cfa, function) => Some((cfa, function)),
        Begin::At(at) => {
            let found = search.first(at);
            if let Some((cfa, function)) = found {
                links::searched(agent, at, cfa, function);
            }
            found
        }
    };
    let (function, mut link) = match found {
        Some((cfa, function)) => (Some(function), cfa),
        // Where no frame is alive: the next search begins there.
        None => (None, hi),
    };
    // The signal has interrupted a thunk between the store of its frame's CFA and its `call`, or after its
    // exit label. The frame is not the handler's caller, but it will be the newest one again after the
    // handler has returned.
    if interrupted && last == from && existing(last).is_some_and(|cell| is_alive(cell, last)) {
        link = last;
    }
    words.last().store(link, Ordering::Relaxed);
    Nearest { function, link }
}

/// Treats the thread's own stack as one of unknown extent from now on, if the address lies in it. Another
/// stack lies within the thread's own: for example, a coroutine runs in an array of the main function.
fn distrust_within(address: u64) {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    if address >= lo && address < hi {
        words.stack_hi().store(0, Ordering::Relaxed);
    }
}

/// Marks the frames that a non-local jump or an exception leaves. `from` is the stack pointer before, `to`
/// the one after.
///
/// On the thread's own stack, these are all frames in between. A jump to that stack from another one, for
/// example from a signal handler with a stack of its own, leaves the frames below the jump's target; the
/// newest of them is where the signal has interrupted the thread. A jump away from the thread's own stack
/// leaves no frame: it resumes a coroutine. If both places are on stacks of unknown extent, they may or may
/// not be on the same stack. If they are not far apart, the frames between them are marked. A marked frame
/// that is resumed later can still return; it only is no longer found as a caller.
pub(crate) fn leave(from: u64, to: u64) {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let own = |address| address >= lo && address < hi;
    let newest = match (own(from), own(to)) {
        (true, true) => from,
        (false, true) => match interrupted(from, own) {
            Some(newest) => newest,
            None => return,
        },
        (false, false) if to.wrapping_sub(from) <= REGION => from,
        _ => return,
    };
    cells::forget(newest, to);
}

/// Returns the stack pointer that the thread had on its own stack when a signal moved it to the stack that
/// holds `from`, or `None` if no such signal is found. The signal handler's frame lies above `from`. That
/// handler may itself have interrupted another handler on a third stack.
fn interrupted(from: u64, own: impl Fn(u64) -> bool) -> Option<u64> {
    /// The greatest number of nested frames that are searched for the signal handler's frame.
    const MOST: u32 = 1024;
    let agent = Agent::get();
    let mut at = (from & !7) + 8;
    for _ in 0..MOST {
        let (cfa, _) = Search::elsewhere(agent, at).first(at)?;
        let return_address = existing(cfa).map_or(0, |cell| cell.return_address().load(Ordering::Relaxed));
        at = if agent.is_restorer(return_address) {
            let (stack_pointer, _) = interrupted_at(cfa);
            stack_pointer & !7
        } else {
            cfa + 8
        };
        if own(at) {
            return Some(at);
        }
    }
    None
}
