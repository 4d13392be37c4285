//! Whose call a call out of unhooked code is: that of the newest hooked frame that is still alive.
//!
//! Frames stand in no list ([`cells`]), but a stack has one order: when a function is entered, every frame
//! below its own is gone. So what a thread's last event was says where its newest live frame can be. An event is an
//! entry into a hooked function with a cell or a return from one; [`gprofinject_abi::plan::ThreadWords::last`] is the CFA of the last one.
//! While the thread is on its own stack, no frame newer than `last` is alive:
//!
//! - If the frame at `last` is alive, it is the caller.
//! - If it is gone, and unhooked code had called it, its cell's *link* leads to the frame that was the newest when it
//!   was entered. Nothing has been entered since, so that one is the newest now, or the first of its own callers that
//!   is still alive.
//! - If it is gone and hooked code had called it, the cells above it are searched. That is the frame of its caller as
//!   a rule, and it is searched once: what was found becomes `last`.
//!
//! Coroutines, signal stacks and stacks whose extent cannot be told are not the thread's own. `last` may be on
//! another stack then, or another thread may have run on this one since. A call there is charged after a search up
//! from the call, and so is the first call on the thread's own stack after an event elsewhere.
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

/// The newest live frame that is older than one with this CFA, which unhooked code calls. For a signal handler, it
/// is searched for where the code was that the signal has interrupted; that may be on another stack, or in a leaf,
/// which has no cell.
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

/// The stack pointer and the program counter of the code that a signal handler, whose frame has this CFA, has
/// interrupted.
fn interrupted_at(cfa: u64) -> (u64, u64) {
    /// Offsets in struct ucontext: flags, link, stack (40 bytes), then registers 15 and 16.
    const RSP: u64 = 40 + 15 * 8;
    const RIP: u64 = RSP + 8;
    // SAFETY: the frame is a signal handler's, as its return address says, and the kernel has put a struct ucontext where a
    // caller's frame would be (struct rt_sigframe).
    unsafe { (*((cfa + RSP) as *const u64), *((cfa + RIP) as *const u64)) }
}

/// The newest live frame above an address. `interrupted`: a signal handler asks, and the address is where the
/// interrupted code's stack pointer was.
fn above(agent: &Agent, from: u64, interrupted: bool) -> Nearest {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let start = (from & !7) + 8;
    if from < lo || from >= hi {
        let found = Search::elsewhere(agent, from).first(start);
        return Nearest { function: found.map(|(_, function)| function), link: 0 };
    }
    // A signal handler that comes in after this leaves a `last` that leads to the same frame.
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
    // The signal has interrupted a thunk, between the note of its frame and its `call` or after its exit label. The
    // frame is not the handler's caller, but will be the newest one again when the handler has returned.
    if interrupted && last == from && existing(last).is_some_and(|cell| is_alive(cell, last)) {
        link = last;
    }
    words.last().store(link, Ordering::Relaxed);
    Nearest { function, link }
}

/// Another stack lies within the thread's own: an array of its main function's, say, in which a coroutine runs. From
/// now on the thread's stack is treated like one whose extent is not known, if it holds the address.
fn distrust_within(address: u64) {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    if address >= lo && address < hi {
        words.stack_hi().store(0, Ordering::Relaxed);
    }
}

/// Marks the frames that a jump or an exception leaves. `from` is the stack pointer before, `to` the one after.
///
/// On the thread's own stack these are all the frames in between. A jump that leads to that stack from another one, as
/// out of a signal handler with a stack of its own, leaves the frames below its target; the newest of them is where the
/// signal has interrupted the thread. A jump away from the thread's own stack leaves no frame: it resumes a coroutine.
/// Of a jump between two places on stacks of unknown extent nobody can say whether they are the same stack. If they are
/// not far apart, the frames between them are marked. Should some be resumed later, they lose nothing but their place as
/// callers.
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

/// Where the thread's own stack ended when a signal took the thread to the stack that holds `from`: the handler, whose
/// frame is one of those above, may have interrupted another handler on a third stack.
fn interrupted(from: u64, own: impl Fn(u64) -> bool) -> Option<u64> {
    /// As many frames as a handler may plausibly have called, one in another.
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
