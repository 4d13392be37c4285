//! The events of a thread.

/// An event. Times are in ticks of the process's clock; functions are numbers that [`crate::Chunk::Functions`] defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call begins.
    Enter { time: u64, function: u32 },
    /// A call begins by a tail call (a jump) of the innermost open call. Both use the same frame and end together.
    Jump { time: u64, function: u32 },
    /// A call is open that was made before the fork by which the process began, so it is counted as the parent's.
    Inherited { time: u64, function: u32 },
    /// A call begins whose end the trace does not contain, because the function's exit is not hooked.
    Mark { time: u64, function: u32 },
    /// The innermost open call returns. A call that began by [`Event::Jump`] has its own event, which precedes that of its caller.
    Exit { time: u64, function: u32 },
    /// The innermost open call ends without a return: by an exception, a longjmp, or the end of its thread.
    Left { time: u64, function: u32 },
    /// The thread continues on another stack, which has its own open calls. The number of the first stack is arbitrary.
    Chain { time: u64, chain: u32 },
    /// This number of ticks before now is the profiler's own time, and belongs to no call.
    Pause { ticks: u64 },
    /// This number of events is missing here. The [`Event::Open`]s that follow list the open calls.
    Lost { count: u64 },
    /// A call that began at this time is open, within the calls of preceding [`Event::Open`]s. Follows [`Event::Lost`].
    Open { time: u64, function: u32 },
    /// The arguments of the call that began with the event before, or the result of the call that ended with it.
    Data { bytes: Vec<u8> },
    /// The events that follow are those of another thread.
    Thread { tid: u32 },
}

impl Event {
    /// Returns the time of the event. Events that refer to an earlier time have none.
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
    /// The call began by [`Event::Enter`].
    Call,
    /// The call began by [`Event::Jump`], a tail call.
    Jump,
    /// The call was open at the fork by which the process began: [`Event::Inherited`].
    Inherited,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The number of the called function.
    pub function: u32,
    /// The time at which the call began.
    pub time: u64,
    /// How the call began.
    pub kind: OpenKind,
}

/// The state of a thread between two events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The thread's number.
    pub tid: u32,
    /// The stack on which it runs.
    pub chain: u32,
    /// The sum of all [`Event::Pause`] before.
    pub pauses: u64,
    /// For each stack: its number, the number of outermost open calls that are omitted here, and the other open calls from the
    /// outermost one inwards.
    pub chains: Vec<(u32, u64, Vec<Open>)>,
}
