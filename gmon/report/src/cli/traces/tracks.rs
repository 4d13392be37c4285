//! The tracks of viewers, in which slices nest: one for each thread, and others for the stacks of coroutines.

use std::collections::HashMap;

use gmon_trace::Step;

/// What a track is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Track {
    Process(u32),
    /// By process and thread.
    Thread(u32, u32),
    /// By buffer, thread and stack.
    Stack(u32, u32, u32),
    /// By process and thread.
    Scheduling(u32, u32),
}

/// The tracks so far.
#[derive(Default)]
pub(crate) struct Tracks {
    numbers: HashMap<Track, u64>,
    /// By buffer: the thread, and its stacks so far. The first one is that of the thread itself.
    stacks: HashMap<u32, (u32, HashMap<u32, u64>)>,
}

impl Tracks {
    /// Returns the number of a track, from 1 on, and whether it is new.
    pub(crate) fn number(&mut self, track: Track) -> (u64, bool) {
        let next = self.numbers.len() as u64 + 1;
        let number = *self.numbers.entry(track).or_insert(next);
        (number, number == next)
    }

    /// Returns `None` if a step is on its thread's own stack, and otherwise the number of the stack in the thread, from 1 on.
    pub(crate) fn stack(&mut self, step: &Step) -> Option<u64> {
        let (tid, stacks) = self.stacks.entry(step.buffer).or_default();
        if *tid != step.tid {
            *tid = step.tid;
            stacks.clear();
        }
        let next = stacks.len() as u64;
        Some(*stacks.entry(step.chain).or_insert(next)).filter(|&ordinal| ordinal > 0)
    }
}
