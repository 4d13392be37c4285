//! A trace: the definitions of its chunks, and the places of the chunks with events.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::chunk::Process;
use crate::clock::{Clock, Span};
use crate::file::Raw;
use crate::input::Input;
use crate::scan::Damage;
use crate::value::Signature;

/// A trace. Its events stay in the file; [`Trace::steps`](crate::Trace::steps) reads them from there.
#[derive(Debug)]
pub struct Trace {
    pub(crate) input: Input,
    /// The version of gprofinject, or an empty string if it is not known.
    pub version: String,
    /// The program and its arguments, or an empty list if they are not known.
    pub command: Vec<String>,
    /// The processes. A process that executed several programs has one entry for each of them.
    pub processes: Vec<Recorded>,
    /// All functions. Functions at the same address in the same module are one entry, even if several processes have them.
    pub functions: Vec<Function>,
    /// The paths of modules.
    pub modules: Vec<String>,
    /// The threads' buffers.
    pub(crate) streams: Vec<Stream>,
    /// The parts of the file that could not be read.
    pub damage: Vec<Damage>,
    /// The time of day to which elapsed times are relative, in nanoseconds since 1970, UTC.
    pub start_unix_ns: u64,
    /// The indices of processes by [`Process::id`].
    pub(crate) ids: HashMap<u32, u32>,
}

/// A process while it executes one program.
#[derive(Debug)]
pub struct Recorded {
    /// The definition in the trace. If there is none, only the [`Process::id`] is set.
    pub process: Process,
    /// The index of the process that has forked this one, or of the program that the process executed before.
    pub parent: Option<u32>,
    /// The process's clock.
    pub clock: Clock,
    /// The time at which the process or its trace ended, in ticks.
    pub end: Option<u64>,
    /// The latest time of the process in the trace, in ticks.
    pub(crate) last: u64,
    /// The names of the process's threads, by thread ID.
    pub threads: HashMap<u32, String>,
    /// The indices of the process's functions by number, without those that it has inherited by a fork.
    pub(crate) numbers: HashMap<u32, u32>,
    pub(crate) span: Span,
    /// The chunks with scheduler events, by thread ID.
    pub(crate) switches: HashMap<u32, Vec<(u64, Raw)>>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The function's name as in the symbol table, or an empty string if it has none.
    pub name: String,
    /// The index of the function's module in [`Trace::modules`].
    pub module: u32,
    /// The link address.
    pub address: u64,
    /// The length in bytes.
    pub size: u64,
    /// The kinds of the arguments and of the result, if the trace has them.
    pub signature: Option<Signature>,
}

/// A reference to a function by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Callee {
    /// The function's number in the process.
    pub number: u32,
    /// The function's index in [`Trace::functions`], if the trace defines the function.
    pub index: Option<u32>,
}

impl Callee {
    /// Returns a number that is unique among the functions of a process.
    fn key(self) -> u64 {
        self.index.map_or(u64::from(self.number) | 1 << 32, u64::from)
    }
}

impl Hash for Callee {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key());
    }
}

/// The places of a buffer's chunks, in the order of their events.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The index of the process.
    pub(crate) process: u32,
    pub(crate) chunks: Vec<Place>,
}

/// The place of a chunk with events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) raw: Raw,
    /// The number of the chunk's first event.
    pub(crate) first: u64,
    /// The number of events that the chunk claims to have.
    pub(crate) count: u64,
    /// The time of the chunk's first event that has one, but not less than that of the preceding chunk.
    pub(crate) time: u64,
}

impl Trace {
    /// Returns the function with this number in a process: the process's own, or one that it has inherited by a fork.
    pub(crate) fn callee(&self, process: u32, number: u32) -> Callee {
        let mut at = self.processes.get(process as usize);
        // The bound is needed because a file may claim that processes have forked each other.
        for _ in 0..self.processes.len() {
            let Some(recorded) = at else { break };
            if let Some(&index) = recorded.numbers.get(&number) {
                return Callee { number, index: Some(index) };
            }
            let parent = recorded.parent.and_then(|parent| self.processes.get(parent as usize));
            // Numbers of a program that the same process executed before are not valid any more.
            at = parent.filter(|parent| parent.process.pid != recorded.process.pid);
        }
        Callee { number, index: None }
    }

    /// Returns the function to which an event refers, if the trace defines it.
    pub fn function(&self, callee: Callee) -> Option<&Function> {
        self.functions.get(callee.index? as usize)
    }

    /// Returns the path of a function's module.
    pub fn module(&self, function: &Function) -> &str {
        self.modules.get(function.module as usize).map_or("", String::as_str)
    }

    /// Returns the index of the process with this [`Process::id`].
    pub fn process(&self, id: u32) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    /// Converts a time of a process's clock to nanoseconds since the start of the trace.
    pub fn elapsed(&self, process: u32, ticks: u64) -> u64 {
        let clock = self.processes.get(process as usize).map(|recorded| recorded.clock);
        clock.map_or(0, |clock| clock.since(self.start_unix_ns, ticks))
    }

    /// Returns the time from the start of the trace to the last known event, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        let ends =
            self.processes.iter().map(|recorded| recorded.clock.since(self.start_unix_ns, recorded.last));
        ends.max().unwrap_or(0)
    }
}
