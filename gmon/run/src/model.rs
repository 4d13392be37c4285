//! What a run has counted, sampled and measured, in memory.
//!
//! Times are in nanoseconds of wall time. They are corrected for gprofinject's own overhead unless the name of
//! the field says `raw`, and they are never negative.

use std::collections::HashSet;

use twox_hash::XxHash3_64;

use crate::intervals::Intervals;
use crate::lines::LineSamples;
use crate::slow::Slow;
use crate::values::Values;

/// The most [processes](Recording::processes) that a recording tells apart.
pub const PROCESSES_MAX: usize = 10_000;

/// The name that nodes without a function are shown with.
pub const REST_NAME: &str = "[other calls]";

/// The name that stands for callers that are not known: of functions in which samples were taken.
pub const NO_PATH_NAME: &str = "[path not known]";

/// What a run, or several, has counted, sampled and measured.
///
/// Indexes refer to the vectors of this struct. [`Recording::check`] says whether all of them do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The runs of which this is the sum, sorted by their numbers. Empty if no run is known by a number.
    pub runs: Vec<Origin>,
    /// The programs of the run; the first one is the one that was started.
    pub programs: Vec<Program>,
    /// The processes of the programs that have counted anything, in the order in which they were added: at most [`PROCESSES_MAX`].
    /// Empty if they are not known.
    pub processes: Vec<Process>,
    /// The number of processes for which there was no room. What they have done is in the sums.
    pub processes_left_out: u64,
    /// The time at which the run began, in nanoseconds since 1970 (UTC). A file can hold up to `i64::MAX`.
    pub start_unix_ns: u64,
    /// The duration of the run. A file can hold up to `i64::MAX`.
    pub duration_ns: u64,
    pub clock: Clock,
    /// The CPU time for which a sample stands, in nanoseconds; 0 if CPU time was not sampled. A file can hold up
    /// to `i64::MAX`.
    pub sample_period_ns: u64,
    /// The intervals of all histograms.
    pub intervals: Intervals,
    /// The files with code: programs and libraries.
    pub modules: Vec<Module>,
    pub functions: Vec<Function>,
    /// The counted calls of each call site, by program. A combination of program, call site and function may occur several times.
    pub calls: Vec<Calls>,
    /// The samples of CPU time at each address, by program.
    pub hits: Vec<Hits>,
    /// The sampled stacks of all programs, parents before their children. The samples in them are among those of [`hits`](Recording::hits),
    /// which has the ones without a stack too.
    pub stacks: Vec<Stack>,
    /// The samples of the lines of functions that an interpreter executes, by program. They are those of the
    /// [`stacks`](Recording::stacks) with these functions. A combination of program, function and line may occur several times.
    pub lines: Vec<LineSamples>,
    /// How often each basic block was executed, by program.
    pub blocks: Vec<Block>,
    /// The threads whose calls were measured.
    pub threads: Vec<Thread>,
    /// The times of each function in each thread that called it.
    pub rows: Vec<FunctionTimes>,
    /// The times of each arc in each thread.
    pub arcs: Vec<ArcTimes>,
    /// The calling-context trees of all threads, parents before their children. Empty if call paths were not
    /// recorded.
    pub nodes: Vec<Node>,
    /// The number of calls that are in nodes without a function.
    pub nodes_lost: u64,
    /// The slowest calls of functions. Empty if none were kept.
    pub slow: Slow,
    /// The values of arguments and results. Empty if none were kept.
    pub values: Vec<Values>,
}

/// Where a run took place, and what it is known by.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Origin {
    /// A number that no other run has, never 0.
    pub id: u64,
    /// The name of the machine.
    pub host: String,
    /// The rank of its process in a parallel job.
    pub rank: Option<u32>,
    /// The time at which it began, in nanoseconds since 1970 (UTC).
    pub start_unix_ns: u64,
    pub duration_ns: u64,
}

/// A program: in one process, or in all processes of the run that ran it with the same label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Program {
    /// The name that is shown: that of its file, or of the script that it runs.
    pub name: String,
    /// What its processes are labelled with, so that what a program has done for different purposes is told apart; empty if with
    /// nothing.
    pub label: String,
    /// The index of its file.
    pub module: u32,
    /// The number of processes.
    pub processes: u32,
    /// The number of its process, if it is known to be the only one; otherwise 0.
    pub pid: u32,
    /// The samples of CPU time in no known file.
    pub elsewhere: u64,
    /// The samples of CPU time in gprofinject's own code. They are among no others.
    pub overhead: u64,
}

