//! The scheduling of threads: when each thread ran, and when it waited.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::vec::IntoIter;

use crate::chunk::{Chunk, Switch, SwitchKind};
use crate::file::Raw;
use crate::scan::read_contents;
use crate::steps::Choice;
use crate::trace::Trace;

/// The maximum memory in bytes of all chunks that are read at the same time. Chunks beyond this limit are omitted.
const ROOM: usize = 1 << 28;
/// The maximum ratio of a chunk's size in memory to its decompressed size. A switch takes at least three bytes.
const LARGER: usize = size_of::<Switch>() / 3 + 1;

/// The scheduling state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The thread runs on a processor.
    Runs {
        /// The processor's number.
        cpu: u32,
    },
    /// The thread is runnable, but another one runs in its place.
    Preempted,
    /// The thread waits.
    Waits,
    /// The thread is migrated to another processor. This state has no duration.
    Moved {
        /// The processor's number.
        cpu: u32,
    },
}

/// The scheduling state of a thread between two decisions of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The start of the interval in nanoseconds since the start of the trace.
    pub from_ns: u64,
    /// The end of the interval.
    pub to_ns: u64,
    /// The index of the process in [`Trace::processes`].
    pub process: u32,
    /// The number of the thread.
    pub tid: u32,
    /// The thread's state.
    pub doing: Doing,
}

/// An iterator over the scheduling states of threads, in the order of their start times.
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
    /// The memory that the chunks take.
    taken: usize,
    /// The thread's present state, and its start time.
    doing: Option<(u64, Doing)>,
    /// The time of the last migration within the present state, and the processor.
    moved: Option<(u64, u32)>,
    /// The time of the last switch. Times do not decrease.
    last: u64,
    next: Option<Scheduled>,
}

impl Trace {
    /// Returns whether the trace has scheduling information.
    pub fn has_switches(&self) -> bool {
        self.processes.iter().any(|recorded| !recorded.switches.is_empty())
    }

    /// Returns the scheduling states of the selected threads. Parts that cannot be read are omitted.
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
    /// Finds the next state of a thread.
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
    /// Returns the thread's next state.
    fn next(&mut self, trace: &Trace, room: &mut usize) -> Option<Scheduled> {
        let Thread { process, tid, .. } = *self;
        let scheduled = |from_ns, to_ns, doing| Some(Scheduled { from_ns, to_ns, process, tid, doing });
        loop {
            // The state before the migration has been returned.
            if self.doing.is_none_or(|(since, _)| self.moved.is_some_and(|(at, _)| at <= since))
                && let Some((at, cpu)) = self.moved.take()
            {
                return scheduled(at, at, Doing::Moved { cpu });
            }
            let Some(switch) = self.switch(trace, room) else {
                // If the thread does not run at the end of the trace, it may have ended, so this state is omitted.
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
