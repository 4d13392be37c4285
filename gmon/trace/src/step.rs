//! The steps of a trace: what happens, one after the other.

use crate::chunk::Process;
use crate::event::OpenKind;
use crate::trace::Callee;

/// Something that happens on a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in ticks of the process's clock. On a thread, times never decrease.
    pub time: u64,
    /// The index of the process in [`Trace::processes`](crate::Trace::processes).
    pub process: u32,
    /// The number of the thread; 0 if it is not known.
    pub tid: u32,
    /// What tells threads apart: the number of the buffer in the trace. Threads may have used it one after the other.
    pub buffer: u32,
    /// The number of the stack. It tells the stacks of a thread apart: its own, and those of coroutines.
    pub chain: u32,
    /// For how long the thread has paused until then, because gprofinject had something to do, in ticks.
    pub pauses: u64,
    /// What happens.
    pub what: What,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call begins that makes others, or whose end is not in the trace.
    Begin(Begun),
    /// A call ends.
    End(Ended),
    /// A call begins and ends, and nothing happens on its thread meanwhile. The step's time is that of the beginning.
    Leaf(Begun, Ended),
    /// A call begins whose end is never seen.
    Mark(Begun),
    /// A call ends whose beginning is not known.
    Orphan {
        /// The function.
        function: Callee,
        /// How it ended.
        how: How,
    },
    /// So many events are not in the trace, because there was no room for them.
    Lost(u64),
    /// So many events are not in the file any more: they were too old to be kept, or are damaged.
    Missing(u64),
    /// The thread goes on on the stack with the step's number.
    Stack,
    /// More calls are open than can be followed. Those that begin from now on within them are left out.
    TooDeep,
}

/// A call that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its function.
    pub function: Callee,
    /// The function of the call around it.
    pub caller: Option<Callee>,
    /// How it begins.
    pub kind: OpenKind,
    /// The number of calls around it, of those that are shown.
    pub depth: u32,
    /// When it began, if that was before what is shown of the trace.
    pub earlier: Option<u64>,
    /// The bytes of its arguments.
    pub arguments: Option<Vec<u8>>,
}

/// A call that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its function.
    pub function: Callee,
    /// The function of the call around it.
    pub caller: Option<Callee>,
    /// How it began.
    pub kind: OpenKind,
    /// How it ends.
    pub how: How,
    /// As in [`Begun::depth`].
    pub depth: u32,
    /// When it began and ended, in ticks.
    pub began: u64,
    /// See `began`.
    pub ended: u64,
    /// Whether it began before what is shown of the trace. All durations below are then of the part that is shown.
    pub is_earlier: bool,
    /// How long it lasted, in ticks: without pauses, and without the time in which its stack was not the current one.
    pub lasted: u64,
    /// The same without the overhead of measuring it and the calls within it.
    pub duration: u64,
    /// What of `lasted` is not in the calls that it made, each with the overhead outside of it. May be negative.
    pub own: i64,
    /// The number of calls that began within it.
    pub within: u64,
    /// The pauses within it.
    pub paused: u64,
    /// The bytes of its result.
    pub result: Option<Vec<u8>>,
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It returns.
    Returned,
    /// It is left: by an exception, a longjmp, or the end of its thread.
    Left,
    /// It is still open at the end of what is shown.
    Open,
    /// It has ended by now. When and how is not in the trace.
    Unknown,
}

impl Ended {
    /// Returns the time in the function itself without overhead, in ticks.
    pub fn own(&self, overhead: Overhead) -> u64 {
        self.own.saturating_sub_unsigned(overhead.inside).max(0) as u64
    }

    /// Returns what gprofinject has taken of the call's time and of that of the calls within it, in ticks.
    pub fn overhead(&self) -> u64 {
        (self.lasted - self.duration.min(self.lasted)).saturating_add(self.paused)
    }
}

/// What measuring a call takes, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// The part inside of its measured interval.
    pub inside: u64,
    /// The part outside of it, which is in the interval of the call around it.
    pub outside: u64,
}

impl Overhead {
    /// Returns the overhead of a process, as its agent has rounded it.
    pub fn of(process: &Process) -> Overhead {
        let whole = |part_256: u64| part_256.saturating_add(128) >> 8;
        Overhead { inside: whole(process.inside_256), outside: whole(process.outside_256) }
    }

    /// Returns a duration without the overhead of the call and of so many within it.
    pub fn taken_out(self, lasted: u64, within: u64) -> u64 {
        let both = self.inside.saturating_add(self.outside);
        lasted.saturating_sub(within.saturating_mul(both).saturating_add(self.inside))
    }
}
