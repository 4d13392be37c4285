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
    /// The frame is already known; the fields are its CFA and function.
    With(u64, u32),
    /// The search begins at the cell of the frame with this CFA.
    At(u64),
}

/// A range of a stack in which callers are searched for.
pub(crate) struct Search<'a> {
    pub(crate) agent: &'a Agent,
    /// The end of the range. Above it, the search would find frames of other stacks.
    pub(crate) end: u64,
    /// From this address on, the stack is certainly mapped, so that a frame's return slot can be read. The
    /// slot must be checked, because an exception, a thread's end or an unknown kind of jump may have left
    /// frames without notice, and their memory may hold other data.
    pub(crate) readable: u64,
}

impl<'a> Search<'a> {
    /// Returns a search on a stack that is not, or may not be, the thread's own. A thread's stack ends at its
    /// thread control block, which glibc puts at the top, and the main thread's ends at the program's
    /// arguments. On other stacks, whose extent is unknown, the search covers a limited range.
    pub(crate) fn elsewhere(agent: &'a Agent, from: u64) -> Search<'a> {
        const LARGEST: u64 = 8 << 20;
        const FARTHEST: u64 = 1 << 20;
        const ELSEWHERE: u64 = 16 << 10;
        let control_block = words::thread_pointer();
        let main = control_block == agent.main_thread;
        let end = if main { agent.stack_end } else { control_block };
        // The main thread's stack may have any size, because no other stack lies above it.
        let near = from < end && (main && end - from < 1 << 36 || end - from < LARGEST);
        let most = from + if near { FARTHEST } else { ELSEWHERE };
        let first = words::get().first_frame().load(Ordering::Relaxed);
        let readable = if near && first != 0 { first } else { u64::MAX };
        Search { agent, end: if near && end < most { end } else { most }, readable }
    }

    /// Returns whether the frame of the thread's last event is alive but lies below every frame that can be
    /// alive on this stack. In that case, this is another stack.
    pub(crate) fn is_left_behind(&self, last: u64, lo: u64, start: u64) -> bool {
        last >= lo
            && last < start
            && existing(last).is_some_and(|cell| {
                // SAFETY: the cell says that this thread has had a frame there, on its own stack, which stays readable.
                is_alive(cell, last) && self.agent.in_arena(unsafe { *((last - 8) as *const u64) })
            })
    }

    /// Returns how the search begins according to the thread's last event. `lo` is the lowest address of the
    /// thread's stack, and `start` the lowest CFA of interest.
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
                // Links refer to the thread's own stack, and upwards unless they come from another stack.
                at += 8 * u64::from(link - 1);
                if at >= self.end {
                    return Begin::At(self.end);
                }
                continue;
            }
            // A frame that seems alive but is below `start` has been left in an unknown way, or is just being
            // entered.
            return Begin::At(if own && at >= start { at + 8 } else { start });
        }
        Begin::At(start)
    }

    /// Returns the CFA and function of the lowest live frame whose CFA is at least `start`, or `None` if
    /// there is none.
    pub(crate) fn first(&self, start: u64) -> Option<(u64, u32)> {
        let mut at = start;
        while at <= self.end {
            let next = (at & !(REGION - 1)) + REGION;
            // The next region may have another shadow, or none.
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

    /// Returns whether the cell's frame is alive, as far as the cell and the return slot show.
    fn is_caller(&self, cell: CellRef, at: u64) -> bool {
        is_alive(cell, at)
            // SAFETY: the return slot is not below `readable`, from which on the stack is mapped.
            && (at < self.readable || self.agent.in_arena(unsafe { *((at - 8) as *const u64) }))
    }
}

/// The frames on the thread's own stack above a frame that is being entered.
pub(crate) struct Frames<'a>(Search<'a>);

impl Frames<'_> {
    /// Returns the frames above the one with this CFA, or `None` if that frame is not on the thread's own
    /// stack.
    pub(crate) fn above(agent: &Agent, cfa: u64) -> Option<Frames<'_>> {
        let words = words::get();
        let (lo, end) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
        (cfa >= lo && cfa < end).then_some(Frames(Search { agent, end, readable: cfa + 8 }))
    }

    /// Returns the function of the frame with this CFA, or `None` if there is no live frame.
    pub(crate) fn is_alive(&self, at: u64) -> Option<u32> {
        if at < self.0.readable || at >= self.0.end {
            return None;
        }
        let cell = existing(at)?;
        self.0.is_caller(cell, at).then(|| cell.function().load(Ordering::Relaxed))
    }

    /// Searches for the newest live frame, and returns it.
    pub(crate) fn first(&self) -> Option<Nearest> {
        self.0.first(self.0.readable).map(|(cfa, function)| self.nearest(function, cfa))
    }

    /// Returns the search result that refers to a live frame of `function`.
    pub(crate) fn nearest(&self, function: u32, cfa: u64) -> Nearest {
        Nearest { function: Some(function), link: cfa }
    }
}

/// Returns whether the cell's frame has neither returned nor been left by a jump.
pub(crate) fn is_alive(cell: CellRef, cfa: u64) -> bool {
    let return_address = cell.return_address().load(Ordering::Relaxed);
    return_address != 0 && return_address != cfa - 8 && cell.link().load(Ordering::Relaxed) != LEFT
}
