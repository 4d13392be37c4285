//! What the chunks of a file say.

use crate::event::{Event, State};
use crate::value::Signature;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The beginning of the recording.
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
    /// The time of a process's clock at a moment.
    Clock {
        /// [`Process::id`].
        process: u32,
        /// The clock.
        ticks: u64,
        /// Nanoseconds since 1970, UTC.
        unix_ns: u64,
    },
    /// How fast the time stamp counter runs: so many ticks took so many nanoseconds. A later chunk replaces an earlier one.
    Rate {
        /// The ticks.
        ticks: u64,
        /// The nanoseconds.
        nanoseconds: u64,
    },
    /// Consecutive events of a thread, or of threads that have used the same buffer one after the other.
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
        /// Its name.
        name: String,
    },
    /// When a thread ran, and on which processor.
    Switches {
        /// [`Process::id`].
        process: u32,
        /// The thread's number.
        tid: u32,
        /// What happened to it, in the order of the times.
        switches: Vec<Switch>,
    },
    /// Nothing follows of a process.
    End {
        /// [`Process::id`].
        process: u32,
        /// The clock when it ended.
        ticks: u64,
    },
}

/// A program in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The number by which other chunks name it. A process that executes another program has several.
    pub id: u32,
    /// The `id` of the process that has forked it, or of the program that it was before.
    pub parent: Option<u32>,
    /// The process's number.
    pub pid: u32,
    /// The path of the program.
    pub program: String,
    /// What its times are.
    pub clock: ClockKind,
    /// Ticks that measuring a call takes inside of its interval, times 256.
    pub inside_256: u64,
    /// The same outside of it.
    pub outside_256: u64,
    /// By how much both together vary.
    pub spread_256: u64,
}

/// What a tick is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// One of the time stamp counter.
    Tsc,
    /// A nanosecond of CLOCK_MONOTONIC.
    Nanoseconds,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The number that events have.
    pub number: u32,
    /// Its name as in the symbol table; empty if it has none.
    pub name: String,
    /// The path of the program or library.
    pub module: String,
    /// Its link address.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The kinds of its arguments and of its result, if the trace has them.
    pub signature: Option<Signature>,
}

/// The scheduler's decision about a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// When, in ticks of the process's clock.
    pub time: u64,
    /// The number of the processor.
    pub cpu: u32,
    /// What it is.
    pub kind: SwitchKind,
}

/// What a [`Switch`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// The thread runs on the processor from now on.
    On,
    /// It does not run any more.
    Off {
        /// Whether it could go on, and another one was preferred. Otherwise it waits.
        preempted: bool,
    },
    /// It was moved to the processor.
    Migrated,
}
