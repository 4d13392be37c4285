//! Follows the calls of one buffer: converts its events to steps.
//!
//! A file may come from anybody, so events may be in any order. Where events are missing, the calls that were open before the gap are
//! compared with those that are open after it.

use crate::calls::{Calls, Depth, Wanted};
use crate::cursor::Piece;
use crate::event::{Event, Open, OpenKind, State};
use crate::stack::{Call, Stacks};
use crate::step::{How, Step, What};
use crate::trace::Trace;

/// A follower of one buffer's calls.
pub(crate) struct Follower<'t> {
    calls: Calls<'t>,
    /// Whether the first stack of the present thread is known, so that a change of the stack is a step.
    has_begun: bool,
    /// The calls that were open when events were lost, until it is known which of them still are.
    lost: Option<Stacks>,
    /// The time of the last step before events were lost.
    lost_at: u64,
    /// Whether one of these calls is known to be still open.
    is_continued: bool,
}

impl<'t> Follower<'t> {
    pub(crate) fn new(trace: &'t Trace, process: u32, buffer: u32, wanted: Wanted<'t>) -> Follower<'t> {
        Follower {
            calls: Calls::new(trace, process, buffer, wanted),
            has_begun: false,
            lost: None,
            lost_at: 0,
            is_continued: false,
        }
    }

    /// Returns the next step, if the pieces so far determine one.
    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.calls.pop()
    }

    pub(crate) fn peek(&self) -> Option<&Step> {
        self.calls.peek()
    }

    /// Adds the next piece. Returns `false` if no wanted step can follow.
    pub(crate) fn add(&mut self, piece: Piece, room: &mut Depth) -> bool {
        match piece {
            Piece::Damage(_) => {}
            Piece::Begin { missing, state, time } => self.reset(missing, &state, time, room),
            Piece::Event(event) => {
                if let Some(time) = event.time() {
                    if time > self.calls.wanted.to {
                        self.finish(self.calls.wanted.to, room);
                        return false;
                    }
                    self.calls.set_time(time);
                    if self.calls.is_silent && time >= self.calls.wanted.from {
                        self.resolve_loss(room);
                        self.calls.begin_to_show();
                    }
                }
                self.event(event, room);
            }
        }
        true
    }

    /// Ends the buffer. Calls that are still open are shown as open up to the time `end`.
    pub(crate) fn finish(&mut self, end: u64, room: &mut Depth) {
        self.calls.flush();
        self.resolve_loss(room);
        self.calls.set_time(end.min(self.calls.wanted.to).max(self.calls.now));
        if self.calls.is_silent && self.calls.now >= self.calls.wanted.from {
            self.calls.begin_to_show();
        }
        // Calls of the current stack run up to now; those of other stacks have not run since the thread left their stacks.
        loop {
            while !self.calls.stacks.current.open.is_empty() {
                self.calls.close(How::Open, room);
            }
            let Some(next) = self.calls.stacks.any() else { break };
            self.calls.stacks.change(next, self.calls.clock, self.calls.begun);
        }
        self.calls.flush();
    }

    fn event(&mut self, event: Event, room: &mut Depth) {
        match event {
            Event::Pause { ticks } => return self.calls.pauses = self.calls.pauses.wrapping_add(ticks),
            Event::Data { bytes } => return self.calls.attach(bytes),
            Event::Open { time, function } if self.lost.is_some() => {
                return self.listed_open(time, function, room);
            }
            // The first event after a loss names the current stack.
            Event::Chain { chain, .. }
                if self.lost.is_some() && self.calls.stacks.current.open.is_empty() =>
            {
                return self.calls.stacks.change(chain, self.calls.clock, self.calls.begun);
            }
            _ => self.resolve_loss(room),
        }
        match event {
            Event::Exit { function, .. } if self.calls.becomes_leaf(function, How::Returned, room) => {}
            Event::Left { function, .. } if self.calls.becomes_leaf(function, self.calls.left(), room) => {}
            event => {
                self.calls.flush();
                self.later(event, room);
            }
        }
    }

    fn later(&mut self, event: Event, room: &mut Depth) {
        match event {
            Event::Enter { function, .. } => self.calls.begin(OpenKind::Call, function, room),
            Event::Jump { function, .. } => self.calls.begin(OpenKind::Jump, function, room),
            Event::Inherited { function, .. } => self.calls.begin(OpenKind::Inherited, function, room),
            Event::Mark { function, .. } => self.calls.mark(function),
            Event::Exit { function, .. } => self.calls.end(function, How::Returned, room),
            Event::Left { function, .. } => self.calls.end(function, self.calls.left(), room),
            Event::Chain { chain, .. } => {
                let is_news = self.has_begun && chain != self.calls.stacks.number;
                self.has_begun = true;
                if self.calls.stacks.is_crowded(chain) {
                    self.calls.close_all(How::Unknown, room);
                }
                self.calls.stacks.change(chain, self.calls.clock, self.calls.begun);
                if is_news {
                    self.calls.push(What::Stack);
                }
            }
            Event::Lost { count } => {
                self.calls.push(What::Lost(count));
                self.lose();
            }
            Event::Thread { tid } => {
                self.calls.close_all(How::Unknown, room);
                self.calls.stacks = Stacks::default();
                self.has_begun = false;
                self.calls.set_tid(tid);
            }
            // An open call that is listed without a loss is known already. The others have been handled by the caller.
            Event::Open { .. } | Event::Pause { .. } | Event::Data { .. } => {}
        }
    }

    /// Handles missing events: from now on, the open calls are unknown.
    fn lose(&mut self) {
        // After an earlier loss that is not resolved yet, the calls before that loss are kept for the comparison.
        let old = self.calls.stacks.lose();
        if self.lost.is_none() {
            self.lost = Some(old);
            self.lost_at = self.calls.now;
            self.is_continued = false;
        }
    }

    /// Handles an open call that the agent lists after a loss, from the outermost call inwards.
    ///
    /// `time` is the call's beginning plus all pauses since then. Some of these pauses may be lost, by the same sum for all calls that
    /// were open throughout the loss. So a call is still open if its time differs from the known one by that sum.
    fn listed_open(&mut self, time: u64, function: u32, room: &mut Depth) {
        let Stacks { number, current, .. } = &self.calls.stacks;
        let (number, depth, stood) = (*number, current.beyond + current.open.len() as u64, current.stood);
        let most = if self.is_continued { 0 } else { self.calls.now.saturating_sub(self.lost_at) };
        let mut missing = 0;
        let pauses = self.calls.pauses;
        let is_it = |call: &Call| {
            let began = call.start.wrapping_add(stood).wrapping_add(pauses);
            missing = time.wrapping_sub(began);
            call.function.number == function && missing <= most
        };
        let taken = self.lost.as_mut().and_then(|lost| lost.take(number, depth, is_it));
        if let Some((beyond, calls)) = taken {
            self.calls.stacks.current.beyond = beyond;
            self.calls.stacks.current.open.extend_from_slice(calls);
            self.calls.pauses = self.calls.pauses.wrapping_add(missing);
            self.calls.clock = self.calls.at.wrapping_sub(self.calls.pauses);
            self.is_continued = true;
            return;
        }
        self.open_earlier(Open { function, time, kind: OpenKind::Call }, room);
    }

    /// Handles an open call of a chunk's state after missing events, from the outermost call inwards.
    fn reopen(&mut self, open: Open, room: &mut Depth) {
        let stack = &self.calls.stacks.current;
        let (number, depth) = (self.calls.stacks.number, stack.beyond + stack.open.len() as u64);
        // The call was open before if a call of the same function began at the same time at the same depth.
        let is_it = |call: &Call| call.function.number == open.function && call.time == open.time;
        if let Some((beyond, calls)) = self.lost.as_mut().and_then(|lost| lost.take(number, depth, is_it)) {
            self.calls.stacks.current.beyond = beyond;
            self.calls.stacks.current.open.extend_from_slice(calls);
            return;
        }
        self.open_earlier(open, room);
    }

    /// Opens a call that began in a gap, or before the buffer's first event.
    fn open_earlier(&mut self, open: Open, room: &mut Depth) {
        self.end_lost(Some(self.calls.stacks.number), room);
        let function = self.calls.callee(open.function);
        let Some(less) = room.checked_sub(1).filter(|_| !self.calls.stacks.current.is_full()) else {
            self.calls.stacks.current.too_deep += 1;
            return;
        };
        *room = less;
        let shown = self.calls.shown(function);
        self.calls.open(Call { is_earlier: true, ..Call::new(function, open.kind, open.time, shown) });
        if !self.calls.is_silent {
            self.calls.announce_last();
        }
    }

    /// Resolves a loss when all calls that are still open have been listed: all others have ended.
    fn resolve_loss(&mut self, room: &mut Depth) {
        if self.lost.is_some() {
            self.end_lost(None, room);
            self.lost = None;
        }
    }

    /// Ends the calls of one stack, or of all stacks, that were open before a loss and have not been listed since.
    fn end_lost(&mut self, only: Option<u32>, room: &mut Depth) {
        let Some(mut lost) = self.lost.take() else { return };
        self.calls.flush();
        std::mem::swap(&mut self.calls.stacks, &mut lost);
        let mut numbers = self.calls.stacks.numbers();
        numbers.retain(|&number| only.is_none_or(|only| only == number));
        for number in numbers {
            self.calls.stacks.change(number, self.calls.clock, self.calls.begun);
            let (taken, before) = self.calls.stacks.current.taken();
            while self.calls.stacks.current.open.len() > taken {
                self.calls.close(How::Unknown, room);
            }
            let (_, after) = self.calls.stacks.current.taken();
            self.calls.stacks.current.forget();
            // The innermost call that is still open has made the calls that have ended.
            if let Some(outer) = taken.checked_sub(1) {
                lost.charge(number, outer, after.wrapping_sub(before));
            }
        }
        self.calls.flush();
        std::mem::swap(&mut self.calls.stacks, &mut lost);
        self.lost = Some(lost);
    }

    /// Continues with the state before a chunk, which is the buffer's first chunk or follows missing events.
    fn reset(&mut self, missing: u64, state: &State, time: u64, room: &mut Depth) {
        self.calls.flush();
        self.resolve_loss(room);
        self.calls.set_time(time.min(self.calls.wanted.to));
        if !self.has_begun && self.calls.stacks.is_unused() {
            self.calls.stacks.number = state.chain;
        }
        if self.calls.is_silent && missing == 0 && time >= self.calls.wanted.from {
            self.calls.begin_to_show();
        }
        if missing > 0 {
            if self.calls.tid != state.tid {
                self.calls.close_all(How::Unknown, room);
                self.calls.set_tid(state.tid);
            }
            if self.calls.is_silent && time >= self.calls.wanted.from {
                self.calls.begin_to_show();
            }
            self.calls.push(What::Missing(missing));
        } else {
            self.calls.set_tid(state.tid);
        }
        self.lose();
        self.calls.pauses = state.pauses;
        self.calls.clock = self.calls.at.wrapping_sub(self.calls.pauses);
        self.has_begun |= state.tid != 0;
        let (current, others): (Vec<_>, Vec<_>) =
            state.chains.iter().partition(|(number, ..)| *number == state.chain);
        for (number, beyond, open) in others.into_iter().chain(current) {
            self.calls.stacks.change(*number, self.calls.clock, self.calls.begun);
            self.calls.stacks.current.beyond = *beyond;
            for &open in open {
                self.reopen(open, room);
            }
        }
        self.calls.stacks.change(state.chain, self.calls.clock, self.calls.begun);
        self.resolve_loss(room);
    }
}
