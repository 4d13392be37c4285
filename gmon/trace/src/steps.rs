//! The steps of all threads, in the order of their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::calls::{Depth, OPEN_MOST, Wanted};
use crate::cursor::{Cursor, Piece, Room};
use crate::follow::Follower;
use crate::scan::Damage;
use crate::step::Step;
use crate::trace::{Stream, Trace};

/// The selection of steps. The default is all steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The start of the wanted part in nanoseconds since the start of the trace. Calls that are open at this time begin there.
    pub from: Option<u64>,
    /// The end of the wanted part in nanoseconds since the start of the trace. Calls that are open at this time end there.
    pub to: Option<u64>,
    /// The threads whose steps are wanted; if empty, all.
    pub tids: Vec<u32>,
    /// The processes whose steps are wanted; if empty, all.
    pub pids: Vec<u32>,
    /// For each function index, whether calls of the function and the calls within them are wanted. `None` selects all.
    pub functions: Option<Vec<bool>>,
}

/// The maximum number of damaged parts that are listed.
const DAMAGE_MOST: usize = 1 << 16;

/// An iterator over the steps of a trace. At any time, only one chunk for each concurrent thread is in memory.
pub struct Steps<'t> {
    trace: &'t Trace,
    choice: &'t Choice,
    /// The buffers that are not read yet, with the times of their first events, the latest first.
    waiting: Vec<(u64, u32)>,
    /// The other buffers that have a next step, with the time of that step.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// The buffer from which the last step came.
    current: Option<(u32, Box<Thread<'t>>)>,
    threads: HashMap<u32, Box<Thread<'t>>>,
    room: Room,
    depth: Depth,
    damage: Vec<Damage>,
}

/// A buffer that is being read.
struct Thread<'t> {
    stream: &'t Stream,
    cursor: Cursor,
    follower: Follower<'t>,
    is_over: bool,
}

impl Trace {
    /// Returns the selected steps in the order of their times.
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
    /// Returns the damage that has been found in events so far, in addition to [`Trace::damage`].
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

    /// Returns the earliest possible time of a step of another buffer than the current one.
    fn others(&self) -> u64 {
        let ready = self.ready.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
        ready.min(self.waiting.last().map_or(u64::MAX, |(time, _)| *time))
    }

    /// Makes the buffer with the earliest step the current one. Returns `false` if there is none.
    fn change(&mut self) -> bool {
        loop {
            let ready = self.ready.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
            if let Some((_, index)) = self.waiting.pop_if(|(time, _)| *time <= ready) {
                // The buffer's first step may be later than its first event.
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
