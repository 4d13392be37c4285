//! Follows the calls of one buffer, from its events to steps.
//!
//! A buffer's events may be in any order, since anybody can write a file. So nothing is assumed: a call that ends is the innermost
//! open one of its function, or has no beginning; the stacks that are followed and their depths are bounded.

use std::collections::VecDeque;

use crate::cursor::Piece;
use crate::event::{Event, Open, OpenKind, State};
use crate::stack::{Call, Chain, Stacks};
use crate::step::{Begun, Ended, How, Overhead, Step, What};
use crate::trace::{Callee, Trace};

/// What is wanted of a buffer's calls. Times are in ticks of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'c> {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Only the steps of these threads, if there are any.
    pub(crate) tids: &'c [u32],
    /// By index: whether calls of the function are wanted, with those within them. `None`: all are.
    pub(crate) functions: Option<&'c [bool]>,
}

/// The memory that is left for open calls, as a number of calls.
pub(crate) type Depth = usize;

/// The greatest number of open calls of all buffers together.
pub(crate) const OPEN_MOST: Depth = 1 << 22;
/// How far below the innermost call one is looked for that ends.
const SEARCHED: usize = 64;
/// The number of functions whose indices a buffer remembers.
const REMEMBERED: usize = 256;

/// A buffer whose calls are followed.
pub(crate) struct Follower<'t> {
    trace: &'t Trace,
    wanted: Wanted<'t>,
    process: u32,
    buffer: u32,
    overhead: Overhead,
    tid: u32,
    stacks: Stacks,
    /// The time of the last step, which is not before those of the steps before it.
    now: u64,
    /// The time of the last event. The agent ends some calls at an earlier time than that of the event before.
    at: u64,
    /// The same without pauses.
    clock: u64,
    /// The sum of all pauses.
    pauses: u64,
    /// The number of calls that have begun.
    begun: u64,
    /// Whether nothing is shown yet.
    is_silent: bool,
    /// Whether calls of this thread are wanted.
    is_wanted: bool,
    /// Whether the buffer's first thread has been named, so that another stack is news.
    has_begun: bool,
    /// What was open when events were lost, until it is known what still is.
    lost: Option<Stacks>,
    /// When that was.
    lost_at: u64,
    /// Whether one of these calls is known to go on.
    goes_on: bool,
    /// The last step, which may get a value or become a [`What::Leaf`].
    pending: Option<Step>,
    out: VecDeque<Step>,
    is_too_deep: bool,
    remembered: Vec<Option<Callee>>,
}

