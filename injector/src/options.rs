//! The choices that a user has, as all layers know them.
//!
//! The command line and the files of a run name these choices, and the other layers act on them.

use clap::ValueEnum;
use gmon_run::ClockSource;
use gprofinject_abi::clock::ClockKind;
use serde::{Deserialize, Serialize};

/// Where a hooked function is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum HooksArg {
    Both,
    Entry,
    None,
}

/// What `--count` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum CountArg {
    Blocks,
    Lines,
}

/// Who takes samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplerArg {
    Auto,
    Perf,
    Timer,
}

/// Which engine writes the patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum EngineArg {
    #[default]
    Builtin,
    Frida,
    #[value(name = "frida,builtin")]
    FridaOrBuiltin,
}

/// What measures the durations of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ClockArg {
    /// The time stamp counter if the kernel says that it is stable, otherwise clock_gettime.
    #[default]
    Auto,
    Tsc,
    Gettime,
    /// The instructions that the program executes.
    Instructions,
}

/// What a [`ClockArg`] stands for on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Clock {
    #[default]
    Tsc,
    Gettime,
    /// The instructions that a thread executes in hooked functions. A tick is an instruction.
    Instructions,
}

impl Clock {
    /// Returns what the agent calls it.
    pub(crate) fn kind(self) -> ClockKind {
        match self {
            Clock::Tsc => ClockKind::Tsc,
            Clock::Gettime => ClockKind::Gettime,
            Clock::Instructions => ClockKind::Instructions,
        }
    }

    /// Returns what the recording of a run calls it.
    pub(crate) fn source(self) -> ClockSource {
        match self {
            Clock::Tsc => ClockSource::Tsc,
            Clock::Gettime => ClockSource::ClockGettime,
            Clock::Instructions => ClockSource::Instructions,
        }
    }
}

/// How the files of a process that is part of a parallel job are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RanksArg {
    /// With the rank that the job's launcher has given to the process.
    #[default]
    Auto,
    /// With the rank and the name of the host.
    Host,
    /// As those of any other process.
    None,
}

/// What happens to a call's event if the buffer of its thread is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum FullArg {
    /// The thread waits until there is room.
    #[default]
    Wait,
    /// The event is lost.
    DropNew,
    /// The oldest events are lost.
    DropOld,
}

/// How calls are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tracing {
    pub(crate) full: FullArg,
    /// The greatest number of traced calls that are open at the same time on a stack; 0 if there is no limit.
    pub(crate) depth: u32,
    /// The least duration of a traced call.
    pub(crate) least_ns: u64,
    /// Whether arguments and results are traced as well.
    pub(crate) args: bool,
}

impl Tracing {
    /// Whether no calls are left out.
    pub(crate) fn is_whole(self) -> bool {
        self.depth == 0 && self.least_ns == 0
    }
}

/// What is measured of the durations of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) clock: Clock,
    /// Whether each path of calls is measured too.
    pub(crate) paths: Option<Paths>,
    /// Whether the durations are a result of the run. Otherwise they are measured for the trace only.
    pub(crate) is_result: bool,
    /// Calls shorter than so many nanoseconds are only counted; 0 if all are measured.
    pub(crate) min_ns: u64,
    /// A thread whose calls cost too much may raise that limit for itself to so many nanoseconds.
    #[serde(default)]
    pub(crate) most_ns: u64,
    /// How calls are traced, if they are.
    pub(crate) trace: Option<Tracing>,
    /// Whether the values of arguments and results are kept. If durations are no result, none are measured.
    #[serde(default)]
    pub(crate) values: bool,
    /// Whether results are among them.
    #[serde(default)]
    pub(crate) results: bool,
}

impl Measure {
    /// Whether durations are measured, and not only values kept.
    pub(crate) fn measures(self) -> bool {
        self.is_result || !self.values
    }
}

/// How paths of calls are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Paths {
    /// The greatest number of nodes of a thread's tree.
    pub(crate) nodes_max: u32,
    /// Whether a recursive call has the node of the first call of its function on the path.
    pub(crate) folds: bool,
}

/// What a user can ask of a process while it is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    Dump,
    Reset,
    Pause,
    Resume,
    /// Switch functions on or off.
    Enable,
    Disable,
    /// Say what was counted up to now, for a live view.
    Look,
}

/// A format in which the profile is written at the end, and the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) format: gmon_export::formats::Format,
    pub(crate) file: std::path::PathBuf,
}
