//! The arguments of the tables of functions and of paths.

use clap::ValueEnum;

use crate::cli::report_args::{RowsArgs, ShownArgs};
use crate::cli::run_args::RunArgs;

/// The arguments of the tables of functions.
#[derive(Default, clap::Args)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) files: RunArgs,
    /// Show only functions with these names: mangled, demangled, or their last components; or MODULE!FUNCTION; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// Show only functions of these modules, by file name or path; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) module: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

#[derive(Default, clap::Args)]
pub(crate) struct FlatArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// A row for each of these
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub(crate) by: By,
    /// Order of the rows; numbers are sorted from the highest [default: self, or calls if there are no times]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Column>,
    /// Of measured times: add the times as they were measured, with gprofinject's own overhead
    #[arg(long)]
    pub(crate) raw: bool,
    /// Of several RUNs, the processes of a parallel job: print the least, the mean and the most instead of the sum
    #[arg(long, conflicts_with_all = ["by", "raw"])]
    pub(crate) spread: bool,
    /// Of --spread: what is compared [default: self, or calls if there are no times]
    #[arg(long, value_name = "WHAT", requires = "spread")]
    pub(crate) of: Option<Quantity>,
}

#[derive(clap::Args)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// Order of the functions; numbers are sorted from the highest [default: inclusive, or calls if there are no times]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Column>,
}

#[derive(clap::Args)]
pub(crate) struct PathsArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// Leave out paths with less than this part of the time [default: 0.5; with --folded and --json: 0]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) min_percent: Option<f64>,
    /// Leave out calls below this depth; the functions at which paths begin have depth 1
    #[arg(long, value_name = "CALLS")]
    pub(crate) depth: Option<u32>,
    /// A tree for each thread; of recorded paths
    #[arg(long)]
    pub(crate) threads: bool,
    /// The slowest calls that `gprofinject --slow` has kept, and by which paths each differs from the typical call; -n is the number of
    /// calls, -f selects among the functions of --slow, and --min-percent is that of a call
    #[arg(long, conflicts_with_all = ["threads", "folded", "waits"])]
    pub(crate) slow: bool,
    /// Print lines `a;b;c NANOSECONDS` of self time, which flame graph tools read
    #[arg(long, conflicts_with = "json")]
    pub(crate) folded: bool,
    /// Where threads waited, the longest first: the function that waited, and its callers; of recorded paths
    #[arg(long, conflicts_with_all = ["folded", "depth"])]
    pub(crate) waits: bool,
}

#[derive(clap::Args)]
pub(crate) struct ValuesArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// Show the values by path of calls, in place of the callers; with --json, beside them
    #[arg(long)]
    pub(crate) paths: bool,
    /// Add a histogram of each number, by powers of two
    #[arg(long, conflicts_with = "json")]
    pub(crate) histogram: bool,
}

/// What the rows of a table are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    #[default]
    Function,
    Module,
    Program,
    /// The labels of processes, by GPROFINJECT_LABEL
    Label,
    Process,
    /// Measured times only
    Thread,
}

/// What is compared of several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantity {
    Calls,
    /// Time in the function itself
    #[value(name = "self")]
    Own,
}

/// A column by which rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// Time in the function itself
    #[value(name = "self")]
    Own,
    /// Time in the function and in what it called
    Inclusive,
    Calls,
    /// Calls that were not made within another call of the function
    Primitive,
    /// Inclusive time of a primitive call
    Mean,
    /// Shortest call, or with --spread the least of all processes
    Min,
    /// Longest call, or with --spread the most of all processes
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
    /// Executed instructions, if basic blocks were counted
    Instructions,
    /// Self time, not corrected
    SelfRaw,
    /// Inclusive time, not corrected
    InclusiveRaw,
    /// Processes only: time from the beginning of the run to that of the process
    Begin,
    /// Threads and processes only: time from the beginning to the end
    Life,
    /// Threads only: time in which no hooked function was running
    Outside,
    /// Threads and modules only: time that gprofinject took; that of a module by the number of its calls
    Overhead,
    /// Modules only: calls by functions of other modules
    FromOutside,
    /// Modules only: time in which neither the module nor what it had called was running
    Between,
    /// --spread only: the most divided by the mean
    Imbalance,
    Name,
    Module,
}

impl Column {
    /// Returns the name that the user types.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
    }
}
