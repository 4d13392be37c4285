//! The analysis of a recording: what tables, exports and comparisons show of it.
//!
//! Indexes refer to the vectors of [`Run`]. A run that this crate has loaded contains valid indexes only. Times are in
//! nanoseconds and never negative; [`Run::time`] says what they are.

use std::collections::BTreeSet;

use gmon_run::{
    Clock, FunctionTimes, Intervals, Module, NO_PATH_NAME, Node, Origin, Process, Program, REST_NAME, Slow,
    Thread, Values,
};
use serde::Serialize;

/// What a run, or the sum of several, has measured: the analysis of its [recording](gmon_run::Recording).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// The name of the program, or words for several.
    pub program: String,
    /// The runs of which this is the sum, as far as they are known.
    pub runs: Vec<Origin>,
    /// The programs of which this is the sum. [`Program::module`] is an index into [`Run::modules`].
    pub programs: Vec<Program>,
    /// The processes of the programs, as far as they are known. [`Process::program`] is an index into [`Run::programs`].
    pub processes: Vec<Process>,
    /// The number of processes for which there was no room in the file.
    pub processes_left_out: u64,
    /// What each of the programs has done; empty if there is only one, in a gmon.out.
    pub shares: Vec<Share>,
    pub view: View,
    /// What the times are, and how far they can be trusted.
    pub time: Time,
    /// When the run began, in nanoseconds since 1970 (UTC), or 0 if that is not known.
    pub start_unix_ns: u64,
    /// How long the run took; 0 if that is not known.
    pub duration_ns: u64,
    /// The CPU time for which a sample stands; 0 if CPU time was not sampled.
    pub sample_period_ns: u64,
    /// All samples of CPU time, also those in no function.
    pub samples: u64,
    /// The clock that measured the times, if they were measured.
    pub clock: Option<Clock>,
    /// The intervals of the histograms in `rows`.
    #[serde(skip)]
    pub intervals: Intervals,
    /// The files of programs and libraries; the first one is that of the first program.
    pub modules: Vec<Module>,
    /// The functions that were called, that called, that have samples or are on their stacks, or that have counts of basic blocks.
    pub functions: Vec<Function>,
    /// The calls, sorted by caller, callee and call site, each combination once. Those of 0 calls are on sampled stacks and were not
    /// counted; without a caller, those into functions whose callers are not known.
    pub arcs: Vec<Arc>,
    /// The sets of functions that call each other in a circle. There are none unless inclusive times are
    /// [estimates](Time::Estimated).
    pub cycles: Vec<Cycle>,
    /// The calling-context trees of all threads, or the tree of all samples if times are by [sampled stacks](Time::Sampled), whose nodes
    /// have no calls and are of no thread. Parents come before their children. Empty if there are neither.
    pub nodes: Vec<Node>,
    /// The number of calls that are in nodes without a function.
    pub nodes_lost: u64,
    /// The slowest calls of functions; empty if none were kept.
    #[serde(skip)]
    pub slow: Slow,
    /// The values of arguments and results; empty if none were kept.
    #[serde(skip)]
    pub values: Vec<Values>,
    /// The threads that have called something; empty if the file does not tell threads apart.
    pub threads: Vec<Thread>,
    /// The measured times of each function in each thread; empty if the file does not tell threads apart.
    pub rows: Vec<FunctionTimes>,
    /// The paths of source files.
    pub files: Vec<String>,
    /// The functions whose code is inlined into others.
    pub inlined: Vec<Inlined>,
    /// The costs by source line, sorted by function. Empty if nothing has addresses or the loader was not asked for lines.
    pub spots: Vec<Spot>,
    /// The time for which other threads had the processor while those of the run were ready, which is in no other time; `None` if it is not
    /// known of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ns: Option<u64>,
    /// Whether executed instructions and lines were counted.
    pub has_instructions: bool,
    /// The owners of the modules' files from which source lines come. They have chosen the names in `files`.
    #[serde(skip)]
    pub owners: BTreeSet<u32>,
}

/// What the functions of one program have done, with those of its libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub calls: u64,
    /// The samples of CPU time, also those in no function.
    pub samples: u64,
    /// The time in functions themselves, of the kind that [`Run::time`] says.
    pub self_ns: u64,
}

