//! Searches a stack for the newest frame that is still alive.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "return slots on the calling thread's stack are read")]

use crate::hot::bare;
use crate::hot::blocks::{self, BLOCK};
use crate::hot::cells::{self, REGION, cell, distance, existing, is_alive, is_in_use, shadow, takes_turns};
use crate::hot::clear;
use crate::hot::ranges;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::interned;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::LEFT;
use gprofinject_abi::shared::CellRef;

/// The length in bytes of the stack that gates search by themselves.
pub(crate) const NEAR: u64 = 2048;

/// The start of a search on the thread's own stack.
pub(crate) enum Begin {
    /// The search is already over; these are the CFA and the function of the frame.
    With(u64, u32),
    /// The search begins at the cell of a frame with this CFA.
    At(u64),
}

/// The range of the stack in which a search looks for callers.
pub(crate) struct Search<'a> {
    pub(crate) agent: &'a Agent,
    /// Whose frames are looked for; `None` means all.
    pub(crate) domain: Option<Domain>,
    /// The end of the search. Beyond it, frames of other stacks would be found.
    pub(crate) end: u64,
    /// From this address on, the stack is certainly mapped, so the search can check the contents of a frame's return
    /// slot. That check is needed because an exception, a thread's end or an unknown kind of jump may have left
    /// frames without marking their cells, and other data is in their place.
    pub(crate) readable: u64,
    /// Whether all of this is the calling thread's own stack.
    pub(crate) is_own: bool,
    /// Whether the search may close the cells there. It may not if a signal handler is called: the signal may have interrupted the agent
    /// just before it fills one of them.
    pub(crate) closes: bool,
}

impl<'a> Search<'a> {
    /// Returns a search on a stack that is not the thread's own, or not known to be. A thread's stack ends at its
    /// thread control block, which glibc places at the top, and the main thread's stack ends at its arguments; of
    /// other stacks, whose extent is unknown, a limited part is searched.
    pub(crate) fn elsewhere(agent: &'a Agent, domain: Option<Domain>, from: u64) -> Search<'a> {
        const LARGEST: u64 = 8 << 20;
        const FARTHEST: u64 = 1 << 20;
        const ELSEWHERE: u64 = 16 << 10;
        let control_block = words::thread_pointer();
        let main = control_block == agent.main_thread;
        let end = if main { agent.stack_end } else { words::stack_end() };
        // The main thread's stack may have any size: no other mapping is above it.
        let near = from < end && (main && end - from < 1 << 36 || end - from < LARGEST);
        let most = from + if near { FARTHEST } else { ELSEWHERE };
        let first = words::get().first_frame().load(Ordering::Relaxed);
        let readable = if near && first != 0 { first } else { u64::MAX };
        Search {
            agent,
            domain,
            end: if near && end < most { end } else { most },
            readable,
            is_own: false,
            closes: false,
        }
    }

    /// Returns whether the frame of the thread's last event is alive, but below all possible frames: then this is
    /// another stack.
    pub(crate) fn is_left_behind(&self, last: u64, lo: u64, start: u64) -> bool {
        last >= lo
            && last < start
            && existing(last).is_some_and(|cell| {
                // SAFETY: the cell shows that this thread has had a frame there, on its own stack, which stays
                // readable.
                let slot = unsafe { *((last - 8) as *const u64) };
                self.is_of_domain(cell) && is_alive(cell) && self.agent.in_thunks(slot)
            })
    }

    /// Returns where a search begins after the thread's last event. `lo` is the lowest address of its stack, and
    /// `start` the lowest CFA to be considered.
    pub(crate) fn begin(&self, last: u64, lo: u64, start: u64) -> Begin {
        if last == self.end {
            // The last search has found that no frame is alive.
            return Begin::At(self.end);
        }
        // A frame below `start` has been left in an unknown way, or is just being entered.
        if last < lo || last >= self.end || last < start {
            return Begin::At(start);
        }
        match existing(last).and_then(|cell| self.caller(cell, last)) {
            Some(function) => Begin::With(last, function),
            None => Begin::At(last + 8),
        }
    }

    /// Returns the CFA and the function of the first live frame from a CFA on, or `None` if there is none. On the thread's own stack, the part
    /// without any live frame may become its clear part.
    pub(crate) fn first(&self, start: u64) -> Option<(u64, u32)> {
        let part = if self.is_own { clear::start() } else { u64::MAX };
        let is_programs = self.is_own && self.domain == Some(Domain::Program);
        // In the bare part, no frame of the program is alive.
        let bare = if is_programs { bare::start() } else { u64::MAX };
        let end = if self.end < bare { self.end } else { bare.wrapping_sub(1) };
        // Whether a frame may be alive again that has vanished from the stack, but not returned.
        let mut is_sure = is_programs && self.closes && end + 1 >= bare;
        let mut at = start;
        // From here on up to `at`, no cell is in use. This number of bytes of that have been searched, and not skipped.
        let mut free_from = start;
        let mut searched = 0;
        let mut found = None;
        'search: while at <= end {
            let next = (at & !(REGION - 1)) + REGION;
            // The next region may have another shadow, or none.
            let Some(cells) = shadow(at) else {
                at = next;
                continue;
            };
            at = blocks::next_open(cells, at);
            if at >= next {
                continue;
            }
            if at >= part {
                let end = clear::skip(at);
                if end != at {
                    at = end;
                    continue;
                }
            }
            let next = (at & !(BLOCK - 1)) + BLOCK;
            let mut stop = if end < next { end + 1 } else { next };
            if at < part && part < stop {
                stop = part;
            }
            while at < stop {
                let cell = cell(cells, at);
                if is_in_use(cell) || takes_turns(cells, at) {
                    if let Some(function) = self.caller(cell, at) {
                        found = Some((at, function));
                        break 'search;
                    }
                    is_sure = is_sure && !self.is_of_domain(cell) && !takes_turns(cells, at);
                    free_from = at + 8;
                    searched = 0;
                } else {
                    searched += 8;
                }
                at += 8;
            }
        }
        if self.closes && clear::is_time(searched / 8) {
            let to = if at < end { at } else { end & !7 };
            ranges::close(free_from, to);
            clear::set(free_from, to);
        }
        if found.is_none() && is_sure {
            bare::begin_at(start);
        }
        found
    }

