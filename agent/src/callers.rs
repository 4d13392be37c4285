//! Whose call a call out of unhooked code is: that of the newest hooked frame that is still alive.
//!
//! Frames stand in no list ([`crate::cells`]), but a stack has one order: when a function is entered, every frame
//! below its own is gone. So what a thread's last event was says where its newest live frame can be. An event is an
//! entry into a hooked function with a cell or a return from one; [`ThreadWords::last`] is the CFA of the last one.
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
//! All of this is integer code; see [`crate::gate`].
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::cells::{self, REGION, existing, shadow};
use crate::far;
use crate::objects;
use crate::sys;
use crate::words;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, LEFT};

/// How many sites are known at a time.
pub(crate) const SITES_LEN: usize = 1024;

/// The *sites* that have called hooked functions lately: return addresses in code that is not hooked, but belongs to a
/// loaded object, and that begin no context and are no signal handler's. If a call returns to a site, the assembly in
/// [`crate::gate`] looks for the caller without asking anything else about the return address. The low bits of a site's
/// address say where in the table it stands. Any thread may replace it by another site; a call whose return address is not
/// found here takes the slow path.
pub(crate) static SITES: [AtomicU64; SITES_LEN] = [const { AtomicU64::new(0) }; SITES_LEN];

fn site(return_address: u64) -> &'static AtomicU64 {
    // The index is less than the length.
    &SITES[return_address as usize % SITES_LEN]
}

/// Whether a return address is known to be a site. Integer code only; see [`crate::gate`].
pub(crate) fn is_site(return_address: u64) -> bool {
    site(return_address).load(Ordering::Relaxed) == return_address
}

/// Answers with whether a return address in code that is not hooked is a site, and remembers it. Integer code only; see
/// [`crate::gate`].
pub(crate) fn note_site(agent: &Agent, return_address: u64) -> bool {
    let is = return_address != 0
        && !agent.in_copies(return_address)
        && !agent.in_arena(return_address)
        && (!agent.both || agent.in_text(return_address) || objects::known(return_address) == Some(false))
        && !agent.is_restorer(return_address)
        && !agent.is_start_of_context(return_address);
    if is {
        site(return_address).store(return_address, Ordering::Relaxed);
    }
    is
}

/// What a search has found.
#[derive(Clone, Copy)]
pub(crate) struct Nearest {
    /// The function that is charged. None: no frame is alive.
    pub(crate) function: Option<u32>,
    /// The CFA of the newest live frame, or the end of the stack if there is none. 0: the call is not on the thread's
    /// own stack, and no link may lead there.
    link: u64,
}

impl Nearest {
    /// What the cell of a frame with this CFA says of its caller.
    pub(crate) fn link_from(self, cfa: u64) -> u32 {
        if self.link <= cfa {
            return 0;
        }
        // Both are multiples of 8. A link may lead from a signal stack to the thread's own.
        match (self.link - cfa) / 8 + 1 {
            link if link <= u64::from(u32::MAX) => link as u32,
            _ => 0,
        }
    }
}

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
    // SAFETY: the kernel has put a struct ucontext where a caller's frame would be (rt_sigframe).
    unsafe { (*((cfa + RSP) as *const u64), *((cfa + RIP) as *const u64)) }
}

/// The newest live frame above an address. `interrupted`: a signal handler asks, and the address is where the
/// interrupted code's stack pointer was.
fn above(agent: &Agent, from: u64, interrupted: bool) -> Nearest {
    let words = words::get();
    // SAFETY: the thread's own words.
    let (lo, hi) = unsafe { ((*words).stack_lo, (*words).stack_hi) };
    let start = (from & !7) + 8;
    if from < lo || from >= hi {
        let found = Search::elsewhere(agent, from).first(start);
        return Nearest { function: found.map(|(_, function)| function), link: 0 };
    }
    // SAFETY: as above. A signal handler that comes in after this leaves a `last` that leads to the same frame.
    let last = unsafe { (&raw const (*words).last).read_volatile() };
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
                far::searched(agent, at, cfa, function);
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
    // SAFETY: as above.
    unsafe { (&raw mut (*words).last).write_volatile(link) };
    Nearest { function, link }
}