/// Whose calls these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// The program's own: the caller of each call is a function of the program.
    #[default]
    Program,
    /// The whole process: the program and its libraries, with the true callers.
    Process,
}

/// What the times of a run are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Time {
    /// There are none: all times are 0.
    #[default]
    None,
    /// CPU time, by samples and their stacks. A time is the number of the samples in a function, or on whose stacks a function or an arc
    /// is.
    Sampled,
    /// CPU time, by samples. Self times are samples; inclusive times, and all times of arcs, are estimates by gprof's rule:
    /// the time of a function is divided among its callers by the number of their calls. See
    /// [`estimate`](crate::estimate).
    Estimated,
    /// Wall time, measured in each call. gprofinject's own overhead has been taken out.
    Measured {
        /// The bound of the error that remains for each call, in nanoseconds.
        error_ns: f64,
    },
    /// Instructions, counted as each call executed them: all that are called times are numbers of instructions.
    Executed,
}

impl Time {
    /// Whether there are any times.
    pub fn is_some(self) -> bool {
        self != Time::None
    }

    /// Whether self times are samples of CPU time.
    pub fn is_sampled(self) -> bool {
        matches!(self, Time::Sampled | Time::Estimated)
    }

    /// Whether these measured times are of the same kind as those of another run.
    pub fn is_comparable(self, other: Time) -> bool {
        match self {
            Time::Executed => other == Time::Executed,
            Time::Measured { .. } => matches!(other, Time::Measured { .. }),
            Time::None | Time::Sampled | Time::Estimated => false,
        }
    }

    /// Whether inclusive times, or instructions, were measured.
    pub fn is_measured(self) -> bool {
        matches!(self, Time::Measured { .. } | Time::Executed)
    }
}

/// A function, or code that is treated as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Function {
    /// The name in the symbol table. Code without a name has one such as `ls+0x4a30`.
    pub name: String,
    /// The name as it is in the source, with parameters; the same as `name` if that is not mangled.
    pub demangled: String,
    /// The index of its module; `None` if that is not known, as for `[outside]` and `[elsewhere]`.
    pub module: Option<u32>,
    /// The link address; 0 if it is not known.
    pub address: u64,
    /// The number of bytes; 0 if it is not known.
    pub size: u64,
    /// Where it begins in the source, if that is known.
    pub source: Option<Line>,
    /// The number of calls, with recursive ones.
    pub calls: u64,
    /// The calls that were not recursive. In measured runs, those that were not made within another call of the function;
    /// in others, those that the function itself did not make.
    pub primitive: u64,
    /// The samples of CPU time in the function itself.
    pub samples: u64,
    /// The time in the function itself.
    pub self_ns: u64,
    /// The time in the function and in what it called. Of recursive calls, only the outermost counts.
    pub inclusive_ns: u64,
    /// The part of `self_ns` in which the threads waited for something; `None` if it is not known of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ns: Option<u64>,
    /// The time in the function itself with gprofinject's own overhead, if times were measured; otherwise 0.
    pub self_raw_ns: u64,
    /// The inclusive time with gprofinject's own overhead, if times were measured; otherwise 0.
    pub inclusive_raw_ns: u64,
    /// The calls that had not returned at the end, if times were measured. They are among `calls`.
    pub open: u64,
    /// The calls that were [only counted](FunctionTimes::counted). They are among `calls`.
    pub counted: u64,
    /// Whether most calls were only counted, and the few others are as [short](is_short), so that its times say nothing.
    pub is_short: bool,
    /// How long its calls took, if that was measured and any of them has returned.
    pub durations: Option<Durations>,
    /// The number of executed instructions, if [`Run::has_instructions`].
    pub instructions: u64,
    /// The index in [`Run::cycles`] of the cycle to which it belongs.
    pub cycle: Option<u32>,
}

/// How long the calls of a function took that have returned, each with everything that it called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Durations {
    /// That of the shortest call.
    pub min_ns: u64,
    /// The duration that half of the calls do not exceed, by a histogram with four intervals for each power of two.
    pub p50_ns: u64,
    /// The duration that 99 of 100 calls do not exceed, by the same histogram.
    pub p99_ns: u64,
    /// That of the longest call.
    pub max_ns: u64,
}

