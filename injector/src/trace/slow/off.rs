//! When the threads of a process were off the processor, by the scheduler's records.
//!
//! The records and the events of a thread come on different ways, and either may be read first. So the last times off the processor are kept
//! until the call to which they belong has ended, and calls that have ended get those that come later.

use std::collections::{HashMap, VecDeque};

/// The greatest number of times off the processor that are kept for a thread.
const KEPT: usize = 1 << 10;
/// The greatest number of threads.
const THREADS: usize = 1 << 15;

/// A time for which a thread was off the processor, in ticks of the process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Off {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Whether the thread could have run, and others had the processor.
    pub(crate) is_ready: bool,
}

/// What is known of a thread.
#[derive(Debug, Default)]
struct Known {
    /// Since when the thread is off the processor, and whether it could run.
    since: Option<(u64, bool)>,
    recent: VecDeque<Off>,
}

/// The threads of a process by number.
#[derive(Debug, Default)]
pub(crate) struct Offs(HashMap<u32, Known>);

impl Offs {
    /// Adds a decision of the scheduler: a thread runs, or is taken off the processor (`off` tells whether it could run). Returns the time
    /// off the processor that is over.
    pub(crate) fn switch(&mut self, tid: u32, time: u64, off: Option<bool>) -> Option<Off> {
        if self.0.len() >= THREADS && !self.0.contains_key(&tid) {
            return None;
        }
        let known = self.0.entry(tid).or_default();
        match off {
            Some(is_ready) => {
                known.since = Some((time, is_ready));
                None
            }
            None => known.since.take().map(|(from, is_ready)| Off { from, to: time.max(from), is_ready }),
        }
    }

    /// Keeps a time for which no events have been read yet. Returns `false` if there was no more room, so that the oldest was forgotten.
    pub(crate) fn keep(&mut self, tid: u32, off: Off) {
        let Some(known) = self.0.get_mut(&tid) else { return };
        if known.recent.len() >= KEPT {
            known.recent.pop_front();
        }
        known.recent.push_back(off);
    }

    /// Takes the times of a thread that were over at a time.
    pub(crate) fn take_until(&mut self, tid: u32, time: u64) -> Vec<Off> {
        let Some(known) = self.0.get_mut(&tid) else { return Vec::new() };
        let over = known.recent.iter().take_while(|off| off.to <= time).count();
        known.recent.drain(..over).collect()
    }

    /// Returns the time for which a thread is off the processor, up to `time`.
    pub(crate) fn present(&self, tid: u32, time: u64) -> Option<Off> {
        let (from, is_ready) = self.0.get(&tid)?.since?;
        (from < time).then_some(Off { from, to: time, is_ready })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_until_events_have_reached_them() {
        let mut offs = Offs::default();
        assert_eq!(offs.switch(5, 100, None), None, "it was on the processor before the first record");
        assert_eq!(offs.switch(5, 110, Some(false)), None);
        assert_eq!(offs.present(5, 150), Some(Off { from: 110, to: 150, is_ready: false }));
        let off = offs.switch(5, 200, None).expect("it was off");
        assert_eq!(off, Off { from: 110, to: 200, is_ready: false });
        assert_eq!(offs.present(5, 250), None);
        offs.keep(5, off);
        offs.switch(5, 300, Some(true));
        let ready = offs.switch(5, 310, None).expect("it was off");
        offs.keep(5, ready);
        assert_eq!(offs.take_until(5, 199), []);
        assert_eq!(offs.take_until(5, 205), [off]);
        assert_eq!(offs.take_until(5, 1000), [ready]);
        for time in 0..10_000 {
            offs.keep(5, Off { from: time, to: time, is_ready: false });
        }
        assert_eq!(offs.take_until(5, u64::MAX).len(), KEPT);
    }
}