/// Another stack lies within the thread's own: an array of its main function's, say, in which a coroutine runs. From
/// now on the thread's stack is treated like one whose extent is not known, if it holds the address.
fn distrust_within(address: u64) {
    let words = words::get();
    // SAFETY: the thread's own words.
    unsafe {
        if address >= (*words).stack_lo && address < (*words).stack_hi {
            (&raw mut (*words).stack_hi).write_volatile(0);
        }
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
    // SAFETY: the thread's own words.
    let (lo, hi) = unsafe { ((*words).stack_lo, (*words).stack_hi) };
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
        // SAFETY: the frame's cell, which the search has found.
        let return_address = existing(cfa).map_or(0, |cell| unsafe { (*cell).return_address });
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

/// How a search on the thread's own stack begins.
enum Begin {
    /// It is over: CFA and function of the frame.
    With(u64, u32),
    /// With the cell of a frame with this CFA.
    At(u64),
}

/// Where callers are looked for.
struct Search<'a> {
    agent: &'a Agent,
    /// Beyond it other stacks' frames would be found.
    end: u64,
    /// From here on the stack is there for certain, and what a frame's return slot holds can be looked at: an
    /// exception, a thread's end or an unknown kind of jump may have left frames without a word, and other things
    /// stand in their place.
    readable: u64,
}

impl Search<'_> {
    /// On a stack that is not the thread's own, or not known to be. A thread's stack ends at its thread control block,
    /// which glibc puts on top, the main thread's at its arguments; of other stacks, whose extent nobody tells, a piece
    /// is looked at.
    fn elsewhere(agent: &Agent, from: u64) -> Search<'_> {
        const LARGEST: u64 = 8 << 20;
        const FARTHEST: u64 = 1 << 20;
        const ELSEWHERE: u64 = 16 << 10;
        let control_block = words::thread_pointer();
        let main = control_block == agent.main_thread;
        let end = if main { agent.stack_end } else { control_block };
        // The main thread's stack may be of any size: nothing else lies that high.
        let near = from < end && (main && end - from < 1 << 36 || end - from < LARGEST);
        let most = from + if near { FARTHEST } else { ELSEWHERE };
        // SAFETY: the thread's own words.
        let first = unsafe { (*words::get()).first_frame };
        let readable = if near && first != 0 { first } else { u64::MAX };
        Search { agent, end: if near && end < most { end } else { most }, readable }
    }

    /// Whether the frame of the thread's last event is alive, but below all that could be: then this is another stack.
    fn is_left_behind(&self, last: u64, lo: u64, start: u64) -> bool {
        last >= lo
            && last < start
            && existing(last).is_some_and(|cell| {
                // SAFETY: the return slot of a frame that this thread has had on its own stack.
                is_alive(cell, last) && self.agent.in_arena(unsafe { *((last - 8) as *const u64) })
            })
    }

    /// What the thread's last event says. `lo`: where its stack begins; `start`: the lowest CFA of interest.
    fn begin(&self, last: u64, lo: u64, start: u64) -> Begin {
        let mut at = last;
        if at == self.end {
            // The last search has found that no frame is alive.
            return Begin::At(self.end);
        }
        while let Some(cell) = existing(at) {
            let own = at >= lo && at < self.end;
            if own && at >= start && self.is_caller(cell, at) {
                // SAFETY: the frame's cell.
                return Begin::With(at, unsafe { (*cell).function });
            }
            // SAFETY: the frame's cell.
            let link = unsafe { (*cell).link };
            if link > LEFT {
                // Links lead to the thread's own stack, and up, if not from another one.
                at += 8 * u64::from(link - 1);
                if at >= self.end {
                    return Begin::At(self.end);
                }
                continue;
            }
            // A frame that is alive but below `start` has been left in an unknown way, or is about to begin.
            return Begin::At(if own && at >= start { at + 8 } else { start });
        }
        Begin::At(start)
    }

    /// The first live frame from a CFA on: its CFA and function.
    fn first(&self, start: u64) -> Option<(u64, u32)> {
        let mut at = start;
        while at <= self.end {
            let base = at & !(REGION - 1);
            let next = base + REGION;
            // The next region has a shadow of its own, or none.
            let Some(cells) = shadow(at, false) else {
                at = next;
                continue;
            };
            let stop = if self.end < next { self.end + 1 } else { next };
            while at < stop {
                // SAFETY: at - base < REGION, so the cell lies in the shadow.
                let cell = unsafe { &*((cells + 2 * (at - base)) as *const Cell) };
                if cell.return_address != 0 && self.is_caller(cell, at) {
                    return Some((at, cell.function));
                }
                at += 8;
            }
        }
        None
    }

    /// Whether the cell's frame is alive, as far as can be told.
    fn is_caller(&self, cell: *const Cell, at: u64) -> bool {
        is_alive(cell, at)
            // SAFETY: the return slot of a frame that is not below `readable`.
            && (at < self.readable || self.agent.in_arena(unsafe { *((at - 8) as *const u64) }))
    }
}

