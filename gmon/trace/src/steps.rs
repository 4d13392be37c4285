//! The steps of all threads, in the order of their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::calls::{Depth, OPEN_MOST, Wanted};
use crate::cursor::{Cursor, Piece, Room};
use crate::follow::Follower;
use crate::scan::Damage;
use crate::step::Step;
use crate::trace::{Stream, Trace};

/// Which steps are wanted. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// From when on, in nanoseconds since the start. Calls that are open then begin there.
    pub from: Option<u64>,
    /// Up to when, in nanoseconds since the start. Calls that are open then end there.
    pub to: Option<u64>,
    /// Only those of these threads, if there are any.
    pub tids: Vec<u32>,
    /// Only those of these processes, if there are any.
    pub pids: Vec<u32>,
    /// By index: whether calls of the function are wanted, with those within them. `None`: all are.
    pub functions: Option<Vec<bool>>,
}

/// The greatest number of damaged parts that are remembered.
const DAMAGE_MOST: usize = 1 << 16;

/// The steps of a trace. No more of it is in memory than a chunk for each thread that runs at the same time.
pub struct Steps<'t> {
    trace: &'t Trace,
    choice: &'t Choice,
    /// The buffers that have not begun, with their times, the latest first.
    waiting: Vec<(u64, u32)>,
    /// The buffers that have a next step, with its time, but for the current one.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// The buffer that has given the last step.
    current: Option<(u32, Box<Thread<'t>>)>,
    threads: HashMap<u32, Box<Thread<'t>>>,
    room: Room,
    depth: Depth,
    damage: Vec<Damage>,
}

/// A buffer that is read.
struct Thread<'t> {
    stream: &'t Stream,
    cursor: Cursor,
    follower: Follower<'t>,
    is_over: bool,
}

impl Trace {
    /// Returns the steps that are wanted, in the order of their times.
    pub fn steps<'t>(&'t self, choice: &'t Choice) -> Steps<'t> {
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        for (stream, index) in self.streams.iter().zip(0..) {
            let recorded = self.processes.get(stream.process as usize);
            let is_wanted = |pid: u32| choice.pids.is_empty() || choice.pids.contains(&pid);
            if recorded.is_some_and(|recorded| is_wanted(recorded.process.pid))
                && let Some(first) = stream.chunks.first()
            {
                let begins = self.elapsed(stream.process, first.time);
                if choice.to.is_none_or(|to| begins <= to) {
                    waiting.push((begins.max(choice.from.unwrap_or(0)), index));
                }
            }
        }
        waiting.sort_unstable_by_key(|&place| Reverse(place));
        Steps {
            trace: self,
            choice,
            waiting,
            ready: BinaryHeap::new(),
            current: None,
            threads: HashMap::new(),
            room: Room::new(),
            depth: OPEN_MOST,
            damage: Vec::new(),
        }
    }
}

impl<'t> Steps<'t> {
    /// What of the events could not be read so far, beside [`Trace::damage`].
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Begins to read a buffer.
    fn begin(&self, index: u32) -> Option<Box<Thread<'t>>> {
        let trace = self.trace;
        let stream = trace.streams.get(index as usize)?;
        let recorded = trace.processes.get(stream.process as usize)?;
        let tick = |since: u64| recorded.clock.tick(trace.start_unix_ns, since);
        let wanted = Wanted {
            from: self.choice.from.map_or(0, tick),
            to: self.choice.to.map_or(u64::MAX, tick),
            tids: &self.choice.tids,
            functions: self.choice.functions.as_deref(),
        };
        Some(Box::new(Thread {
            stream,
            cursor: Cursor::new(stream, wanted.from),
            follower: Follower::new(trace, stream.process, index, wanted),
            is_over: false,
        }))
    }

    /// Reads until there is a next step. Returns its time since the start.
    fn fill(&mut self, thread: &mut Thread<'t>) -> Option<u64> {
        let Thread { stream, cursor, follower, is_over } = thread;
        loop {
            if let Some(step) = follower.peek() {
                return Some(self.trace.elapsed(step.process, step.time));
            }
            if *is_over {
                return None;
            }
            match cursor.next(self.trace, stream, &mut self.room) {
                Some(piece) => {
                    if let Piece::Damage(damage) = &piece
                        && self.damage.len() < DAMAGE_MOST
                    {
                        self.damage.push(*damage);
                    }
                    if !follower.add(piece, &mut self.depth) {
                        *is_over = true;
                        cursor.leave(&mut self.room);
                    }
                }
                None => {
                    let recorded = self.trace.processes.get(stream.process as usize);
                    follower.finish(recorded.map_or(0, |recorded| recorded.last), &mut self.depth);
                    *is_over = true;
                }
            }
        }
    }

    /// Returns the time of the earliest step that is not of the current buffer, as far as it is known.
    fn others(&self) -> u64 {
        let ready = self.ready.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
        ready.min(self.waiting.last().map_or(u64::MAX, |(time, _)| *time))
    }

    /// Makes the buffer with the earliest step the current one. Returns `false` if there is none.
    fn change(&mut self) -> bool {
        loop {
            let ready = self.ready.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
            if let Some((_, index)) = self.waiting.pop_if(|(time, _)| *time <= ready) {
                // Its first step may be later than it seemed.
                if let Some(mut thread) = self.begin(index)
                    && let Some(time) = self.fill(&mut thread)
                {
                    self.ready.push(Reverse((time, index)));
                    self.threads.insert(index, thread);
                }
                continue;
            }
            let Some(Reverse((_, index))) = self.ready.pop() else { return false };
            self.current = self.threads.remove(&index).map(|thread| (index, thread));
            return true;
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            if let Some((index, mut thread)) = self.current.take() {
                match self.fill(&mut thread) {
                    Some(time) if time <= self.others() => {
                        let step = thread.follower.pop();
                        self.current = Some((index, thread));
                        return step;
                    }
                    Some(time) => {
                        self.ready.push(Reverse((time, index)));
                        self.threads.insert(index, thread);
                    }
                    None => {}
                }
            }
            if !self.change() {
                return None;
            }
        }
    }
}
