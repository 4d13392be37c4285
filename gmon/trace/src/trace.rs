//! A trace: what its chunks define, and where those with events are.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::chunk::Process;
use crate::clock::{Clock, Span};
use crate::file::Raw;
use crate::input::Input;
use crate::scan::Damage;
use crate::value::Signature;

/// A trace. Its events stay in the file, from where [`Trace::steps`](crate::Trace::steps) reads them.
#[derive(Debug)]
pub struct Trace {
    pub(crate) input: Input,
    /// The version of gprofinject; empty if it is not known.
    pub version: String,
    /// The program and its arguments; empty if they are not known.
    pub command: Vec<String>,
    /// The processes, with the programs that they executed.
    pub processes: Vec<Recorded>,
    /// All functions. Those of the same address in the same module are one, also if several processes have them.
    pub functions: Vec<Function>,
    /// The paths of modules.
    pub modules: Vec<String>,
    /// The threads' buffers.
    pub(crate) streams: Vec<Stream>,
    /// What could not be read.
    pub damage: Vec<Damage>,
    /// The time of day at which elapsed times begin.
    pub start_unix_ns: u64,
    /// By [`Process::id`].
    pub(crate) ids: HashMap<u32, u32>,
}

/// A program in a process.
#[derive(Debug)]
pub struct Recorded {
    /// What the trace says of it. If it says nothing, there is only the [`Process::id`].
    pub process: Process,
    /// The index of the process that has forked it, or of the program that it was before.
    pub parent: Option<u32>,
    /// Its clock.
    pub clock: Clock,
    /// When it ended, or the trace of it, in ticks.
    pub end: Option<u64>,
    /// The last time that the trace tells of, in ticks.
    pub(crate) last: u64,
    /// The names of its threads.
    pub threads: HashMap<u32, String>,
    /// The indices of its functions, without those of the process that has forked it.
    pub(crate) numbers: HashMap<u32, u32>,
    pub(crate) span: Span,
    /// The chunks with what the scheduler did to threads.
    pub(crate) switches: HashMap<u32, Vec<(u64, Raw)>>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name as in the symbol table; empty if it has none.
    pub name: String,
    /// The index of its module.
    pub module: u32,
    /// Its link address.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The kinds of its arguments and of its result, if the trace has them.
    pub signature: Option<Signature>,
}

/// A function that an event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Callee {
    /// Its number in the process.
    pub number: u32,
    /// Its index in [`Trace::functions`], if the trace defines it.
    pub index: Option<u32>,
}

impl Callee {
    /// A number that no other function of the process has.
    fn key(self) -> u64 {
        self.index.map_or(u64::from(self.number) | 1 << 32, u64::from)
    }
}

impl Hash for Callee {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key());
    }
}

/// Where the chunks of a buffer are, in the order of their events.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The index of the process.
    pub(crate) process: u32,
    pub(crate) chunks: Vec<Place>,
}

/// Where a chunk with events is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) raw: Raw,
    /// The number of its first event.
    pub(crate) first: u64,
    /// The number of its events, as it says.
    pub(crate) count: u64,
    /// The time of its first event that has one, and not less than that of the chunk before.
    pub(crate) time: u64,
}

impl Trace {
    /// Returns the function with a number in a process: its own, or that of the process that has forked it.
    pub(crate) fn callee(&self, process: u32, number: u32) -> Callee {
        let mut at = self.processes.get(process as usize);
        // A file may say that processes have forked each other.
        for _ in 0..self.processes.len() {
            let Some(recorded) = at else { break };
            if let Some(&index) = recorded.numbers.get(&number) {
                return Callee { number, index: Some(index) };
            }
            let parent = recorded.parent.and_then(|parent| self.processes.get(parent as usize));
            // The numbers of a program that the process was before are not its own.
            at = parent.filter(|parent| parent.process.pid != recorded.process.pid);
        }
        Callee { number, index: None }
    }

    /// Returns a function that an event names.
    pub fn function(&self, callee: Callee) -> Option<&Function> {
        self.functions.get(callee.index? as usize)
    }

    /// Returns the path of a function's module.
    pub fn module(&self, function: &Function) -> &str {
        self.modules.get(function.module as usize).map_or("", String::as_str)
    }

    /// Returns the index of the process with an [`Process::id`].
    pub fn process(&self, id: u32) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    /// Returns how long after the start a tick of a process was, in nanoseconds.
    pub fn elapsed(&self, process: u32, ticks: u64) -> u64 {
        let clock = self.processes.get(process as usize).map(|recorded| recorded.clock);
        clock.map_or(0, |clock| clock.since(self.start_unix_ns, ticks))
    }

    /// Returns how long after the start the last event was, as far as is known, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        let ends =
            self.processes.iter().map(|recorded| recorded.clock.since(self.start_unix_ns, recorded.last));
        ends.max().unwrap_or(0)
    }
}