/// A program in a process. A process that has executed several programs is one for each of them, and so is a thread's: that of the same
/// program and number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Process {
    /// The index of the program.
    pub program: u32,
    /// The number of the process.
    pub pid: u32,
    /// That of its parent, or 0 if it is not known.
    pub parent: u32,
    /// The [number](Origin::id) of its run, which says on which host it was, and with which rank; 0 if it is not known.
    pub run: u64,
    /// When the program began, in microseconds after the beginning of its run.
    pub begin_us: u64,
    /// When it ended, or had ended for all that is known, in microseconds after the beginning of its run; 0 if that is not known.
    pub end_us: u64,
    pub ending: Ending,
    /// The counted calls, or the measured ones if times were measured.
    pub calls: u64,
    /// The samples of CPU time, without those in gprofinject's own code.
    pub samples: u64,
    /// The measured time in functions themselves.
    pub self_ns: u64,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Ending {
    /// It is not known, or the process has executed another program, or it had not ended.
    #[default]
    Unknown,
    Exited(u8),
    /// By a signal of this number.
    Killed(u8),
}

/// The counted calls of a function from a call site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The index of the program.
    pub program: u32,
    /// The index of the calling function; `None` if no hooked function was running.
    pub caller: Option<u32>,
    /// The link address within the call instruction, or that of the calling function if the call site is not known; 0 without a
    /// caller.
    pub site: u64,
    /// The index of the called function.
    pub callee: u32,
    pub calls: u64,
}

/// The samples of CPU time at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// The index of the program.
    pub program: u32,
    /// The index of the function.
    pub function: u32,
    /// The link address, or 0 if only the function is known.
    pub address: u64,
    pub samples: u64,
}

/// A node of the tree of a program's sampled stacks: a function together with the path of its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The index of the program.
    pub program: u32,
    /// The index of the caller's node, which is less than that of this node and is of the same program. `None` at the beginning of a
    /// path.
    pub parent: Option<u32>,
    /// The index of the function. `None`, which is only at the beginning of a path, stands for callers that are not known.
    pub function: Option<u32>,
    /// The samples of CPU time in the function itself on this path.
    pub samples: u64,
}

/// How often a basic block was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The index of the program.
    pub program: u32,
    /// The index of the module.
    pub module: u32,
    /// The link address of its first instruction.
    pub address: u64,
    pub executions: u64,
}

/// The clock that measured the times, and its errors. All numbers are finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Clock {
    pub source: ClockSource,
    pub ticks_per_second: f64,
    /// The overhead of a call inside of its measured interval, in nanoseconds. It has been taken out.
    pub inside_ns: f64,
    /// The overhead of a call outside of its measured interval, in nanoseconds. It is in the caller's interval and
    /// has been taken out there.
    pub outside_ns: f64,
    /// The bound of the error that remains for each call after the correction, in nanoseconds.
    pub error_ns: f64,
    /// Calls of functions by callers for which they took less than so many nanoseconds on average may have been only counted; 0 if all
    /// were measured.
    pub counted_below_ns: f64,
}

/// What a time is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum ClockSource {
    /// The processor's time-stamp counter.
    #[default]
    Tsc,
    /// The system call `clock_gettime`, or its vDSO.
    ClockGettime,
    /// The instructions that a thread has executed in hooked functions. All times of threads, functions, arcs and nodes are
    /// numbers of instructions then, and not nanoseconds.
    Instructions,
}

/// A file with code that the process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Module {
    /// The path of the file, or its name alone if no more is known.
    pub path: String,
    /// The build-id, or nothing if the file has none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "hexadecimal"))]
    pub build_id: Vec<u8>,
    /// The [digest](Module::digest_of) of a file without a build-id; 0 if it has one, or is not known.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub digest: u64,
    /// The address of the first byte of its code, as it is linked: the `p_vaddr` of the segment, so that the
    /// [addresses of functions](Function::address) lie between `start` and `limit`. Addresses of several modules
    /// overlap.
    pub start: u64,
    /// The link address after its code.
    pub limit: u64,
    /// The offset in the file of the byte at `start`.
    pub offset: u64,
}

/// A function of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// The name in the symbol table, not demangled, or an empty text if it has none.
    pub name: String,
    /// The index of its module.
    pub module: u32,
    /// The link address, or 0 if only the name is known.
    pub address: u64,
    /// The number of bytes, or 0 if it is not known.
    pub size: u64,
    /// The path of the source file, or an empty text if it is not known.
    pub file: String,
    /// The line at which the function begins, or 0 if it is not known.
    pub line: u32,
}

/// A thread of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Thread {
    /// The index of the program.
    pub program: u32,
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The time from the thread's beginning, or that of the measurement, to its end.
    pub life_ns: u64,
    /// The time in which no hooked function was running.
    pub outside_ns: u64,
    /// The time that gprofinject itself took, which has been taken out of all times that are not raw.
    pub overhead_ns: u64,
    /// The number of samples of CPU time on the thread, also in code that is not hooked, but not in gprofinject's own; 0 if samples
    /// do not know their thread.
    pub samples: u64,
    /// The time for which the thread could have run, but others had the processor: it is in no other time. `None` if that is not known; then
    /// it is in the times of functions, and it is not known when these waited.
    pub ready_ns: Option<u64>,
}

