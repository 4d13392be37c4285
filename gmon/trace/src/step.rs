//! The steps of a trace, to which its events are converted.

use crate::chunk::Process;
use crate::event::OpenKind;
use crate::trace::{Callee, Trace};
use crate::value::{Arguments, Value};

/// A step: a beginning or an end of a call, or another occurrence on a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time in ticks of the process's clock. The times of a thread's steps never decrease.
    pub time: u64,
    /// The index of the process in [`Trace::processes`](crate::Trace::processes).
    pub process: u32,
    /// The thread ID, or 0 if it is not known.
    pub tid: u32,
    /// The number of the buffer in the trace, which identifies a thread among those that run at the same time. Several threads may have
    /// used a buffer in succession.
    pub buffer: u32,
    /// The number of the stack, which distinguishes the thread's own stack and those of coroutines.
    pub chain: u32,
    /// The sum of the thread's pauses up to this step, in ticks: the time that gprofinject itself has taken.
    pub pauses: u64,
    /// The kind of the step.
    pub what: What,
}

/// The kind of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call begins that makes others, or whose end is not in the trace.
    Begin(Begun),
    /// A call ends.
    End(Ended),
    /// A call begins and ends without another step between. The time of this step is that of the beginning.
    Leaf(Begun, Ended),
    /// A call begins whose end the trace does not contain, because the function's exit is not hooked.
    Mark(Begun),
    /// A call ends whose beginning is not known.
    Orphan {
        /// The function.
        function: Callee,
        /// How it ended.
        how: How,
    },
    /// This number of events is not in the trace, because the ring had no room for them.
    Lost(u64),
    /// This number of events is not in the file any more: they were too old to be kept, or are damaged.
    Missing(u64),
    /// The thread continues on the stack with the number [`Step::chain`].
    Stack,
    /// More calls are open than can be followed. Calls within them are omitted from now on.
    TooDeep,
}

/// A call that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The called function.
    pub function: Callee,
    /// The calling function, if a call is open around this one.
    pub caller: Option<Callee>,
    /// How the call begins.
    pub kind: OpenKind,
    /// The number of calls around this one that are shown.
    pub depth: u32,
    /// The time at which the call began, if that was before the part of the trace that is shown.
    pub earlier: Option<u64>,
    /// The encoded arguments, if the trace has them.
    pub arguments: Option<Vec<u8>>,
}

/// A call that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The called function.
    pub function: Callee,
    /// The calling function, if a call is open around this one.
    pub caller: Option<Callee>,
    /// How the call began.
    pub kind: OpenKind,
    /// How the call ends.
    pub how: How,
    /// The number of calls around this one that are shown, as in [`Begun::depth`].
    pub depth: u32,
    /// The time at which the call began, in ticks.
    pub began: u64,
    /// The time at which the call ended, in ticks.
    pub ended: u64,
    /// Whether the call began before the part of the trace that is shown. If so, all durations below are those within that part.
    pub is_earlier: bool,
    /// The call's duration in ticks, without pauses and without the time in which its stack was not the current one.
    pub lasted: u64,
    /// `lasted` without the overhead of the measurement of this call and the calls within it.
    pub duration: u64,
    /// `lasted` minus the durations of the calls that this call made and the overhead outside of them. May be negative.
    pub own: i64,
    /// The number of calls that began within this one.
    pub within: u64,
    /// The sum of the pauses within the call, in ticks.
    pub paused: u64,
    /// The encoded result, if the trace has it.
    pub result: Option<Vec<u8>>,
}

impl Begun {
    /// Returns the call's arguments, if the trace knows of some. Those whose values it does not have are among them.
    pub fn arguments_in<'t>(&'t self, trace: &'t Trace) -> Option<Arguments<'t, 't>> {
        let signature = trace.function(self.function)?.signature.as_ref()?;
        let bytes = self.arguments.as_deref();
        let has_some = bytes.is_some() || !signature.parameters.is_empty();
        has_some.then(|| signature.arguments(bytes.unwrap_or_default()))
    }
}

impl Ended {
    /// Returns the call's result, if the trace has it, or knows that there is one of which it cannot have the value.
    pub fn result_in<'t>(&'t self, trace: &'t Trace) -> Option<Value<'t, 't>> {
        let signature = trace.function(self.function)?.signature.as_ref()?;
        let is_unsupported =
            || self.how == How::Returned && signature.result.as_ref().is_some_and(|kind| !kind.has_value());
        match self.result.as_deref() {
            Some(bytes) => signature.result(bytes),
            None if is_unsupported() => signature.result(&[]),
            None => None,
        }
    }
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The call returns.
    Returned,
    /// The call ends without a return: by an exception, a longjmp, or the end of its thread.
    Left,
    /// The call is still open at the end of the part that is shown.
    Open,
    /// The call has ended, but the trace does not show when and how.
    Unknown,
}

impl Ended {
    /// Returns the time in the function itself without overhead, in ticks.
    pub fn own(&self, overhead: Overhead) -> u64 {
        self.own.saturating_sub_unsigned(overhead.inside).max(0) as u64
    }

    /// Returns the overhead of gprofinject in this call and the calls within it, in ticks.
    pub fn overhead(&self) -> u64 {
        (self.lasted - self.duration.min(self.lasted)).saturating_add(self.paused)
    }
}

/// The overhead of the measurement of a call, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// The part inside of its measured interval.
    pub inside: u64,
    /// The part outside of the interval, which is in the caller's interval.
    pub outside: u64,
}

impl Overhead {
    /// Returns the overhead of a process, as its agent has rounded it.
    pub fn of(process: &Process) -> Overhead {
        let whole = |part_256: u64| part_256.saturating_add(128) >> 8;
        Overhead { inside: whole(process.inside_256), outside: whole(process.outside_256) }
    }

    /// Returns a duration minus the overhead of the call itself and of the `within` calls inside it.
    pub fn taken_out(self, lasted: u64, within: u64) -> u64 {
        let both = self.inside.saturating_add(self.outside);
        lasted.saturating_sub(within.saturating_mul(both).saturating_add(self.inside))
    }
}
