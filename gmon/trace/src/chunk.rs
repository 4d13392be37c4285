//! The chunks of a file.

use crate::event::{Event, State};
use crate::value::Signature;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The start of the recording.
    Start {
        /// The version of gprofinject.
        version: String,
        /// The program and its arguments.
        command: Vec<String>,
        /// Nanoseconds since 1970, UTC.
        unix_ns: u64,
    },
    /// A process, or the program that it executes from now on.
    Process(Process),
    /// Functions of a process. A later definition of a number replaces an earlier one.
    Functions {
        /// [`Process::id`].
        process: u32,
        /// The functions.
        functions: Vec<Function>,
    },
    /// A simultaneous reading of a process's clock and the time of day.
    Clock {
        /// [`Process::id`].
        process: u32,
        /// The clock.
        ticks: u64,
        /// Nanoseconds since 1970, UTC.
        unix_ns: u64,
    },
    /// The rate of the time stamp counter: it advanced by `ticks` in `nanoseconds`. A later chunk replaces an earlier one.
    Rate {
        /// The ticks.
        ticks: u64,
        /// The nanoseconds.
        nanoseconds: u64,
    },
    /// Consecutive events of a thread, or of several threads that have used the same buffer in succession.
    Events {
        /// [`Process::id`].
        process: u32,
        /// The number of the buffer in its process.
        block: u32,
        /// The number of the first event in the buffer.
        first: u64,
        /// The state before the first event.
        before: State,
        /// The events.
        events: Vec<Event>,
    },
    /// The name of a thread.
    Thread {
        /// [`Process::id`].
        process: u32,
        /// The thread's number.
        tid: u32,
        /// The thread's name.
        name: String,
    },
    /// The scheduler's decisions about a thread: when the thread ran, and on which processor.
    Switches {
        /// [`Process::id`].
        process: u32,
        /// The thread's number.
        tid: u32,
        /// The decisions in the order of their times.
        switches: Vec<Switch>,
    },
    /// The end of a process. No later chunk is about this process.
    End {
        /// [`Process::id`].
        process: u32,
        /// The time of the process's clock at the end.
        ticks: u64,
    },
}

/// A program in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The number by which other chunks refer to the process. A process that executes another program gets a new one.
    pub id: u32,
    /// The `id` of the process that has forked this one, or of the program that the process executed before.
    pub parent: Option<u32>,
    /// The process ID.
    pub pid: u32,
    /// The path of the program.
    pub program: String,
    /// The kind of the process's clock.
    pub clock: ClockKind,
    /// The overhead of the measurement inside the interval of a call, in ticks times 256.
    pub inside_256: u64,
    /// The overhead outside of the interval, in ticks times 256.
    pub outside_256: u64,
    /// The uncertainty of the sum of both, in ticks times 256.
    pub spread_256: u64,
}

/// The kind of a clock, which determines the length of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// The time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC, with ticks of a nanosecond.
    Nanoseconds,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The number by which events refer to the function.
    pub number: u32,
    /// The function's name as in the symbol table, or an empty string if it has none.
    pub name: String,
    /// The path of the program or library.
    pub module: String,
    /// The link address.
    pub address: u64,
    /// The length in bytes.
    pub size: u64,
    /// The kinds of the arguments and of the result, if the trace has them.
    pub signature: Option<Signature>,
}

/// The scheduler's decision about a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The time of the decision in ticks of the process's clock.
    pub time: u64,
    /// The number of the processor.
    pub cpu: u32,
    /// The kind of the decision.
    pub kind: SwitchKind,
}

/// The kind of a [`Switch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// The thread runs on the processor from now on.
    On,
    /// The thread does not run any more.
    Off {
        /// Whether the thread is runnable, and the scheduler has chosen another one. Otherwise the thread waits.
        preempted: bool,
    },
    /// The thread was migrated to the processor.
    Migrated,
}
