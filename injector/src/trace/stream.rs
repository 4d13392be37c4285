//! The events of one thread, from its ring to chunks of the trace.
//!
//! A chunk can be read without the chunks before it: it says which calls were open when its first event happened. So the stack of
//! each thread is followed here, as far as the events tell of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gmon_trace::{Event, Events, Open, OpenKind, State};
use gprofinject_abi::trace::{Kind, SNAPSHOT_MAX};

use crate::store::region::times::Reached;

/// The greatest number of open calls that are followed, of all threads together. A process can write any number of beginnings.
const OPEN: usize = 1 << 22;
/// The greatest number of stacks that are followed of a thread.
const CHAINS: usize = 1 << 12;
/// The greatest number of open calls of a stack, the innermost ones, that a chunk tells of.
const TOLD: usize = 1 << 8;
/// The greatest number of bytes of arguments or of a result.
const DATA: u32 = 1 << 12;

/// The stack of a thread, or of a coroutine that it runs.
#[derive(Clone, Debug, Default)]
struct Chain {
    open: Vec<Open>,
    /// The number of open calls that are not in the list, because it has become too long.
    beyond: u64,
}

/// The number of events of a thread from which on they become a part of their own.
const PART: u64 = 1 << 16;

/// Consecutive events of a thread, for a chunk.
pub(crate) struct Part {
    /// The number of the first event.
    pub(crate) first: u64,
    /// The state before it.
    pub(crate) before: State,
    pub(crate) events: Events,
    /// Whether the last event is one at which the trace is to be written.
    pub(crate) is_trigger: bool,
}

/// A thread asks for room for so many at a time.
const ROOM: usize = 1 << 10;

/// The number of open calls for which threads have room, of all threads together.
pub(crate) type Followed = Arc<AtomicUsize>;

/// What is known of a thread, and its events that are in no chunk yet.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) tid: u32,
    /// The number of the next event.
    pub(crate) index: u64,
    /// The stack on which the thread runs, and its number.
    current: Chain,
    chain: u32,
    /// The other ones.
    others: HashMap<u32, Chain>,
    pauses: u64,
    /// The time of the last event.
    last: u64,
    /// The state before the first of the events.
    before: State,
    events: Events,
    parts: Vec<Part>,
    followed: Followed,
    /// The number of open calls that this thread may still have before it has to ask for more.
    room: usize,
    /// Lists of events that are empty again.
    spare: Vec<Events>,
    /// The bytes of an event that is not complete, and their number.
    data: Option<(Vec<u8>, usize)>,
    /// The number of events that were lost before the next one.
    missing: u64,
    /// The number of slots that say only what is known.
    known: u64,
    /// The number of calls that have begun, and of the events that are lost.
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
    /// Returns the stream of a thread of which nothing is known yet.
    pub(crate) fn new(followed: &Followed) -> Stream {
        let mut stream = Stream::default();
        stream.followed = Arc::clone(followed);
        stream
    }

    /// Adds what a ring says.
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

    /// So many events are lost here. Which calls are open then is unknown.
    pub(crate) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.missing = self.missing.saturating_add(count);
        self.known = 0;
        self.forget();
    }

    /// Adds that events are lost.
    fn say_lost(&mut self) {
        let count = std::mem::take(&mut self.missing);
        self.push(Event::Lost { count });
    }

    /// The ring says in the next slots on which stack its thread is, and which calls are open.
    fn resume(&mut self, tid: u32) {
        if tid != self.tid {
            // That there is another thread is among what was lost.
            self.tid = tid;
            self.push(Event::Thread { tid });
        }
        self.say_lost();
    }

    /// Nothing is known of open calls.
    fn forget(&mut self) {
        let forgotten =
            self.others.values().map(|chain| chain.open.len()).sum::<usize>() + self.current.open.len();
        self.give_room(forgotten);
        self.current = Chain::default();
        self.others.clear();
    }

    /// Another stack becomes the current one.
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

    /// Returns how far the thread's clock has come.
    pub(crate) fn reached(&self) -> Reached {
        Reached { last: self.last.wrapping_sub(self.pauses), paused: self.pauses }
    }

    /// All calls that are still open end at this time without pauses, those of the current stack first, which have run up to the
    /// end.
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

    /// Ends a part here.
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

    /// Returns the parts that have ended.
    pub(crate) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    /// Takes back the events of a part, for their memory.
    pub(crate) fn give_back(&mut self, mut events: Events) {
        /// A thread that writes quickly has one list in use while another one is encoded.
        const SPARE: usize = 2;
        if self.spare.len() < SPARE {
            events.clear();
            self.spare.push(events);
        }
    }

    fn state(&self) -> State {
        let told = |chain: &Chain| {
            let omitted = chain.open.len().saturating_sub(TOLD);
            (chain.beyond + omitted as u64, chain.open.get(omitted..).unwrap_or_default().to_vec())
        };
        let all = self.others.iter().map(|(&number, chain)| (number, chain));
        let mut chains: Vec<(u32, u64, Vec<Open>)> = all
            .chain([(self.chain, &self.current)])
            .filter(|(_, chain)| !chain.open.is_empty())
            .map(|(number, chain)| {
                let (omitted, open) = told(chain);
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

    /// Gives back the room of this many open calls, which the stream does not follow any more.
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

    /// Adds bytes to an event that is not complete. With the last ones it is.
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