/// The times of a function in a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FunctionTimes {
    /// The index of the function.
    pub function: u32,
    /// The index of the thread.
    pub thread: u32,
    pub calls: u64,
    /// The calls that were not made within another call of the function.
    pub primitive: u64,
    /// The calls that had not returned at the end of the process and were closed there. They are among `calls`.
    pub open: u64,
    /// The calls that were only counted, because the function's calls are [short](Clock::counted_below_ns): their time is in their
    /// callers', and not in this function's. They are among `calls`.
    pub counted: u64,
    /// The time in the function itself.
    pub self_ns: u64,
    /// The part of it in which the thread waited for something; 0 if that is not [known](Thread::ready_ns).
    pub waiting_ns: u64,
    pub self_raw_ns: u64,
    /// The time in the function and in everything that it called. Of recursive calls, only the outermost counts.
    pub inclusive_ns: u64,
    pub inclusive_raw_ns: u64,
    /// The shortest duration of a closed call; 0 if there is none.
    pub min_ns: u64,
    /// The longest duration of a closed call; 0 if there is none.
    pub max_ns: u64,
    /// The number of samples of CPU time in the function itself on the thread; 0 if samples do not know their thread.
    pub samples: u64,
    /// At `i`, the number of closed calls whose duration is in the interval `i` of [`Recording::intervals`]. There are at most as
    /// many elements.
    pub histogram: Vec<u64>,
}

/// The times of an arc in a thread: the calls of one function by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArcTimes {
    /// The index of the calling function; `None` if no hooked function was running.
    pub caller: Option<u32>,
    /// The index of the called function.
    pub callee: u32,
    /// The index of the thread.
    pub thread: u32,
    pub calls: u64,
    /// The calls that had not returned at the end of the process. They are among `calls`.
    pub open: u64,
    /// The calls that were only counted, as in [`FunctionTimes::counted`]. They are among `calls`.
    pub counted: u64,
    /// The time in the callee itself, when it was called by this caller.
    pub self_ns: u64,
    /// The time in the callee and in everything that it called. Of calls within another call of the same arc, only
    /// the outermost counts.
    pub inclusive_ns: u64,
    /// The shortest duration of a closed call; 0 if there is none.
    pub min_ns: u64,
    /// The longest duration of a closed call; 0 if there is none.
    pub max_ns: u64,
}

/// A node of the calling-context tree of a thread: a function together with the path by which it was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Node {
    /// The index of the caller's node, which is less than that of this node and is of the same thread. `None` at the
    /// beginning of a path.
    pub parent: Option<u32>,
    /// The index of the function; `None` stands for all calls for which there was no room for nodes of their own.
    pub function: Option<u32>,
    /// The index of the thread.
    pub thread: u32,
    pub calls: u64,
    pub self_ns: u64,
    /// The part of it in which the thread waited for something; 0 if that is not [known](Thread::ready_ns).
    pub waiting_ns: u64,
    pub samples: u64,
}

impl Recording {
    /// Returns the name of the program that was started.
    pub fn program(&self) -> &str {
        self.programs.first().map_or("", |program| &program.name)
    }

    /// Whether the processes of any program were labelled.
    pub fn has_labels(&self) -> bool {
        self.programs.iter().any(|program| !program.label.is_empty())
    }

    /// Whether the durations of any calls were measured.
    pub fn is_measured(&self) -> bool {
        self.clock.ticks_per_second > 0.0 && !(self.rows.is_empty() && self.arcs.is_empty())
    }

    /// Returns the counted calls of functions of which no call was measured in that program: all, or those of which the ends were
    /// not seen.
    pub fn unmeasured_calls(&self) -> impl Iterator<Item = &Calls> {
        let program_of = |thread: u32| self.threads.get(thread as usize).map_or(0, |thread| thread.program);
        let measured: HashSet<(u32, u32)> = match self.is_measured() {
            true => self.rows.iter().map(|row| (program_of(row.thread), row.function)).collect(),
            false => HashSet::new(),
        };
        self.calls.iter().filter(move |calls| !measured.contains(&(calls.program, calls.callee)))
    }

    /// Adds a process, or counts it if there are [too many](PROCESSES_MAX).
    pub fn add_process(&mut self, process: Process) {
        match self.processes.len() < PROCESSES_MAX {
            true => self.processes.push(process),
            false => sum(&mut self.processes_left_out, 1),
        }
    }