impl<'t> Follower<'t> {
    pub(crate) fn new(trace: &'t Trace, process: u32, buffer: u32, wanted: Wanted<'t>) -> Follower<'t> {
        let recorded = trace.processes.get(process as usize);
        Follower {
            trace,
            wanted,
            process,
            buffer,
            overhead: recorded.map_or(Overhead::default(), |recorded| Overhead::of(&recorded.process)),
            tid: 0,
            stacks: Stacks::default(),
            now: 0,
            at: 0,
            clock: 0,
            pauses: 0,
            begun: 0,
            is_silent: wanted.from > 0,
            is_wanted: wanted.tids.is_empty(),
            has_begun: false,
            lost: None,
            lost_at: 0,
            goes_on: false,
            pending: None,
            out: VecDeque::new(),
            is_too_deep: false,
            remembered: vec![None; REMEMBERED],
        }
    }

    /// Returns the next step, if the pieces so far tell of one.
    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.out.pop_front()
    }

    pub(crate) fn peek(&self) -> Option<&Step> {
        self.out.front()
    }

    /// Adds what comes next. Returns `false` if nothing that is wanted can follow.
    pub(crate) fn add(&mut self, piece: Piece, room: &mut Depth) -> bool {
        match piece {
            Piece::Damage(_) => {}
            Piece::Begin { missing, state, time } => self.reset(missing, &state, time, room),
            Piece::Event(event) => {
                if let Some(time) = event.time() {
                    if time > self.wanted.to {
                        self.finish(self.wanted.to, room);
                        return false;
                    }
                    self.set_time(time);
                    if self.is_silent && time >= self.wanted.from {
                        self.settle(room);
                        self.begin_to_show();
                    }
                }
                self.event(event, room);
            }
        }
        true
    }

    /// There is nothing more. Calls that are open are so until a time.
    pub(crate) fn finish(&mut self, end: u64, room: &mut Depth) {
        self.flush();
        self.settle(room);
        self.set_time(end.min(self.wanted.to).max(self.now));
        if self.is_silent && self.now >= self.wanted.from {
            self.begin_to_show();
        }
        // The current stack runs up to now; the others have stood since they ceased to be current.
        loop {
            while !self.stacks.current.open.is_empty() {
                self.close(How::Open, room);
            }
            let Some(next) = self.stacks.any() else { break };
            self.stacks.change(next, self.clock, self.begun);
        }
        self.flush();
    }

    fn event(&mut self, event: Event, room: &mut Depth) {
        match event {
            Event::Pause { ticks } => return self.pauses = self.pauses.wrapping_add(ticks),
            Event::Data { bytes } => return self.attach(bytes),
            Event::Open { time, function } if self.lost.is_some() => {
                return self.told_open(time, function, room);
            }
            // It says which stack is current after events were lost.
            Event::Chain { chain, .. } if self.lost.is_some() && self.stacks.current.open.is_empty() => {
                return self.stacks.change(chain, self.clock, self.begun);
            }
            _ => self.settle(room),
        }
        match event {
            Event::Exit { function, .. } if self.becomes_leaf(function, How::Returned, room) => {}
            Event::Left { function, .. } if self.becomes_leaf(function, self.left(), room) => {}
            event => {
                self.flush();
                self.later(event, room);
            }
        }
    }

    fn later(&mut self, event: Event, room: &mut Depth) {
        match event {
            Event::Enter { function, .. } => self.begin(OpenKind::Call, function, room),
            Event::Jump { function, .. } => self.begin(OpenKind::Jump, function, room),
            Event::Inherited { function, .. } => self.begin(OpenKind::Inherited, function, room),
            Event::Mark { function, .. } => self.mark(function),
            Event::Exit { function, .. } => self.end(function, How::Returned, room),
            Event::Left { function, .. } => self.end(function, self.left(), room),
            Event::Chain { chain, .. } => {
                let is_news = self.has_begun && chain != self.stacks.number;
                self.has_begun = true;
                if self.stacks.is_crowded(chain) {
                    self.close_all(How::Unknown, room);
                }
                self.stacks.change(chain, self.clock, self.begun);
                if is_news {
                    self.push(What::Stack);
                }
            }
            Event::Lost { count } => {
                self.push(What::Lost(count));
                self.lose();
            }
            Event::Thread { tid } => {
                self.close_all(How::Unknown, room);
                self.stacks = Stacks::default();
                self.has_begun = false;
                self.set_tid(tid);
            }
            // One that follows no lost events says nothing new.
            Event::Open { .. } | Event::Pause { .. } | Event::Data { .. } => {}
        }
    }

    fn set_time(&mut self, time: u64) {
        // A pause between two events of the same time is after both: the agent has written one of them late.
        if time != self.at {
            self.clock = time.wrapping_sub(self.pauses);
        }
        self.at = time;
        self.now = self.now.max(time);
    }

    /// How a call ends that is left now. What is open when the process ends does not end by itself.
    fn left(&self) -> How {
        let end = self.trace.processes.get(self.process as usize).and_then(|recorded| recorded.end);
        if end.is_some_and(|end| self.now >= end) { How::Open } else { How::Left }
    }

    fn set_tid(&mut self, tid: u32) {
        self.tid = tid;
        self.is_wanted = self.wanted.tids.is_empty() || self.wanted.tids.contains(&tid);
    }

    fn callee(&mut self, number: u32) -> Callee {
        let place = number as usize % REMEMBERED;
        let known = self.remembered.get(place).copied().flatten().filter(|callee| callee.number == number);
        known.unwrap_or_else(|| {
            let callee = self.trace.callee(self.process, number);
            if let Some(place) = self.remembered.get_mut(place) {
                *place = Some(callee);
            }
            callee
        })
    }

    fn is_chosen(&self, function: Callee) -> bool {
        self.wanted.functions.is_none_or(|functions| {
            function.index.is_some_and(|index| functions.get(index as usize).copied().unwrap_or(false))
        })
    }

    /// Returns what [`Call::shown`] is of a call in the current stack, within all that are open there.
    fn shown(&self, function: Callee) -> u32 {
        let stack = &self.stacks.current;
        match stack.open.last() {
            Some(outer) if outer.shown > 0 => outer.shown.saturating_add(1),
            _ if !self.is_chosen(function) => 0,
            None if self.wanted.functions.is_none() => {
                u32::try_from(stack.beyond).unwrap_or(u32::MAX).saturating_add(1)
            }
            _ => 1,
        }
    }

    fn begin(&mut self, kind: OpenKind, function: u32, room: &mut Depth) {
        self.begun = self.begun.wrapping_add(1);
        let function = self.callee(function);
        let Some(less) = room.checked_sub(1).filter(|_| !self.stacks.current.is_full()) else {
            self.stacks.current.too_deep += 1;
            if !std::mem::replace(&mut self.is_too_deep, true) {
                self.push(What::TooDeep);
            }
            return;
        };
        *room = less;
        let shown = self.shown(function);
        let caller = self.stacks.current.open.last().map(|outer| outer.function);
        let call = Call::new(function, kind, self.now, shown);
        self.open(call);
        if let Some(depth) = shown.checked_sub(1) {
            let begun = Begun { function, caller, kind, depth, earlier: None, arguments: None };
            self.pending = Some(self.step(What::Begin(begun)));
        }
    }

    /// Adds a call to the current stack, which is measured from now on.
    fn open(&mut self, call: Call) {
        let (clock, pauses, begun) = (self.clock, self.pauses, self.begun);
        self.stacks.current.push(call, clock, pauses, begun);
    }

    fn mark(&mut self, function: u32) {
        let function = self.callee(function);
        if let Some(depth) = self.shown(function).checked_sub(1) {
            let (caller, kind) =
                (self.stacks.current.open.last().map(|outer| outer.function), OpenKind::Call);
            let begun = Begun { function, caller, kind, depth, earlier: None, arguments: None };
            self.pending = Some(self.step(What::Mark(begun)));
        }
    }

    /// If the pending step is the beginning of the call that ends now, both become one step.
    fn becomes_leaf(&mut self, function: u32, how: How, room: &mut Depth) -> bool {
        let is_it = self.stacks.current.too_deep == 0
            && self.stacks.current.open.last().is_some_and(|call| call.function.number == function)
            && matches!(&self.pending, Some(Step { what: What::Begin(_), .. }));
        if !is_it {
            return false;
        }
        let Some(ended) = self.pop_call(how, room) else { return false };
        if let Some(step) = &mut self.pending {
            step.what = match std::mem::replace(&mut step.what, What::Stack) {
                What::Begin(begun) => What::Leaf(begun, ended),
                other => other,
            };
        }
        true
    }

    /// The innermost open call of a function ends.
    fn end(&mut self, function: u32, how: How, room: &mut Depth) {
        let stack = &mut self.stacks.current;
        if stack.too_deep > 0 {
            stack.too_deep -= 1;
            return;
        }
        let inner = stack.open.iter().rev().take(SEARCHED);
        match inner.enumerate().find(|(_, call)| call.function.number == function).map(|(above, _)| above) {
            Some(above) => {
                for _ in 0..above {
                    self.close(How::Unknown, room);
                }
                self.close(how, room);
            }
            None => {
                let function = self.callee(function);
                if stack_shows(&self.stacks.current) || self.is_chosen(function) {
                    self.push(What::Orphan { function, how });
                }
                let stack = &mut self.stacks.current;
                stack.beyond = stack.beyond.saturating_sub(u64::from(stack.open.is_empty()));
            }
        }
    }

    /// Ends the innermost open call of the current stack now.
    fn close(&mut self, how: How, room: &mut Depth) {
        let is_shown = self.stacks.current.open.last().is_some_and(|call| call.shown > 0);
        if let Some(ended) = self.pop_call(how, room).filter(|_| is_shown) {
            self.flush();
            self.pending = Some(self.step(What::End(ended)));
        }
    }

    /// Removes the innermost open call of the current stack, which ends now.
    fn pop_call(&mut self, how: How, room: &mut Depth) -> Option<Ended> {
        let (clock, pauses, begun) = (self.clock, self.pauses, self.begun);
        let stack = &mut self.stacks.current;
        let call = stack.open.pop()?;
        *room += 1;
        let lasted = clock.wrapping_sub(stack.stood).saturating_sub(call.start);
        let within = begun.wrapping_sub(stack.others).wrapping_sub(call.begun);
        let outer = stack.open.last_mut();
        let caller = outer.as_ref().map(|outer| outer.function);
        if let Some(outer) = outer {
            outer.children = outer.children.wrapping_add(lasted).wrapping_add(self.overhead.outside);
        }
        Some(Ended {
            function: call.function,
            caller,
            kind: call.kind,
            how,
            depth: call.shown.saturating_sub(1),
            began: call.time,
            ended: self.now,
            is_earlier: call.is_earlier,
            lasted,
            duration: self.overhead.taken_out(lasted, within),
            own: lasted.wrapping_sub(call.children) as i64,
            within,
            paused: pauses.wrapping_sub(call.pauses),
            result: None,
        })
    }

    /// Ends all calls of all stacks now.
    fn close_all(&mut self, how: How, room: &mut Depth) {
        loop {
            while !self.stacks.current.open.is_empty() {
                self.close(how, room);
            }
            let Some(next) = self.stacks.any() else { break };
            self.stacks.change(next, self.clock, self.begun);
        }
        self.flush();
    }

    /// Events are missing: what is open is unknown from now on.
    fn lose(&mut self) {
        // What was open before an earlier loss is not known to be open still.
        let old = self.stacks.lose();
        if self.lost.is_none() {
            self.lost = Some(old);
            self.lost_at = self.now;
            self.goes_on = false;
        }
    }

    /// The agent says that a call is open, in the order of the calls. The time is that of its beginning, with all pauses since,
    /// of which some may be lost. So the calls that go on are those for which the lost ones are the same.
    fn told_open(&mut self, time: u64, function: u32, room: &mut Depth) {
        let Stacks { number, current, .. } = &self.stacks;
        let (number, depth, stood) = (*number, current.beyond + current.open.len() as u64, current.stood);
        let most = if self.goes_on { 0 } else { self.now.saturating_sub(self.lost_at) };
        let mut missing = 0;
        let pauses = self.pauses;
        let is_it = |call: &Call| {
            let began = call.start.wrapping_add(stood).wrapping_add(pauses);
            missing = time.wrapping_sub(began);
            call.function.number == function && missing <= most
        };
        let taken = self.lost.as_mut().and_then(|lost| lost.take(number, depth, is_it));
        if let Some((beyond, calls)) = taken {
            self.stacks.current.beyond = beyond;
            self.stacks.current.open.extend_from_slice(calls);
            self.pauses = self.pauses.wrapping_add(missing);
            self.clock = self.at.wrapping_sub(self.pauses);
            self.goes_on = true;
            return;
        }
        self.open_earlier(Open { function, time, kind: OpenKind::Call }, room);
    }

    /// The recorder says that a call is open, in the order of the calls, when events are missing.
    fn reopen(&mut self, open: Open, room: &mut Depth) {
        let stack = &self.stacks.current;
        let (number, depth) = (self.stacks.number, stack.beyond + stack.open.len() as u64);
        // It is the one that was open before, if it is at the same place and began at the same time.
        let is_it = |call: &Call| call.function.number == open.function && call.time == open.time;
        if let Some((beyond, calls)) = self.lost.as_mut().and_then(|lost| lost.take(number, depth, is_it)) {
            self.stacks.current.beyond = beyond;
            self.stacks.current.open.extend_from_slice(calls);
            return;
        }
        self.open_earlier(open, room);
    }

    /// A call is open that is not known to have been so before.
    fn open_earlier(&mut self, open: Open, room: &mut Depth) {
        self.end_lost(Some(self.stacks.number), room);
        let function = self.callee(open.function);
        let Some(less) = room.checked_sub(1).filter(|_| !self.stacks.current.is_full()) else {
            self.stacks.current.too_deep += 1;
            return;
        };
        *room = less;
        let shown = self.shown(function);
        self.open(Call { is_earlier: true, ..Call::new(function, open.kind, open.time, shown) });
        if !self.is_silent {
            self.announce_last();
        }
    }

    /// It is known now which calls are open after events were lost: all others have ended.
    fn settle(&mut self, room: &mut Depth) {
        if self.lost.is_some() {
            self.end_lost(None, room);
            self.lost = None;
        }
    }

    /// Ends the calls of one stack, or of all, that were open before events were lost.
    fn end_lost(&mut self, only: Option<u32>, room: &mut Depth) {
        let Some(mut lost) = self.lost.take() else { return };
        self.flush();
        std::mem::swap(&mut self.stacks, &mut lost);
        let mut numbers = self.stacks.numbers();
        numbers.retain(|&number| only.is_none_or(|only| only == number));
        for number in numbers {
            self.stacks.change(number, self.clock, self.begun);
            let (taken, before) = self.stacks.current.taken();
            while self.stacks.current.open.len() > taken {
                self.close(How::Unknown, room);
            }
            let (_, after) = self.stacks.current.taken();
            self.stacks.current.forget();
            // What has ended was called by the innermost call that goes on.
            if let Some(outer) = taken.checked_sub(1) {
                lost.charge(number, outer, after.wrapping_sub(before));
            }
        }
        self.flush();
        std::mem::swap(&mut self.stacks, &mut lost);
        self.lost = Some(lost);
    }

    /// Goes on with a state, because it is the first one or events before it are missing.
    fn reset(&mut self, missing: u64, state: &State, time: u64, room: &mut Depth) {
        self.flush();
        self.settle(room);
        self.set_time(time.min(self.wanted.to));
        if !self.has_begun && self.stacks.is_unused() {
            self.stacks.number = state.chain;
        }
        if self.is_silent && missing == 0 && time >= self.wanted.from {
            self.begin_to_show();
        }
        if missing > 0 {
            if self.tid != state.tid {
                self.close_all(How::Unknown, room);
                self.set_tid(state.tid);
            }
            if self.is_silent && time >= self.wanted.from {
                self.begin_to_show();
            }
            self.push(What::Missing(missing));
        } else {
            self.set_tid(state.tid);
        }
        self.lose();
        self.pauses = state.pauses;
        self.clock = self.at.wrapping_sub(self.pauses);
        self.has_begun |= state.tid != 0;
        let (current, others): (Vec<_>, Vec<_>) =
            state.chains.iter().partition(|(number, ..)| *number == state.chain);
        for (number, beyond, open) in others.into_iter().chain(current) {
            self.stacks.change(*number, self.clock, self.begun);
            self.stacks.current.beyond = *beyond;
            for &open in open {
                self.reopen(open, room);
            }
        }
        self.stacks.change(state.chain, self.clock, self.begun);
        self.settle(room);
    }

    /// What comes from now on is shown, and the calls that are open. They are measured from where the wanted part begins.
    fn begin_to_show(&mut self) {
        // The last step is before that part.
        self.pending = None;
        self.is_silent = false;
        let (now, at, clock) = (self.now, self.at, self.clock);
        self.now = self.wanted.from.min(now);
        self.set_time(self.now);
        let number = self.stacks.number;
        let mut numbers = self.stacks.numbers();
        numbers.retain(|&other| other != number);
        numbers.push(number);
        for number in numbers {
            self.stacks.change(number, self.clock, self.begun);
            let (clock, pauses, begun) = (self.clock, self.pauses, self.begun);
            let calls = std::mem::take(&mut self.stacks.current.open);
            for call in calls {
                self.stacks.current.push(Call { is_earlier: true, ..call }, clock, pauses, begun);
                self.announce_last();
            }
        }
        (self.now, self.at, self.clock) = (now, at, clock);
    }

    /// Shows the innermost open call as one that began earlier.
    fn announce_last(&mut self) {
        let [outer @ .., call] = self.stacks.current.open.as_slice() else { return };
        let caller = outer.last().map(|outer| outer.function);
        let (function, kind, earlier) = (call.function, call.kind, Some(call.time));
        if let Some(depth) = call.shown.checked_sub(1) {
            self.push(What::Begin(Begun { function, caller, kind, depth, earlier, arguments: None }));
        }
    }

    fn step(&self, what: What) -> Step {
        Step {
            time: self.now,
            process: self.process,
            tid: self.tid,
            buffer: self.buffer,
            chain: self.stacks.number,
            pauses: self.pauses,
            what,
        }
    }

    fn push(&mut self, what: What) {
        self.flush();
        self.pending = Some(self.step(what));
        self.flush();
    }

    /// Gives the pending step out.
    fn flush(&mut self) {
        if let Some(step) = self.pending.take().filter(|_| !self.is_silent && self.is_wanted) {
            self.out.push_back(step);
        }
    }

    /// Adds the bytes of arguments or of a result to the pending step.
    fn attach(&mut self, bytes: Vec<u8>) {
        let place = match self.pending.as_mut().map(|step| &mut step.what) {
            Some(What::Begin(begun) | What::Mark(begun)) => &mut begun.arguments,
            Some(What::End(ended) | What::Leaf(_, ended)) => &mut ended.result,
            _ => return,
        };
        place.get_or_insert(bytes);
    }
}

/// Whether the calls of a stack are shown.
fn stack_shows(stack: &Chain) -> bool {
    stack.open.last().is_some_and(|call| call.shown > 0)
}
