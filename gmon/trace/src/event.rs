//! What happens on a thread.

/// An event. Times are in ticks of the process's clock; functions are numbers that [`crate::Chunk::Functions`] defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call begins.
    Enter { time: u64, function: u32 },
    /// A call begins by a jump out of the innermost open call. It is in the same frame, and both end together.
    Jump { time: u64, function: u32 },
    /// A call is open that was made before the fork by which the process began: it is the parent's call.
    Inherited { time: u64, function: u32 },
    /// A call begins whose end is not seen.
    Mark { time: u64, function: u32 },
    /// The innermost open call returns. One that began by [`Event::Jump`] has an event of its own, before that of the call that
    /// jumped.
    Exit { time: u64, function: u32 },
    /// The innermost open call is left: by an exception, a longjmp, or the end of its thread.
    Left { time: u64, function: u32 },
    /// The thread goes on on another stack, which has open calls of its own. A thread begins on one with any number.
    Chain { time: u64, chain: u32 },
    /// So many ticks before now were the profiler's, and belong to no call.
    Pause { ticks: u64 },
    /// So many events are missing here. Which calls are open now is told by [`Event::Open`].
    Lost { count: u64 },
    /// A call is open that began at this time, within those before it. Follows [`Event::Lost`].
    Open { time: u64, function: u32 },
    /// The arguments of the call that began with the event before, or the result of the call that ended with it.
    Data { bytes: Vec<u8> },
    /// The events are another thread's from here on.
    Thread { tid: u32 },
}

impl Event {
    /// Returns when it happened. What tells of an earlier time has none.
    pub fn time(&self) -> Option<u64> {
        match *self {
            Event::Enter { time, .. }
            | Event::Jump { time, .. }
            | Event::Inherited { time, .. }
            | Event::Mark { time, .. }
            | Event::Exit { time, .. }
            | Event::Left { time, .. }
            | Event::Chain { time, .. } => Some(time),
            Event::Pause { .. }
            | Event::Lost { .. }
            | Event::Open { .. }
            | Event::Data { .. }
            | Event::Thread { .. } => None,
        }
    }
}

/// How a call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenKind {
    /// By [`Event::Enter`].
    Call,
    /// By [`Event::Jump`].
    Jump,
    /// By [`Event::Inherited`].
    Inherited,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its function.
    pub function: u32,
    /// When it began.
    pub time: u64,
    /// How it began.
    pub kind: OpenKind,
}

/// What a thread is doing between two events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The thread's number.
    pub tid: u32,
    /// The stack on which it runs.
    pub chain: u32,
    /// The sum of all [`Event::Pause`] before.
    pub pauses: u64,
    /// By stack: its number, the number of open calls that are left out here, which are the outermost ones, and the others, from
    /// the outermost one inwards.
    pub chains: Vec<(u32, u64, Vec<Open>)>,
}