/// The frames of the thread's own stack above one that is being entered.
pub(crate) struct Frames<'a>(Search<'a>);

impl Frames<'_> {
    /// None: the frame is not on the thread's own stack.
    pub(crate) fn above(agent: &Agent, cfa: u64) -> Option<Frames<'_>> {
        let words = words::get();
        // SAFETY: the thread's own words.
        let (lo, end) = unsafe { ((*words).stack_lo, (*words).stack_hi) };
        (cfa >= lo && cfa < end).then_some(Frames(Search { agent, end, readable: cfa + 8 }))
    }

    /// The function of the frame with this CFA, if one is there and alive.
    pub(crate) fn is_alive(&self, at: u64) -> Option<u32> {
        if at < self.0.readable || at >= self.0.end {
            return None;
        }
        let cell = existing(at)?;
        // SAFETY: a cell in a shadow, which is never unmapped.
        self.0.is_caller(cell, at).then(|| unsafe { (*cell).function })
    }

    /// The newest live frame, by a search.
    pub(crate) fn first(&self) -> Option<Nearest> {
        self.0.first(self.0.readable).map(|(cfa, function)| self.nearest(function, cfa))
    }

    /// What leads to a live frame.
    pub(crate) fn nearest(&self, function: u32, cfa: u64) -> Nearest {
        Nearest { function: Some(function), link: cfa }
    }
}

/// Whether the cell's frame has neither returned nor been left by a jump.
fn is_alive(cell: *const Cell, cfa: u64) -> bool {
    // SAFETY: a cell in a shadow, which is never unmapped.
    let cell = unsafe { &*cell };
    cell.return_address != 0 && cell.return_address != cfa - 8 && cell.link != LEFT
}

/// Finds the extent of the calling thread's own stack. Not on the hot path.
pub(crate) fn find_own_stack(agent: &Agent) {
    let words = words::get();
    let control_block = words::thread_pointer();
    let (lo, hi) = if let Some(lo) = thread_stack(control_block) {
        (lo, control_block)
    } else if control_block == agent.main_thread || !sys::is_frozen() && sys::gettid() == sys::getpid() {
        (agent.stack_lo, agent.stack_end)
    } else {
        (0, 0)
    };
    // SAFETY: the thread's own words. `stack_hi` is written last: until then no address is within the extent.
    unsafe {
        (&raw mut (*words).stack_lo).write_volatile(lo);
        (&raw mut (*words).stack_hi).write_volatile(hi);
    }
}

/// The lower end of the stack of a thread that glibc has made: struct pthread, which begins with the control block,
/// has its address and size side by side, at a place that differs between versions (nptl/descr.h, `stackblock`). The
/// control block is at the stack's top. None: nothing there looks like it; the main thread's size is no size.
fn thread_stack(control_block: u64) -> Option<u64> {
    const WORDS: usize = 0x900 / 8;
    /// struct pthread, and what it is aligned to.
    const ON_TOP: u64 = 16 << 10;
    const LARGEST: u64 = 1 << 40;
    // SAFETY: struct pthread has at least 0x900 bytes in all versions that we support; the thread's own.
    let word = |n: usize| unsafe { *(control_block as *const u64).add(n) };
    (0..WORDS - 1).find_map(|n| {
        let (block, size) = (word(n), word(n + 1));
        let is = block != 0
            && block % 4096 == 0
            && size < LARGEST
            && block < control_block
            && (control_block..control_block + ON_TOP).contains(&block.wrapping_add(size));
        is.then_some(block)
    })
}