impl Arc {
    /// Adds the calls of another call site, or in another thread.
    fn add(&mut self, other: &Arc) {
        let closed = Arc::has_closed;
        (self.min_ns, self.max_ns) = match (closed(self), closed(other)) {
            (true, true) => (self.min_ns.min(other.min_ns), self.max_ns.max(other.max_ns)),
            (false, true) => (other.min_ns, other.max_ns),
            (_, false) => (self.min_ns, self.max_ns),
        };
        self.calls = self.calls.saturating_add(other.calls);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.inclusive_ns = self.inclusive_ns.saturating_add(other.inclusive_ns);
        self.open = self.open.saturating_add(other.open);
        self.counted = self.counted.saturating_add(other.counted);
        self.is_short &= other.is_short;
    }

    /// Whether any measured call has returned.
    pub fn has_closed(&self) -> bool {
        self.calls.saturating_sub(self.counted) > self.open
    }
}

/// Returns whether most of so many calls were only counted, and the others took less than the limit of these in all that they called. (The
/// outermost call of a recursion is measured, and has the time of those within it.)
pub(crate) fn is_short(calls: u64, counted: u64, inclusive_ns: u64, clock: &Clock) -> bool {
    let measured = calls.saturating_sub(counted) as f64;
    counted > calls / 2 && (inclusive_ns as f64) < measured.max(1.0) * clock.counted_below_ns
}

impl Function {
    /// Returns the CPU time in the function itself beside measured times: what is left without waiting, or what the samples say, each of
    /// which stands for so many nanoseconds, or 0 if there are none.
    pub fn cpu_ns(&self, sample_period_ns: u64) -> Option<u64> {
        match self.waiting_ns {
            Some(waiting) => Some(self.self_ns.saturating_sub(waiting)),
            None => (sample_period_ns > 0).then(|| self.samples.saturating_mul(sample_period_ns)),
        }
    }
}

impl Durations {
    /// Returns how long the calls took; `None` if none of them has returned.
    pub fn of(times: &FunctionTimes, intervals: &Intervals) -> Option<Durations> {
        Some(Durations {
            min_ns: times.min_ns,
            p50_ns: times.quantile_ns(intervals, 0.5)?,
            p99_ns: times.quantile_ns(intervals, 0.99)?,
            max_ns: times.max_ns,
        })
    }
}

/// A line of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Line {
    /// An index into [`Run::files`].
    pub file: u32,
    /// The number of the line, from 1 on.
    pub line: u32,
}

/// The calls of one function by another, from one call site if that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Arc {
    /// The index of the calling function; `None` if no known function was running.
    pub caller: Option<u32>,
    /// The index of the called function.
    pub callee: u32,
    /// The link address of the call in the caller's module, if it is known: an address within the call instruction.
    pub site: Option<u64>,
    /// The source line of the call, and the inlined calls of which it is a part, the innermost first. Empty if it is not
    /// known or the loader was not asked for lines.
    pub frames: Vec<Frame>,
    pub calls: u64,
    /// The time in the callee itself, when it was called by this caller.
    pub self_ns: u64,
    /// The time in the callee and in everything that it called, when it was called by this caller.
    pub inclusive_ns: u64,
    /// The calls that had not returned at the end, if times were measured. They are among `calls`.
    pub open: u64,
    /// The calls that were only counted. They are among `calls`.
    pub counted: u64,
    /// As in [`Function::is_short`].
    pub is_short: bool,
    /// The shortest duration of a call that has returned, if times were measured; otherwise 0.
    pub min_ns: u64,
    /// The longest duration of a call that has returned, if times were measured; otherwise 0.
    pub max_ns: u64,
}

/// Functions that call each other in a circle, so that gprof's rule cannot divide their time among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cycle {
    /// The indexes of its functions.
    pub functions: Vec<u32>,
    /// The number of calls from outside of the cycle.
    pub calls: u64,
    /// The number of calls among its functions, without those of a function by itself.
    pub internal: u64,
    /// The time in its functions themselves.
    pub self_ns: u64,
    /// The time in its functions and in everything that they called outside of the cycle.
    pub inclusive_ns: u64,
}

/// What a function has done in one of several programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramFunction {
    pub function: u32,
    /// The index of the program.
    pub program: u32,
    pub calls: u64,
    pub primitive: u64,
    pub self_ns: u64,
    pub inclusive_ns: u64,
    /// How long its calls took in this program, if that was measured and any of them has returned.
    pub durations: Option<Durations>,
}

