//! What a process has counted at one moment. Another gprofinject may have made it, so that it can be sent.

use serde::{Deserialize, Serialize};

/// What a snapshot must contain beside the functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wants {
    /// What each thread has counted.
    pub(crate) threads: bool,
    /// The functions that this thread has called, and no other.
    pub(crate) thread: Option<u32>,
}

/// What a process has counted at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The file name of the program.
    pub(crate) program: String,
    pub(crate) pid: i32,
    /// The processes of the run, each with its program.
    pub(crate) processes: Vec<(i32, String)>,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) ns: u64,
    /// The file names of the modules.
    pub(crate) modules: Vec<String>,
    pub(crate) functions: Vec<Function>,
    /// Empty unless they were wanted.
    pub(crate) threads: Vec<Thread>,
    /// The values of arguments and results; empty if none are kept, or for one thread.
    #[serde(default)]
    pub(crate) values: Vec<Argument>,
    /// The thread that the functions are of; `None` if they are of all threads.
    pub(crate) thread: Option<u32>,
    /// Samples per second of CPU time; 0 if none are taken.
    pub(crate) rate: u32,
    /// Samples in gprofinject's own code.
    pub(crate) own_samples: u64,
    /// Whether durations are measured.
    pub(crate) is_measured: bool,
    pub(crate) is_paused: bool,
    /// The number of functions that are switched off.
    pub(crate) off: u64,
    /// The CPU time that reading has taken, in nanoseconds.
    pub(crate) took_ns: u64,
    /// The CPU time of the gprofinject that profiles the process, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

/// A function that was called or sampled, or is switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Function {
    /// The index of its module in [`Snapshot::modules`].
    pub(crate) module: u32,
    /// What identifies the function in its module: its link address, or a hash of its name.
    pub(crate) id: u64,
    /// Its name, demangled and in short.
    pub(crate) name: String,
    /// Its name in the symbol table, if that is another one.
    pub(crate) symbol: Option<String>,
    pub(crate) calls: u64,
    pub(crate) samples: u64,
    /// Measured durations, in nanoseconds.
    pub(crate) own_ns: u64,
    pub(crate) inclusive_ns: u64,
    pub(crate) is_hooked: bool,
    pub(crate) is_off: bool,
}

/// The values of an argument of a function, or of its result, in the calls by all callers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Argument {
    /// The names of the function and of the argument.
    pub(crate) name: String,
    pub(crate) calls: u64,
    /// What all values have in common, and the most frequent one.
    pub(crate) summary: String,
    /// The most frequent values, and how often each was seen.
    pub(crate) values: Vec<(String, u64)>,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) runs: bool,
    /// How many threads have used these counters, one after the other. The counts are those of all of them.
    pub(crate) owners: u32,
    pub(crate) calls: u64,
    /// CPU time in milliseconds; 0 if it has ended.
    pub(crate) cpu_ms: u64,
    /// The function that it has called most often.
    pub(crate) most: String,
}
