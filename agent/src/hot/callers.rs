//! Finds the caller of a call out of unhooked code: the newest hooked frame that is still alive.
//!
//! Frames are in no list ([`crate::hot::cells`]), but a stack has an order: when a function is entered, every frame below its own
//! is gone. Therefore a thread's last event limits where its newest live frame can be. An event is an entry into a
//! hooked function with a cell, or a return to unhooked code from one. [`gprofinject_abi::plan::ThreadWords::last`] is a CFA: after an entry, that
//! of the frame; after such a return, that of the caller which the search at the frame's entry has found, and to which the *link* in its cell leads.
//! While the thread is on its own stack, no frame newer than `last` is alive:
//!
//! - If the frame at `last` is alive, it is the caller.
//! - If that frame is gone, hooked code had called it, and the cells above it are searched. The search usually finds
//!   the frame of its caller, and is done only once, because `last` is set to the result.
//!
//! Coroutines, signal stacks and stacks of unknown extent are not the thread's own. There, `last` may be on another
//! stack, or another thread may have run on the stack since. A call on such a stack is charged after a search up from
//! the call, and so is the first call on the thread's own stack after an event elsewhere.
//!
//! The frames of the program and those of libraries are two sets, each with its own last event and its own links, so
//! that the program's own view of its calls is the same whichever libraries are hooked. In the view of the whole
//! process, the caller is the newer one of the two sets' newest live frames ([`newest`]).
//!
//! All of this is integer code; see [`crate::hot::gate`].

use crate::hot::cells::{REGION, existing, is_alive};
use crate::hot::interrupted;
use crate::hot::nearest::Nearest;
use crate::hot::ranges;
use crate::hot::search::{Begin, Search};
use crate::hot::times;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::libraries;
use core::sync::atomic::Ordering;

/// Returns the newest live frame of a set that is older than a frame with this CFA, which is called from outside of that
/// set. For a signal handler, the search begins at the code that the signal has interrupted; that code may be on another
/// stack, or in a function that is in no frame ([`interrupted`]).
pub(crate) fn nearest(agent: &Agent, domain: Domain, return_address: u64, cfa: u64) -> Nearest {
    if !agent.is_restorer(return_address) {
        if agent.is_start_of_context(return_address) {
            distrust_within(cfa);
        }
        return above(agent, domain, cfa, false);
    }
    let nearest = above(agent, domain, interrupted::at(cfa).sp, true);
    let running = interrupted::function(agent, cfa).filter(|&number| Domain::of(number) == domain);
    Nearest { function: running.or(nearest.function), ..nearest }
}

/// Returns the function of the newest live frame of both sets, for the call that [`nearest`] has been asked about.
/// `found` is its answer for the set `domain`.
pub(crate) fn newest(
    agent: &Agent,
    domain: Domain,
    return_address: u64,
    cfa: u64,
    found: Nearest,
) -> Option<u32> {
    if !libraries::are_prepared() {
        return found.function;
    }
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let together = |from: u64| {
        let start = (from & !7) + 8;
        let search = if from >= lo && from < hi {
            Search { agent, domain: None, end: hi, readable: start, is_own: true, closes: false }
        } else {
            Search::elsewhere(agent, None, from)
        };
        // If the newest frame is one of this set, both views have the same caller, which `nearest` has found by the last event.
        match search.first(start) {
            Some((_, function)) if Domain::of(function) == domain => found.function,
            newest => newest.map(|(_, function)| function),
        }
    };
    if agent.is_restorer(return_address) {
        return interrupted::function(agent, cfa).or_else(|| together(interrupted::at(cfa).sp));
    }
    if cfa < lo || cfa >= hi || found.link == 0 {
        return together(cfa);
    }
    let (other, start) = (domain.other(), (cfa & !7) + 8);
    // No frame further up than the one that was found can be the newest.
    let end = if found.link < hi { found.link } else { hi };
    let last = other.last(words).load(Ordering::Relaxed);
    if last > end {
        return found.function;
    }
    let search = Search { agent, domain: Some(other), end, readable: start, is_own: true, closes: true };
    let newer = match search.begin(last, lo, start) {
        Begin::With(at, function) => (at <= end).then_some((at, function)),
        Begin::At(at) => search.first(at),
    };
    match newer {
        Some((at, function)) => {
            other.last(words).store(at, Ordering::Relaxed);
            // A frame that one set has handed over to the other one belongs to the function that its cell names.
            let cell = existing(at).filter(|_| at == found.link);
            Some(cell.map_or(function, |cell| cell.function().load(Ordering::Relaxed)))
        }
        None => {
            // From here on down, no frame of the other set is alive.
            other.last(words).store(end, Ordering::Relaxed);
            found.function
        }
    }
}

