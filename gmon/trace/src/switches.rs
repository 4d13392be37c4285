//! What the scheduler did to threads: when each of them ran, and when it waited.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::vec::IntoIter;

use crate::chunk::{Chunk, Switch, SwitchKind};
use crate::file::Raw;
use crate::scan::read_contents;
use crate::steps::Choice;
use crate::trace::Trace;

/// The memory in bytes that all chunks may take which are read at the same time. What does not fit is left out.
const ROOM: usize = 1 << 28;
/// By how much larger a chunk may become in memory. A switch takes three bytes at least.
const LARGER: usize = size_of::<Switch>() / 3 + 1;

/// What a thread does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It runs on a processor.
    Runs {
        /// The processor's number.
        cpu: u32,
    },
    /// It could run, and another thread does in its place.
    Preempted,
    /// It waits.
    Waits,
    /// It is moved to another processor, which takes no time.
    Moved {
        /// The processor's number.
        cpu: u32,
    },
}

/// What a thread does between two decisions of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// From when on, in nanoseconds since the start of the trace.
    pub from_ns: u64,
    /// Up to when.
    pub to_ns: u64,
    /// The index of the process in [`Trace::processes`].
    pub process: u32,
    /// The number of the thread.
    pub tid: u32,
    /// What it does.
    pub doing: Doing,
}

/// What threads do, in the order of the times at which they begin with it.
pub struct Scheduling<'t> {
    trace: &'t Trace,
    from: u64,
    to: u64,
    /// The next one of each thread, with the thread's place in the list.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    threads: Vec<Thread<'t>>,
    room: usize,
}

struct Thread<'t> {
    process: u32,
    tid: u32,
    chunks: std::slice::Iter<'t, (u64, Raw)>,
    switches: IntoIter<Switch>,
    /// The memory that they take.
    taken: usize,
    /// What the thread does up to the next switch, and since when.
    doing: Option<(u64, Doing)>,
    /// When it was moved meanwhile, and to which processor; the last time if there are several.
    moved: Option<(u64, u32)>,
    /// The time of the last switch. Times do not decrease.
    last: u64,
    next: Option<Scheduled>,
}

impl Trace {
    /// Whether there is something about what the scheduler did.
    pub fn has_switches(&self) -> bool {
        self.processes.iter().any(|recorded| !recorded.switches.is_empty())
    }

    /// Returns what the threads that are wanted do. What cannot be read is left out.
    pub fn scheduling(&self, choice: &Choice) -> Scheduling<'_> {
        let mut scheduling = Scheduling {
            trace: self,
            from: choice.from.unwrap_or(0),
            to: choice.to.unwrap_or(u64::MAX),
            ready: BinaryHeap::new(),
            threads: Vec::new(),
            room: ROOM,
        };
        let is_among = |number: u32, list: &[u32]| list.is_empty() || list.contains(&number);
        for (recorded, process) in self.processes.iter().zip(0..) {
            if !is_among(recorded.process.pid, &choice.pids) {
                continue;
            }
            let mut tids: Vec<u32> = recorded.switches.keys().copied().collect();
            tids.retain(|&tid| is_among(tid, &choice.tids));
            tids.sort_unstable();
            for tid in tids {
                let chunks = recorded.switches.get(&tid).map(|chunks| chunks.iter()).unwrap_or_default();
                let switches = Vec::new().into_iter();
                scheduling.threads.push(Thread {
                    process,
                    tid,
                    chunks,
                    switches,
                    taken: 0,
                    doing: None,
                    moved: None,
                    last: 0,
                    next: None,
                });
            }
        }
        for place in 0..scheduling.threads.len() {
            scheduling.advance(place);
        }
        scheduling
    }
}

impl Scheduling<'_> {
    /// Finds what a thread does next.
    fn advance(&mut self, place: usize) {
        let Scheduling { trace, from, to, ready, threads, room } = self;
        let Some(thread) = threads.get_mut(place) else { return };
        thread.next = loop {
            let Some(scheduled) = thread.next(trace, room) else { break None };
            let Scheduled { from_ns, to_ns, doing, .. } = scheduled;
            let clipped = Scheduled { from_ns: from_ns.max(*from), to_ns: to_ns.min(*to), ..scheduled };
            let is_wanted = match doing {
                Doing::Moved { .. } => (*from..=*to).contains(&from_ns),
                _ => clipped.from_ns < clipped.to_ns,
            };
            if is_wanted {
                break Some(clipped);
            }
        };
        if let Some(next) = thread.next {
            ready.push(Reverse((next.from_ns, place)));
        }
    }
}

impl Iterator for Scheduling<'_> {
    type Item = Scheduled;

    fn next(&mut self) -> Option<Scheduled> {
        let Reverse((_, place)) = self.ready.pop()?;
        let next = self.threads.get_mut(place)?.next.take();
        self.advance(place);
        next
    }
}

impl Thread<'_> {
    /// Returns what the thread does next.
    fn next(&mut self, trace: &Trace, room: &mut usize) -> Option<Scheduled> {
        let Thread { process, tid, .. } = *self;
        let scheduled = |from_ns, to_ns, doing| Some(Scheduled { from_ns, to_ns, process, tid, doing });
        loop {
            // What it did before that has been returned.
            if self.doing.is_none_or(|(since, _)| self.moved.is_some_and(|(at, _)| at <= since))
                && let Some((at, cpu)) = self.moved.take()
            {
                return scheduled(at, at, Doing::Moved { cpu });
            }
            let Some(switch) = self.switch(trace, room) else {
                // A thread that does not run at the end may have ended.
                let (since, doing) = self.doing.take()?;
                let end = trace.processes.get(process as usize).and_then(|recorded| recorded.end);
                let end = end.map_or(u64::MAX, |end| trace.elapsed(process, end)).min(trace.duration_ns());
                match doing {
                    Doing::Runs { .. } => return scheduled(since, end, doing),
                    _ => continue,
                }
            };
            let at = trace.elapsed(process, switch.time).max(self.last);
            self.last = at;
            let doing = match switch.kind {
                SwitchKind::Migrated => {
                    self.moved = Some((at, switch.cpu));
                    continue;
                }
                SwitchKind::On => Doing::Runs { cpu: switch.cpu },
                SwitchKind::Off { preempted: true } => Doing::Preempted,
                SwitchKind::Off { preempted: false } => Doing::Waits,
            };
            if let Some((since, before)) = self.doing.replace((at, doing)) {
                return scheduled(since, at, before);
            }
        }
    }

    /// Returns the next switch.
    fn switch(&mut self, trace: &Trace, room: &mut usize) -> Option<Switch> {
        loop {
            if let Some(switch) = self.switches.next() {
                return Some(switch);
            }
            *room += std::mem::take(&mut self.taken);
            let (offset, raw) = self.chunks.next()?;
            let taken = (raw.raw as usize).saturating_mul(LARGER);
            let mut contents = Vec::new();
            if let Some(left) = room.checked_sub(taken)
                && read_contents(&trace.input, *offset, raw, &mut contents).is_ok()
                && let Ok(Chunk::Switches { switches, .. }) = raw.chunk(&contents)
            {
                (*room, self.taken) = (left, taken);
                self.switches = switches.into_iter();
            }
        }
    }
}
