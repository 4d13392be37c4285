//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use gprofinject_usage::Kind;

use crate::cli::browse_args::BrowseArgs;
use crate::cli::diff_args::DiffArgs;
use crate::cli::examples;
use crate::cli::export_args::{ExportArgs, GprofArgs, HtmlArgs};
use crate::cli::form_args::FormArgs;
#[cfg(feature = "push")]
use crate::cli::push_args::PushArgs;
use crate::cli::report_args::{AsmArgs, LinesArgs};
use crate::cli::table_args::{FlatArgs, GraphArgs, PathsArgs, ValuesArgs};
use crate::cli::trace_args::TraceArgs;

/// Shows what gprofinject has recorded: tables, call graphs, times, paths, lines; sums, compares and exports it; and checks gmon.out
/// files.
///
/// Without a command, the run in gmon.pb.gz is shown: in a browser on a terminal, and elsewhere as a table of its functions.
#[derive(Parser)]
#[command(
    name = "gmon",
    version,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    after_long_help = examples::GMON
)]
pub(crate) struct Args {
    /// Print a man page or completions for a shell
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) generate: Option<Kind>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Browse a run on the terminal: functions, callers and callees, flame graph, source, instructions, programs. Elsewhere, a table
    /// of the functions is printed
    #[command(after_long_help = examples::REPORT)]
    Report(BrowseArgs),
    /// Print a table of the functions: self and inclusive time, calls, time per call; or of modules, programs, threads, ranks
    #[command(after_long_help = examples::FLAT)]
    Flat(FlatArgs),
    /// Print each function between those that call it and those that it calls, as gprof's call graph
    #[command(after_long_help = examples::GRAPH)]
    Graph(GraphArgs),
    /// Print the measured times of each call path, as a tree
    #[command(after_long_help = examples::PATHS)]
    Paths(PathsArgs),
    /// Print the values that `gprofinject --values` has kept of arguments and results: how often each was seen, and by which caller; -n is
    /// the number of values and of callers
    #[command(after_long_help = examples::VALUES)]
    Values(ValuesArgs),
    /// Print the source with each line's count in the margin; or sums by function or file; or how much of each file ran
    #[command(after_long_help = examples::LINES)]
    Lines(LinesArgs),
    /// Print the disassembly with each instruction's count, or each basic block
    #[command(after_long_help = examples::ASM)]
    Asm(AsmArgs),
    /// Compare two runs of a program, or of two builds of it; the exit status is 1 if something has become worse
    #[command(override_usage = "gmon diff [OPTIONS] [PROG] OLD [PROG] NEW", after_long_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Write a run in the format of another tool: KCachegrind, pprof, flame graphs, speedscope, the Firefox Profiler, Graphviz
    #[command(after_long_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Write a report for a browser: functions, call graph, flame graph, source; one file that needs no network
    #[command(after_long_help = examples::HTML)]
    Html(HtmlArgs),
    /// Print a trace: every call, nested, with its times; or its statistics; or write it for Perfetto or Chrome
    #[command(after_long_help = examples::TRACE)]
    Trace(TraceArgs),
    /// Sum gmon.out files, or gmon.pb.gz files, into one
    #[command(after_long_help = examples::MERGE)]
    Merge(MergeArgs),
    /// Look for what gprof refuses or silently drops in gmon.out files, and for damage in gmon.pb.gz files; or for what exceeds a budget;
    /// the exit status is 1 if there is any
    #[command(after_long_help = examples::CHECK)]
    Check(CheckArgs),
    /// Send profiles to Grafana Pyroscope, or to another server with its interface
    #[cfg(feature = "push")]
    #[command(after_long_help = examples::PUSH)]
    Push(PushArgs),
    /// Run gprof on the whole of a run: all programs with their libraries
    #[command(after_long_help = examples::GPROF)]
    Gprof(GprofArgs),
}

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// The file to write; it does not change if anything fails
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// The files to sum; a folder stands for those in it: *.pb.gz if OUT ends with that, and gmon.out* otherwise
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The profiled program: allows summing files whose basic-block counts begin at different addresses
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// Of measured times: keep all threads apart. Otherwise, those of the same name become one
    #[arg(long)]
    pub(crate) keep_threads: bool,
    /// Number of threads that read and sum [default: the number of processors]; the result is always the same
    #[arg(short = 'j', long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// gmon.out or gmon.pb.gz files [default: those of them that are in this folder]. With --budget: a run, as `gmon flat` takes it
    /// [default: gmon.pb.gz]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The profiled program: checks addresses against its functions, and names them
    #[arg(long, conflicts_with = "budget")]
    pub(crate) program: Option<PathBuf>,
    /// Print the records of the files instead: histograms, arcs, basic-block counts
    #[arg(long, group = "printed")]
    pub(crate) records: bool,
    /// Check instead whether a run keeps the bounds in this TOML file, on calls, instructions and shares of time of functions; the exit
    /// status is 1 if it does not
    #[arg(long, value_name = "FILE", group = "printed")]
    pub(crate) budget: Option<PathBuf>,
    /// Of --records: print one JSON object a file; addresses and counts are numbers, bins without hits are left out. Of --budget: print
    /// one JSON object with each bound
    #[arg(long, requires = "printed")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}
