//! The arguments of the reports of measured times.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::report_args::{RowsArgs, ShownArgs};

/// The arguments that all reports of measured times have.
#[derive(clap::Args)]
pub(crate) struct MeasuredArgs {
    /// The profiled program: checks that the times are of this build. May be left out
    #[arg(value_name = "PROG")]
    pub(crate) program: Option<PathBuf>,
    /// Measured times, as `gprofinject --times` writes them; several are summed [default: gmon.pb.gz]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Show only what these programs of the run did, by name or process number; may be repeated
    #[arg(long = "program", id = "programs", value_name = "NAME")]
    pub(crate) programs: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(clap::Args)]
pub(crate) struct TimesArgs {
    #[command(flatten)]
    pub(crate) common: MeasuredArgs,
    /// Show only functions with these names, mangled or demangled; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// A row for each of these
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub(crate) by: By,
    /// Order of the rows; numbers are sorted from the highest
    #[arg(long, value_name = "COLUMN", default_value = "self")]
    pub(crate) sort: Column,
    /// Add the times as they were measured, with gprofinject's own overhead
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Function,
    Module,
    Thread,
}

/// A column of `gmon times`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    Calls,
    /// Calls that were not made within another call of the function
    Primitive,
    /// Time in the function itself
    #[value(name = "self")]
    Own,
    /// Time in the function and in what it called
    Inclusive,
    /// Inclusive time of a primitive call
    Mean,
    /// Shortest call
    Min,
    /// Longest call
    Max,
    /// The duration that half of the calls do not exceed
    P50,
    /// The duration that 99 of 100 calls do not exceed
    P99,
    /// CPU time in the function itself, by samples
    Cpu,
    /// Time in the function itself without CPU time
    Waiting,
    /// Calls that had not returned at the end
    Open,
    /// Self time, not corrected
    SelfRaw,
    /// Inclusive time, not corrected
    InclusiveRaw,
    /// Threads only: time from the beginning to the end
    Life,
    /// Threads only: time in which no hooked function was running
    Outside,
    /// Threads only: time that gprofinject took
    Overhead,
    Name,
    Module,
}

/// The arguments of `callers` and `callees`.
#[derive(clap::Args)]
pub(crate) struct ArcsArgs {
    /// The function's name, mangled or demangled; a glob selects several functions
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) common: MeasuredArgs,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

#[derive(clap::Args)]
pub(crate) struct PathsArgs {
    #[command(flatten)]
    pub(crate) common: MeasuredArgs,
    /// Begin the paths at functions with these names, mangled or demangled; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// Leave out paths with less than this part of the time [default: 0.5; with --folded and --json: 0]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) min_percent: Option<f64>,
    /// Leave out calls below this depth; the functions at which paths begin have depth 1
    #[arg(long, value_name = "CALLS")]
    pub(crate) depth: Option<u32>,
    /// A tree for each thread
    #[arg(long)]
    pub(crate) threads: bool,
    /// Print lines `a;b;c NANOSECONDS` of self time, which flame graph tools read
    #[arg(long, conflicts_with = "json")]
    pub(crate) folded: bool,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}