/// Returns the newest live frame of a set above an address. `interrupted` means that a signal handler is called, and that the
/// address is the interrupted code's stack pointer.
fn above(agent: &Agent, domain: Domain, from: u64, interrupted: bool) -> Nearest {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let start = (from & !7) + 8;
    if from < lo || from >= hi {
        let found = Search::elsewhere(agent, Some(domain), from).first(start);
        return Nearest { function: found.map(|(_, function)| function), link: 0 };
    }
    // A signal handler that interrupts the thread after this leaves a `last` that leads to the same frame.
    let last = domain.last(words).load(Ordering::Relaxed);
    let closes = !interrupted;
    let search = Search { agent, domain: Some(domain), end: hi, readable: start, is_own: true, closes };
    if !interrupted && search.is_left_behind(last, lo, start) {
        distrust_within(from);
        return above(agent, domain, from, false);
    }
    let found = match search.begin(last, lo, start) {
        Begin::With(cfa, function) => Some((cfa, function)),
        Begin::At(at) => search.first(at),
    };
    let (function, mut link) = match found {
        Some((cfa, function)) => (Some(function), cfa),
        // No frame is alive, so the next search begins at the end of the stack.
        None => (None, hi),
    };
    // The signal has interrupted a thunk, between the record of its frame and its `call`, or after its exit label, or a slow path
    // there. That frame is not the handler's caller, but will be the newest one again when the handler has returned.
    if interrupted && last == from && existing(from).is_some_and(is_alive) {
        link = from;
    }
    domain.last(words).store(link, Ordering::Relaxed);
    Nearest { function, link }
}

/// Handles another stack within the thread's own, for instance an array of its main function's on which a coroutine
/// runs. From now on the thread's stack counts as one of unknown extent, if it contains the address.
pub(crate) fn distrust_within(address: u64) {
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    if address >= lo && address < hi {
        words.stack_hi().store(0, Ordering::Relaxed);
    }
}

/// Marks the frames that a jump or an exception leaves. `from` is the stack pointer before it, `to` the one after.
/// On the thread's own stack these are all the frames in between. A jump that leads to that stack from another one,
/// for instance out of a signal handler with a stack of its own, leaves the frames below its target; the newest of
/// them is where the signal has interrupted the thread. A jump away from the thread's own stack leaves no frame: it
/// resumes a coroutine. For a jump between two places on stacks of unknown extent, it is not known whether they are
/// on the same stack. If they are not far apart, the frames between them are marked. If such frames are resumed
/// later, they only stop being found as callers. `is_over` is whether no coroutine can resume the frames that are left on the
/// thread's own stack.
pub(crate) fn leave(from: u64, to: u64, is_over: bool) {
    times::calls::leave(to);
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let own = |address| address >= lo && address < hi;
    let (newest, is_over) = match (own(from), own(to)) {
        (true, true) => (from, is_over),
        (false, true) => match interrupted_from(from, own) {
            Some(newest) => (newest, is_over),
            None => return,
        },
        (false, false) if to.wrapping_sub(from) <= REGION => (from, false),
        _ => return,
    };
    ranges::forget(newest, to, is_over);
}

/// Frees the cells of frames that another thread has left on a stack that the calling thread has got, and on which its first frame
/// has this CFA. Otherwise its calls would find these cells in use. The search ends where no cell of a part of the stack is in use.
pub(crate) fn begin_thread(cfa: u64) {
    const PART: u64 = 16 << 10;
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    if cfa < lo || cfa >= hi {
        return;
    }
    let mut end = cfa;
    while end >= lo {
        let start = lo.max(end.saturating_sub(PART));
        if !ranges::forget(start, end, true) || start == lo {
            return;
        }
        end = start - 8;
    }
}

/// Returns where the thread's own stack ended when a signal switched the thread to the stack that contains `from`.
/// The handler, whose frame is one of those above, may have interrupted another handler on a third stack.
fn interrupted_from(from: u64, own: impl Fn(u64) -> bool) -> Option<u64> {
    /// More frames than a signal handler plausibly has.
    const MOST: u32 = 1024;
    let agent = Agent::get();
    let mut at = (from & !7) + 8;
    for _ in 0..MOST {
        let (cfa, _) = Search::elsewhere(agent, None, at).first(at)?;
        let return_address = existing(cfa).map_or(0, |cell| cell.return_address().load(Ordering::Relaxed));
        at = if agent.is_restorer(return_address) { interrupted::at(cfa).sp & !7 } else { cfa + 8 };
        if own(at) {
            return Some(at);
        }
    }
    None
}
