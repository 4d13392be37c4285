//! Searches for the newest frame on a stack that is still alive.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "return slots on the calling thread's stack are read")]

use crate::hot::cells::{REGION, cell, existing, shadow};
use crate::hot::nearest::Nearest;
use crate::os::words;
use crate::program::agent::Agent;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::LEFT;
use gprofinject_abi::shared::CellRef;

/// How a search on the thread's own stack begins.
pub(crate) enum Begin {
    /// It is over: CFA and function of the frame.
    With(u64, u32),
    /// With the cell of a frame with this CFA.
    At(u64),
}

/// Where callers are looked for.
pub(crate) struct Search<'a> {
    pub(crate) agent: &'a Agent,
    /// Beyond it other stacks' frames would be found.
    pub(crate) end: u64,
    /// From here on the stack is there for certain, and what a frame's return slot holds can be looked at: an
    /// exception, a thread's end or an unknown kind of jump may have left frames without a word, and other things
    /// stand in their place.
    pub(crate) readable: u64,
}

impl<'a> Search<'a> {
    /// On a stack that is not the thread's own, or not known to be. A thread's stack ends at its thread control block,
    /// which glibc puts on top, the main thread's at its arguments; of other stacks, whose extent nobody tells, a piece
    /// is looked at.
    pub(crate) fn elsewhere(agent: &'a Agent, from: u64) -> Search<'a> {
        const LARGEST: u64 = 8 << 20;
        const FARTHEST: u64 = 1 << 20;
        const ELSEWHERE: u64 = 16 << 10;
        let control_block = words::thread_pointer();
        let main = control_block == agent.main_thread;
        let end = if main { agent.stack_end } else { control_block };
        // The main thread's stack may be of any size: nothing else lies that high.
        let near = from < end && (main && end - from < 1 << 36 || end - from < LARGEST);
        let most = from + if near { FARTHEST } else { ELSEWHERE };
        let first = words::get().first_frame().load(Ordering::Relaxed);
        let readable = if near && first != 0 { first } else { u64::MAX };
        Search { agent, end: if near && end < most { end } else { most }, readable }
    }

    /// Whether the frame of the thread's last event is alive, but below all that could be: then this is another stack.
    pub(crate) fn is_left_behind(&self, last: u64, lo: u64, start: u64) -> bool {
        last >= lo
            && last < start
            && existing(last).is_some_and(|cell| {
                // SAFETY: the cell says that this thread has had a frame there, on its own stack, which stays readable.
                is_alive(cell, last) && self.agent.in_arena(unsafe { *((last - 8) as *const u64) })
            })
    }

    /// What the thread's last event says. `lo`: where its stack begins; `start`: the lowest CFA of interest.
    pub(crate) fn begin(&self, last: u64, lo: u64, start: u64) -> Begin {
        let mut at = last;
        if at == self.end {
            // The last search has found that no frame is alive.
            return Begin::At(self.end);
        }
        while let Some(cell) = existing(at) {
            let own = at >= lo && at < self.end;
            if own && at >= start && self.is_caller(cell, at) {
                return Begin::With(at, cell.function().load(Ordering::Relaxed));
            }
            let link = cell.link().load(Ordering::Relaxed);
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
    pub(crate) fn first(&self, start: u64) -> Option<(u64, u32)> {
        let mut at = start;
        while at <= self.end {
            let next = (at & !(REGION - 1)) + REGION;
            // The next region has a shadow of its own, or none.
            let Some(cells) = shadow(at, false) else {
                at = next;
                continue;
            };
            let stop = if self.end < next { self.end + 1 } else { next };
            while at < stop {
                let cell = cell(cells, at);
                if cell.return_address().load(Ordering::Relaxed) != 0 && self.is_caller(cell, at) {
                    return Some((at, cell.function().load(Ordering::Relaxed)));
                }
                at += 8;
            }
        }
        None
    }

    /// Whether the cell's frame is alive, as far as can be told.
    fn is_caller(&self, cell: CellRef, at: u64) -> bool {
        is_alive(cell, at)
            // SAFETY: the return slot is not below `readable`, from where on the stack is there.
            && (at < self.readable || self.agent.in_arena(unsafe { *((at - 8) as *const u64) }))
    }
}

/// The frames of the thread's own stack above one that is being entered.
pub(crate) struct Frames<'a>(Search<'a>);

impl Frames<'_> {
    /// None: the frame is not on the thread's own stack.
    pub(crate) fn above(agent: &Agent, cfa: u64) -> Option<Frames<'_>> {
        let words = words::get();
        let (lo, end) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
        (cfa >= lo && cfa < end).then_some(Frames(Search { agent, end, readable: cfa + 8 }))
    }

    /// The function of the frame with this CFA, if one is there and alive.
    pub(crate) fn is_alive(&self, at: u64) -> Option<u32> {
        if at < self.0.readable || at >= self.0.end {
            return None;
        }
        let cell = existing(at)?;
        self.0.is_caller(cell, at).then(|| cell.function().load(Ordering::Relaxed))
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
pub(crate) fn is_alive(cell: CellRef, cfa: u64) -> bool {
    let return_address = cell.return_address().load(Ordering::Relaxed);
    return_address != 0 && return_address != cfa - 8 && cell.link().load(Ordering::Relaxed) != LEFT
}
