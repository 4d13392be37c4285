//! The state of a process whose events are recorded.

use std::collections::HashMap;

use gmon_trace::{ClockKind, Process};

use crate::store::region::ring::{LoadTable, Rings, Source};
use crate::trace::messages::Begun;
use crate::trace::names::Numbers;
use crate::trace::scheduler::LastCpus;
use crate::trace::stream::Stream;

/// A process whose rings are read.
pub(crate) struct Recorded {
    pub(crate) process: u32,
    pub(crate) is_tsc: bool,
    pub(crate) rings: Rings,
    pub(crate) loads: LoadTable,
    pub(crate) numbers: Numbers,
    pub(crate) streams: HashMap<Source, Stream>,
    /// The children that count in this process's file (guests), with their numbers in the trace.
    pub(crate) guests: HashMap<u32, u32>,
    pub(crate) cpus: LastCpus,
    pub(crate) begun: Process,
    /// Whether the trace defines the process, which happens when the agent is ready.
    pub(crate) is_defined: bool,
}

impl Recorded {
    pub(crate) fn new(begun: Begun) -> Recorded {
        let Begun { process, parent, pid, binary, planned, is_tsc, rings, loads } = begun;
        let begun = Process {
            id: process,
            parent,
            pid,
            program: binary.clone(),
            clock: if is_tsc { ClockKind::Tsc } else { ClockKind::Nanoseconds },
            inside_256: 0,
            outside_256: 0,
            spread_256: 0,
        };
        let numbers = Numbers::new(binary, planned);
        Recorded {
            process,
            is_tsc,
            rings,
            loads,
            numbers,
            streams: HashMap::new(),
            guests: HashMap::new(),
            cpus: LastCpus::default(),
            begun,
            is_defined: false,
        }
    }

    /// Returns the numbers that the process and the children that count in its file have in the trace.
    pub(crate) fn numbers_in_trace(&self) -> Vec<u32> {
        std::iter::once(self.process).chain(self.guests.values().copied()).collect()
    }
}
