//! Converts the events of one thread's ring to parts, which become chunks of the trace.
//!
//! A chunk lists the calls that were open at its first event, so that it can be read without the chunks before it. Therefore a stream
//! follows the open calls of its thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gmon_trace::{Event, Events, Open, OpenKind, State};
use gprofinject_abi::trace::{Kind, SNAPSHOT_MAX};

use crate::store::region::times::Reached;

/// The maximum number of open calls that are followed, of all threads together. A process can write any number of beginnings.
const OPEN: usize = 1 << 22;
/// The maximum number of stacks that are followed for a thread.
const CHAINS: usize = 1 << 12;
/// The maximum number of open calls of a stack that a chunk lists, which are the innermost ones.
const LISTED: usize = 1 << 8;
/// The maximum number of bytes of arguments or of a result.
const DATA: u32 = 1 << 12;

/// The stack of a thread, or of a coroutine that it runs.
#[derive(Clone, Debug, Default)]
struct Chain {
    open: Vec<Open>,
    /// The number of outermost open calls that are not in the list, because of the limit.
    beyond: u64,
}

/// The number of events after which a part is completed.
const PART: u64 = 1 << 16;

/// Consecutive events of a thread, for a chunk.
pub(crate) struct Part {
    /// The number of the first event.
    pub(crate) first: u64,
    /// The state before the first event.
    pub(crate) before: State,
    pub(crate) events: Events,
    /// Whether the last event triggers the writing of the trace.
    pub(crate) is_trigger: bool,
}

/// The number of open calls for which a thread reserves room at a time.
const ROOM: usize = 1 << 10;

/// The number of open calls for which all threads together have reserved room.
pub(crate) type Followed = Arc<AtomicUsize>;

/// The known state of a thread, and its events that are in no chunk yet.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) tid: u32,
    /// The number of the next event.
    pub(crate) index: u64,
    /// The stack on which the thread runs.
    current: Chain,
    chain: u32,
    /// The other stacks.
    others: HashMap<u32, Chain>,
    pauses: u64,
    /// The time of the last event.
    last: u64,
    /// The state before the first of these events.
    before: State,
    events: Events,
    parts: Vec<Part>,
    followed: Followed,
    /// The number of further open calls for which this thread has reserved room.
    room: usize,
    /// Empty lists of events, for reuse.
    spare: Vec<Events>,
    /// The bytes so far of an incomplete [`Event::Data`], and the number of all of its bytes.
    data: Option<(Vec<u8>, usize)>,
    /// The number of events that were lost before the next one.
    missing: u64,
    /// The number of slots that belong to a snapshot and contain nothing new.
    known: u64,
    /// The number of calls that have begun, and the number of lost events.
    pub(crate) calls: u64,
    pub(crate) lost: u64,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.forget();
        self.followed.fetch_sub(self.room, Ordering::Relaxed);
    }
}

impl Stream {
    /// Returns the stream of a thread in its initial state.
    pub(crate) fn new(followed: &Followed) -> Stream {
        let mut stream = Stream::default();
        stream.followed = Arc::clone(followed);
        stream
    }

    /// Adds an event of the ring.
    pub(crate) fn add(&mut self, kind: Kind, function: u32, time: u64) {
        self.follow(kind, function, time);
        if self.events.len() >= PART {
            self.split(false);
        }
    }

    fn follow(&mut self, kind: Kind, function: u32, time: u64) {
        if self.known > 0 {
            self.known -= 1;
            return;
        }
        if self.missing > 0 {
            if kind == Kind::Snapshot {
                return self.resume(function);
            }
            self.say_lost();
        }
        match kind {
            Kind::None => {}
            Kind::Snapshot => self.known = time.min(1 + SNAPSHOT_MAX),
            Kind::Enter => self.begin(OpenKind::Call, function, time),
            Kind::Jump => self.begin(OpenKind::Jump, function, time),
            Kind::Inherited => self.begin(OpenKind::Inherited, function, time),
            Kind::Mark => {
                self.calls += 1;
                self.push(Event::Mark { time, function });
            }
            Kind::Exit => self.end(Event::Exit { time, function }),
            Kind::Left => self.end(Event::Left { time, function }),
            Kind::Chain => {
                self.push(Event::Chain { time, chain: function });
                self.change(function);
            }
            Kind::Pause if time == 0 => {}
            Kind::Pause => {
                self.push(Event::Pause { ticks: time });
                self.pauses = self.pauses.wrapping_add(time);
            }
            Kind::Lost => self.lose(time),
            Kind::Open => {
                self.push(Event::Open { time, function });
                self.open(Open { function, time, kind: OpenKind::Call });
            }
            Kind::Data => {
                let len = function.min(DATA) as usize;
                self.data = Some((Vec::with_capacity(len), len));
                self.more(&time.to_le_bytes());
            }
            Kind::More => {
                self.more(&time.to_le_bytes());
                self.more(&function.to_le_bytes());
            }
            Kind::Thread => {
                self.forget();
                self.tid = function;
                self.push(Event::Thread { tid: function });
            }
        }
    }

