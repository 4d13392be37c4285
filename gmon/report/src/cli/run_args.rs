//! The arguments that say which run is shown.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use gmon_export::formats::{Format, UnknownFormat};

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::{RowsArgs, ShownArgs, SourceArgs};

/// The files of a run.
#[derive(Default, clap::Args)]
pub(crate) struct RunArgs {
    /// A gmon.pb.gz, or a program and its gmon.out; several results are summed. A program or library before a gmon.pb.gz shows only
    /// what that did [default: gmon.pb.gz]
    #[arg(value_name = "RUN", num_args = 0..)]
    pub(crate) run: Vec<PathBuf>,
    /// Show only what these programs of the run did, by name or process number; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Vec<String>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The format: callgrind (KCachegrind), pprof, folded (flame graphs), speedscope, firefox, dot (Graphviz), svg (a flame graph), html (for a
    /// browser, as `gmon html` writes it), gprof (NAME.syms and NAME.whole, of `-o NAME`), json
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: To,
    #[command(flatten)]
    pub(crate) files: RunArgs,
    /// The file to write, compressed if its name ends in .gz [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Do not read debug information: no source lines and no inlined functions, but much faster
    #[arg(long)]
    pub(crate) no_lines: bool,
}

/// What a run can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The pair of files that gprof reads.
    Gprof,
    /// One file.
    File(Format),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<To, String> {
        match text {
            "gprof" => Ok(To::Gprof),
            text => text.parse().map(To::File).map_err(|error: UnknownFormat| format!("{error}, gprof")),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct GprofArgs {
    /// A gmon.pb.gz, or a program and its gmon.out [default: gmon.pb.gz]; then options of gprof
    #[arg(value_name = "RUN|GPROF OPTION", allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
    /// Show only what these programs of the run did, by name or process number; may be repeated. Comes before RUN
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Vec<String>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

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
    /// A tree for each thread
    #[arg(long)]
    pub(crate) threads: bool,
    /// Print lines `a;b;c NANOSECONDS` of self time, which flame graph tools read
    #[arg(long, conflicts_with = "json")]
    pub(crate) folded: bool,
}

#[derive(clap::Args)]
pub(crate) struct HtmlArgs {
    #[command(flatten)]
    pub(crate) files: RunArgs,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "gmon.html")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
    /// Leave out source lines and disassembly, so that the report contains names and numbers only
    #[arg(long, conflicts_with_all = ["source_dir", "substitute_path"])]
    pub(crate) no_source: bool,
    /// A trace (`gprofinject --trace`) whose calls the report shows on a line of time [default: NAME.trace of the same run beside it]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Open the report in the browser: $BROWSER, or else xdg-open
    #[arg(long)]
    pub(crate) open: bool,
}

/// What the rows of a table are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    #[default]
    Function,
    Module,
    Program,
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
    /// Threads only: time from the beginning to the end
    Life,
    /// Threads only: time in which no hooked function was running
    Outside,
    /// Threads only: time that gprofinject took
    Overhead,
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