    /// Returns the run of a process, if it is known.
    pub fn run_of(&self, process: &Process) -> Option<&Origin> {
        Origin::of(&self.runs, process)
    }

    /// Returns the file of the program that was started.
    pub fn first_module(&self) -> Option<&Module> {
        let first = self.programs.first().map_or(0, |program| program.module);
        self.modules.get(first as usize)
    }
}

impl Origin {
    /// Returns the run of a process among runs that are sorted by their numbers.
    pub fn of<'r>(runs: &'r [Origin], process: &Process) -> Option<&'r Origin> {
        runs.binary_search_by_key(&process.run, |run| run.id).ok().and_then(|at| runs.get(at))
    }
}

/// The path of the module of all code that processes have made at run time. Its functions have the names that the processes have given them,
/// which no compiler has mangled.
pub const GENERATED: &str = "[generated code]";

/// The path of the module of all functions that Python interpreters have executed.
pub const PYTHON: &str = "[Python]";

impl Module {
    /// Whether its code was made at run time, or is executed by an interpreter: no compiler has mangled the names of its functions.
    pub fn is_generated(&self) -> bool {
        [GENERATED, PYTHON].contains(&&*self.path)
    }

    /// Returns the last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns a number by which versions of a file are told apart that have no build-id (XXH3, 64 bits). It is never 0.
    pub fn digest_of(bytes: &[u8]) -> u64 {
        XxHash3_64::oneshot(bytes).max(1)
    }

    /// Whether these bytes are those of the file, as far as that is known. Its build-id must have been compared.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.digest == 0 || self.digest == Module::digest_of(bytes)
    }
}

impl Program {
    /// Adds what other processes of the same program have done.
    pub fn add(&mut self, other: &Program) {
        self.processes = self.processes.saturating_add(other.processes);
        self.pid = 0;
        sum(&mut self.elsewhere, other.elsewhere);
        sum(&mut self.overhead, other.overhead);
    }
}

impl FunctionTimes {
    /// Returns the number of calls of which the times were measured.
    pub fn measured(&self) -> u64 {
        self.calls.saturating_sub(self.counted)
    }

    /// Whether any measured call has ended.
    pub fn has_closed(&self) -> bool {
        self.measured() > self.open
    }

    /// Adds the times of the same function in another thread or run. The histograms have the same intervals.
    pub fn add(&mut self, other: &FunctionTimes) {
        let closed = (self.has_closed(), other.has_closed());
        (self.min_ns, self.max_ns) = range(closed, (self.min_ns, self.max_ns), (other.min_ns, other.max_ns));
        sum(&mut self.calls, other.calls);
        sum(&mut self.primitive, other.primitive);
        sum(&mut self.open, other.open);
        sum(&mut self.counted, other.counted);
        sum(&mut self.self_ns, other.self_ns);
        sum(&mut self.waiting_ns, other.waiting_ns);
        sum(&mut self.self_raw_ns, other.self_raw_ns);
        sum(&mut self.inclusive_ns, other.inclusive_ns);
        sum(&mut self.inclusive_raw_ns, other.inclusive_raw_ns);
        sum(&mut self.samples, other.samples);
        if self.histogram.len() < other.histogram.len() {
            self.histogram.resize(other.histogram.len(), 0);
        }
        for (to, &calls) in self.histogram.iter_mut().zip(&other.histogram) {
            sum(to, calls);
        }
    }
}

impl ArcTimes {
    /// Returns the number of calls of which the times were measured.
    pub fn measured(&self) -> u64 {
        self.calls.saturating_sub(self.counted)
    }

    /// Whether any measured call has ended.
    pub fn has_closed(&self) -> bool {
        self.measured() > self.open
    }

    /// Adds the times of the same arc in another thread or run.
    pub fn add(&mut self, other: &ArcTimes) {
        let closed = (self.has_closed(), other.has_closed());
        (self.min_ns, self.max_ns) = range(closed, (self.min_ns, self.max_ns), (other.min_ns, other.max_ns));
        sum(&mut self.calls, other.calls);
        sum(&mut self.open, other.open);
        sum(&mut self.counted, other.counted);
        sum(&mut self.self_ns, other.self_ns);
        sum(&mut self.inclusive_ns, other.inclusive_ns);
    }
}

/// Writes bytes as one text.
#[cfg(feature = "serde")]
fn hexadecimal<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Adds without overflow: the numbers of a file may be anything.
fn sum(to: &mut u64, other: u64) {
    *to = to.saturating_add(other);
}

/// Returns the shortest and the longest duration of two sets of calls. A set without closed calls has none.
fn range(closed: (bool, bool), one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    match closed {
        (true, true) => (one.0.min(other.0), one.1.max(other.1)),
        (false, true) => other,
        (true, false) => one,
        (false, false) => (0, 0),
    }
}