    /// Notes that this number of events is lost here, so that the open calls are unknown.
    pub(crate) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.missing = self.missing.saturating_add(count);
        self.known = 0;
        self.forget();
    }

    /// Adds the event that events are lost.
    fn say_lost(&mut self) {
        let count = std::mem::take(&mut self.missing);
        self.push(Event::Lost { count });
    }

    /// Resumes at a snapshot in the ring, whose slots have the thread's stack and its open calls.
    fn resume(&mut self, tid: u32) {
        if tid != self.tid {
            // The event of a change of the thread is among the lost events.
            self.tid = tid;
            self.push(Event::Thread { tid });
        }
        self.say_lost();
    }

    /// Forgets all open calls.
    fn forget(&mut self) {
        let forgotten =
            self.others.values().map(|chain| chain.open.len()).sum::<usize>() + self.current.open.len();
        self.give_room(forgotten);
        self.current = Chain::default();
        self.others.clear();
    }

    /// Makes another stack the current one.
    fn change(&mut self, to: u32) {
        if to == self.chain {
            return;
        }
        let next = self.others.remove(&to).unwrap_or_default();
        let last = std::mem::replace(&mut self.current, next);
        if self.others.len() >= CHAINS {
            let forgotten = self.others.values().map(|chain| chain.open.len()).sum();
            self.give_room(forgotten);
            self.others.clear();
        }
        if !last.open.is_empty() {
            self.others.insert(self.chain, last);
        }
        self.chain = to;
    }

    /// Returns the latest known time of the thread.
    pub(crate) fn reached(&self) -> Reached {
        Reached { last: self.last.wrapping_sub(self.pauses), paused: self.pauses }
    }

    /// Ends all open calls at this time without pauses. Those of the current stack, which have run up to the end, come first.
    pub(crate) fn close(&mut self, end: u64) {
        let time = end.wrapping_add(self.pauses);
        if self.missing > 0 {
            self.say_lost();
        }
        let mut chains: Vec<u32> = self.others.keys().copied().collect();
        chains.sort_unstable();
        self.close_current(time);
        for chain in chains {
            self.push(Event::Chain { time, chain });
            self.change(chain);
            self.close_current(time);
        }
    }

    fn close_current(&mut self, time: u64) {
        while let Some(&Open { function, .. }) = self.current.open.last() {
            self.end(Event::Left { time, function });
        }
    }

    /// Completes the present part.
    pub(crate) fn split(&mut self, is_trigger: bool) {
        if self.events.is_empty() {
            return;
        }
        let next = self.spare.pop().unwrap_or_default();
        let events = std::mem::replace(&mut self.events, next);
        let first = self.index - events.len();
        let now = self.state();
        let before = std::mem::replace(&mut self.before, now);
        self.parts.push(Part { first, before, events, is_trigger });
    }

    /// Returns the completed parts.
    pub(crate) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    /// Takes back the events of a part, to reuse their memory.
    pub(crate) fn give_back(&mut self, mut events: Events) {
        /// The maximum number of spare lists. One list is in use while another one is encoded.
        const SPARE: usize = 2;
        if self.spare.len() < SPARE {
            events.clear();
            self.spare.push(events);
        }
    }

    fn state(&self) -> State {
        let listed = |chain: &Chain| {
            let omitted = chain.open.len().saturating_sub(LISTED);
            (chain.beyond + omitted as u64, chain.open.get(omitted..).unwrap_or_default().to_vec())
        };
        let all = self.others.iter().map(|(&number, chain)| (number, chain));
        let mut chains: Vec<(u32, u64, Vec<Open>)> = all
            .chain([(self.chain, &self.current)])
            .filter(|(_, chain)| !chain.open.is_empty())
            .map(|(number, chain)| {
                let (omitted, open) = listed(chain);
                (number, omitted, open)
            })
            .collect();
        chains.sort_unstable_by_key(|(number, ..)| *number);
        State { tid: self.tid, chain: self.chain, pauses: self.pauses, chains }
    }

    fn push(&mut self, event: Event) {
        self.data = None;
        self.index += 1;
        self.last = event.time().unwrap_or(self.last);
        self.events.push(&event);
    }

    fn begin(&mut self, kind: OpenKind, function: u32, time: u64) {
        let event = match kind {
            OpenKind::Call => Event::Enter { time, function },
            OpenKind::Jump => Event::Jump { time, function },
            OpenKind::Inherited => Event::Inherited { time, function },
        };
        self.calls += u64::from(kind != OpenKind::Inherited);
        self.push(event);
        self.open(Open { function, time, kind });
    }

    fn open(&mut self, open: Open) {
        let chain = &mut self.current;
        if self.room == 0 && self.followed.load(Ordering::Relaxed) < OPEN {
            self.followed.fetch_add(ROOM, Ordering::Relaxed);
            self.room = ROOM;
        }
        if chain.beyond == 0 && self.room > 0 {
            self.room -= 1;
            chain.open.push(open);
        } else {
            chain.beyond += 1;
        }
    }

    /// Releases the room of this many open calls, which the stream does not follow any more.
    fn give_room(&mut self, calls: usize) {
        self.room += calls;
        if self.room >= 2 * ROOM {
            let back = self.room - ROOM;
            self.followed.fetch_sub(back, Ordering::Relaxed);
            self.room = ROOM;
        }
    }

    fn end(&mut self, event: Event) {
        self.push(event);
        match self.current.beyond {
            0 => {
                if self.current.open.pop().is_some() {
                    self.give_room(1);
                }
            }
            _ => self.current.beyond -= 1,
        }
    }

    /// Adds bytes to the incomplete [`Event::Data`], and adds the event when it is complete.
    fn more(&mut self, bytes: &[u8]) {
        let Some((data, len)) = &mut self.data else { return };
        let missing = *len - data.len();
        data.extend_from_slice(bytes.get(..missing.min(bytes.len())).unwrap_or_default());
        if data.len() == *len
            && let Some((data, _)) = self.data.take()
        {
            self.push(Event::Data { bytes: data });
        }
    }
}