    /// Returns whether the function that the cell names belongs to the set whose frames are looked for.
    fn is_of_domain(&self, cell: CellRef) -> bool {
        self.domain.is_none_or(|domain| domain == Domain::of(cell.function().load(Ordering::Relaxed)))
    }

    /// Returns the function of the cell's frame, if the frame is alive, as far as that can be determined, and one of
    /// those that are looked for.
    fn caller(&self, cell: CellRef, at: u64) -> Option<u32> {
        if at < self.readable {
            let is_wanted = is_alive(cell) && self.is_of_domain(cell);
            return is_wanted.then(|| cell.function().load(Ordering::Relaxed));
        }
        if !is_alive(cell) && !interned::take_turns() {
            return None;
        }
        // SAFETY: the return slot is not below `readable`, the address from which the stack is mapped.
        let label = unsafe { *((at - 8) as *const u64) };
        // An interned frame is alive as long as its label is there: its cell may be that of another frame meanwhile.
        if !is_alive(cell) && (distance(cell) == LEFT || interned::at(label).is_none()) {
            return None;
        }
        if !self.agent.in_thunks(label) {
            return None;
        }
        let function = cells::function(cell, at, label);
        if self.domain.is_none_or(|domain| domain == Domain::of(function)) {
            return Some(function);
        }
        // A function of the program has tail-called a library's, which now has the frame. While it runs, the program's
        // function still counts as the caller in the program's own view. Its exit label is in the return slot.
        let left = self.domain == Some(Domain::Program) && self.agent.program.in_arena(label);
        if left { self.agent.program.function_of_label(label) } else { None }
    }
}

/// Returns an address up to which the stack that contains an address extends at most, and whether it is certainly mapped up to
/// there. This also holds where a part of the thread's own stack serves as another one.
pub(crate) fn end_of_any_stack(agent: &Agent, from: u64) -> (u64, bool) {
    /// The kernel maps nothing so near below the end of the main thread's stack (`mmap_base`, arch/x86/mm/mmap.c).
    const GAP: u64 = 128 << 20;
    const LARGEST: u64 = 8 << 20;
    let words = words::get();
    let (lo, hi) = (words.stack_lo().load(Ordering::Relaxed), words.stack_hi().load(Ordering::Relaxed));
    let is_main = words::thread_pointer() == agent.main_thread || hi == agent.stack_end;
    let end = match hi {
        0 if is_main => agent.stack_end,
        0 => words::stack_end(),
        hi => hi,
    };
    if lo != 0 && (lo..end).contains(&from) {
        return (end, !is_main || end - from <= GAP);
    }
    let most = from.saturating_add(LARGEST);
    (if from < end { end.min(most) } else { most }, false)
}
