//! The open calls of one buffer, and the steps of their beginnings and ends.
//!
//! The file is not trusted. The end of a call belongs to the innermost open call of its function, or to no known call; the number of
//! stacks and their depths are bounded.

use std::collections::VecDeque;

use crate::event::OpenKind;
use crate::stack::{Call, Chain, Stacks};
use crate::step::{Begun, Ended, How, Overhead, Step, What};
use crate::trace::{Callee, Trace};

/// The selection of a buffer's steps. Times are in ticks of the process's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'c> {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The threads whose steps are wanted; if empty, all.
    pub(crate) tids: &'c [u32],
    /// For each function index, whether calls of the function and the calls within them are wanted. `None` selects all.
    pub(crate) functions: Option<&'c [bool]>,
}

/// The number of further open calls for which memory is left.
pub(crate) type Depth = usize;

/// The maximum number of open calls of all buffers together.
pub(crate) const OPEN_MOST: Depth = 1 << 22;
/// The number of innermost calls among which a call that ends is searched for.
const SEARCHED: usize = 64;
/// The number of functions whose indices are cached for a buffer.
const REMEMBERED: usize = 256;

/// The open calls of a buffer.
pub(crate) struct Calls<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) wanted: Wanted<'t>,
    pub(crate) process: u32,
    buffer: u32,
    overhead: Overhead,
    pub(crate) tid: u32,
    pub(crate) stacks: Stacks,
    /// The time of the last step. Times of steps never decrease.
    pub(crate) now: u64,
    /// The time of the last event. It may be earlier than that of the event before, because the agent ends some calls at an earlier
    /// time.
    pub(crate) at: u64,
    /// The time of the last event minus the pauses.
    pub(crate) clock: u64,
    /// The sum of all pauses.
    pub(crate) pauses: u64,
    /// The number of calls that have begun.
    pub(crate) begun: u64,
    /// Whether the wanted part has not begun, so that no steps are returned.
    pub(crate) is_silent: bool,
    /// Whether the steps of the present thread are wanted.
    is_wanted: bool,
    /// The last step, which may still get arguments or a result, or become a [`What::Leaf`].
    pending: Option<Step>,
    out: VecDeque<Step>,
    is_too_deep: bool,
    remembered: Vec<Option<Callee>>,
}

impl<'t> Calls<'t> {
    pub(crate) fn new(trace: &'t Trace, process: u32, buffer: u32, wanted: Wanted<'t>) -> Calls<'t> {
        let recorded = trace.processes.get(process as usize);
        Calls {
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
            pending: None,
            out: VecDeque::new(),
            is_too_deep: false,
            remembered: vec![None; REMEMBERED],
        }
    }

    /// Returns the next step, if the pieces so far determine one.
    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.out.pop_front()
    }

    pub(crate) fn peek(&self) -> Option<&Step> {
        self.out.front()
    }

    pub(crate) fn set_time(&mut self, time: u64) {
        // If two events have the same time, a pause between them comes after both, because the agent has written one of them late.
        if time != self.at {
            self.clock = time.wrapping_sub(self.pauses);
        }
        self.at = time;
        self.now = self.now.max(time);
    }

    /// Returns how a call ends that is left at the present time: calls that are open when the process ends are not left, but open.
    pub(crate) fn left(&self) -> How {
        let end = self.trace.processes.get(self.process as usize).and_then(|recorded| recorded.end);
        if end.is_some_and(|end| self.now >= end) { How::Open } else { How::Left }
    }

    pub(crate) fn set_tid(&mut self, tid: u32) {
        self.tid = tid;
        self.is_wanted = self.wanted.tids.is_empty() || self.wanted.tids.contains(&tid);
    }

    pub(crate) fn callee(&mut self, number: u32) -> Callee {
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

    /// Returns the value of [`Call::shown`] for a new innermost call of the current stack.
    pub(crate) fn shown(&self, function: Callee) -> u32 {
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

    pub(crate) fn begin(&mut self, kind: OpenKind, function: u32, room: &mut Depth) {
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

    /// Adds a call to the current stack, and measures it from now on.
    pub(crate) fn open(&mut self, call: Call) {
        let (clock, pauses, begun) = (self.clock, self.pauses, self.begun);
        self.stacks.current.push(call, clock, pauses, begun);
    }

    pub(crate) fn mark(&mut self, function: u32) {
        let function = self.callee(function);
        if let Some(depth) = self.shown(function).checked_sub(1) {
            let (caller, kind) =
                (self.stacks.current.open.last().map(|outer| outer.function), OpenKind::Call);
            let begun = Begun { function, caller, kind, depth, earlier: None, arguments: None };
            self.pending = Some(self.step(What::Mark(begun)));
        }
    }

    /// If the pending step is the beginning of the call that ends now, combines both to a [`What::Leaf`] and returns `true`.
    pub(crate) fn becomes_leaf(&mut self, function: u32, how: How, room: &mut Depth) -> bool {
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

    /// Ends the innermost open call of a function.
    pub(crate) fn end(&mut self, function: u32, how: How, room: &mut Depth) {
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
    pub(crate) fn close(&mut self, how: How, room: &mut Depth) {
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
    pub(crate) fn close_all(&mut self, how: How, room: &mut Depth) {
        loop {
            while !self.stacks.current.open.is_empty() {
                self.close(how, room);
            }
            let Some(next) = self.stacks.any() else { break };
            self.stacks.change(next, self.clock, self.begun);
        }
        self.flush();
    }

    /// Begins the wanted part: from now on, steps are returned. The open calls are shown too, and measured from here.
    pub(crate) fn begin_to_show(&mut self) {
        // The pending step is before the wanted part.
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
    pub(crate) fn announce_last(&mut self) {
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

    pub(crate) fn push(&mut self, what: What) {
        self.flush();
        self.pending = Some(self.step(what));
        self.flush();
    }

    /// Makes the pending step available to [`Calls::pop`].
    pub(crate) fn flush(&mut self) {
        if let Some(step) = self.pending.take().filter(|_| !self.is_silent && self.is_wanted) {
            self.out.push_back(step);
        }
    }

    /// Adds the bytes of arguments or of a result to the pending step.
    pub(crate) fn attach(&mut self, bytes: Vec<u8>) {
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