/// A function that is inlined into others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inlined {
    /// The name as the symbol table would have it.
    pub name: String,
    /// The name as it is in the source.
    pub demangled: String,
}

/// A place in the source of a function, or of one that is inlined into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Frame {
    /// The index in [`Run::inlined`]; `None` for the function itself.
    pub inlined: Option<u32>,
    /// The line in that function; in all frames but the innermost, the line of the inlined call. `None` if it is not known.
    pub line: Option<Line>,
}

/// What a source line has cost in a function, or in one inlined call within it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spot {
    pub function: u32,
    /// The line, and the inlined calls of which it is a part, the innermost first. The last frame is in the function itself.
    pub frames: Vec<Frame>,
    /// The lowest link address of the line's code that has costs; 0 if an interpreter executes it.
    pub address: u64,
    pub samples: u64,
    /// The CPU time in the line's code, by samples.
    pub self_ns: u64,
    /// The same with the time in what the line calls, if it is known by line.
    pub inclusive: Option<InclusiveTime>,
    /// The number of executed instructions.
    pub instructions: u64,
    /// How often the line was executed; `None` if basic blocks were not counted.
    pub executions: Option<u64>,
}

/// The CPU time of a line in one function and in what the line calls, by samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InclusiveTime {
    pub ns: u64,
    /// What another function further in has on the same line as well: the time of a line in all functions is the sum without it.
    pub nested_ns: u64,
}

impl Run {
    /// Returns the arcs without call sites: one for each caller and callee, in the same order.
    pub fn pairs(&self) -> Vec<Arc> {
        let mut pairs: Vec<Arc> = Vec::new();
        for arc in &self.arcs {
            match pairs.last_mut().filter(|last| (last.caller, last.callee) == (arc.caller, arc.callee)) {
                Some(last) => last.add(arc),
                None => pairs.push(Arc { site: None, frames: Vec::new(), ..arc.clone() }),
            }
        }
        pairs
    }

    /// Returns the module of a function.
    pub fn module_of(&self, function: &Function) -> Option<&Module> {
        self.modules.get(function.module? as usize)
    }

    /// Returns the path of a line's file.
    pub fn file_of(&self, line: Line) -> &str {
        self.files.get(line.file as usize).map_or("", String::as_str)
    }

    /// Returns the instructions that a function itself has executed: those that were counted in place of times, or those of its basic blocks.
    pub fn instructions_of(&self, function: &Function) -> u64 {
        if self.time == Time::Executed { function.self_ns } else { function.instructions }
    }

    /// Returns the same of all functions.
    pub fn instructions(&self) -> u64 {
        self.functions.iter().fold(0, |sum, function| sum.saturating_add(self.instructions_of(function)))
    }

    /// Returns the time in all functions themselves.
    pub fn self_ns(&self) -> u64 {
        self.functions.iter().fold(0, |sum, function| sum.saturating_add(function.self_ns))
    }

    /// Returns the time of which the times of functions are shares: that of all samples, also of those in no function, or that
    /// in all functions themselves.
    pub fn total_ns(&self) -> u64 {
        match self.time {
            Time::Sampled | Time::Estimated => self.samples.saturating_mul(self.sample_period_ns),
            Time::None | Time::Measured { .. } | Time::Executed => self.self_ns(),
        }
    }

    /// Returns what nodes without a function are called.
    pub fn name_without_function(&self) -> &'static str {
        if self.time == Time::Sampled { NO_PATH_NAME } else { REST_NAME }
    }

    /// Returns the number of all calls.
    pub fn calls(&self) -> u64 {
        self.functions.iter().fold(0, |sum, function| sum.saturating_add(function.calls))
    }

    /// Sorts the arcs, and adds up those of the same caller, callee and call site.
    pub(crate) fn sort_arcs(&mut self) {
        self.arcs.sort_by_key(|arc| (arc.caller, arc.callee, arc.site));
        self.arcs.dedup_by(|next, first| {
            let same = (next.caller, next.callee, next.site) == (first.caller, first.callee, first.site);
            if same {
                first.add(next);
            }
            same
        });
    }
}
