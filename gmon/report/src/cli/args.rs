//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cli::diff_args::DiffArgs;
use crate::cli::form_args::FormArgs;
use crate::cli::measured_args::{ArcsArgs, PathsArgs, TimesArgs};
use crate::cli::report_args::{BlocksArgs, CoverageArgs, InstructionsArgs, LinesArgs, SumsArgs};
use crate::cli::run_args::{ExportArgs, FlatArgs, GraphArgs, HtmlArgs};

/// Shows, sums and checks gmon.out files, and reports the basic-block counts in them and measured times.
#[derive(Parser)]
#[command(name = "gmon", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print a file's histograms, arcs and basic-block counts
    Dump(DumpArgs),
    /// Sum files into one, in 64 bits
    Merge(MergeArgs),
    /// Look for what gprof refuses or silently drops; the exit status is 1 if there is any
    Check(CheckArgs),
    /// Print the source with each line's count in the margin
    Lines(LinesArgs),
    /// Print the disassembly with each instruction's count
    Instructions(InstructionsArgs),
    /// Print each basic block: count, addresses, function, line
    Blocks(BlocksArgs),
    /// Print sums by function: instructions that ran, calls, all instructions, those that never ran
    Functions(SumsArgs),
    /// Print the same sums by file, and those of basic blocks
    Files(SumsArgs),
    /// Print how much of each file ran, in percent
    Coverage(CoverageArgs),
    /// Print a table of the functions: self and inclusive time, calls, time per call, as gprof's flat profile
    Flat(FlatArgs),
    /// Print each function between those that call it and those that it calls, as gprof's call graph
    Graph(GraphArgs),
    /// Compare two runs of a program, or of two builds of it; the exit status is 1 if something has become worse
    Diff(DiffArgs),
    /// Write a run in the format of another tool: KCachegrind, pprof, flame graphs, speedscope, the Firefox Profiler, Graphviz
    Export(ExportArgs),
    /// Write a report for a browser: functions, call graph, flame graph, source; one file that needs no network
    Html(HtmlArgs),
    /// Print the measured times of each function: calls, self, inclusive, mean, shortest, longest, quantiles
    Times(TimesArgs),
    /// Print who called a function, with the measured times of each arc
    Callers(ArcsArgs),
    /// Print whom a function called, with the measured times of each arc
    Callees(ArcsArgs),
    /// Print the measured times of each call path, as a tree
    Paths(PathsArgs),
}

#[derive(clap::Args)]
pub(crate) struct DumpArgs {
    pub(crate) file: PathBuf,
    /// The profiled program: shows function names
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// Print one JSON object; addresses and counts are numbers, bins without hits are left out
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// The file to write; it does not change if anything fails
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The profiled program: allows summing files whose basic-block counts begin at different addresses
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The profiled program: checks addresses against its functions
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}
