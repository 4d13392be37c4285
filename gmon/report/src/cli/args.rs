//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::{BlocksArgs, CoverageArgs, InstructionsArgs, LinesArgs, SumsArgs};

/// Look at gmon.out files, sum them, check them, report what blocks of a program they count.
#[derive(Parser)]
#[command(name = "gmon", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show a file's histograms, arcs and block counts
    Dump(DumpArgs),
    /// Sum files into one, in 64 bits
    Merge(MergeArgs),
    /// Look for what gprof refuses or silently drops; exit with 1 if there is such
    Check(CheckArgs),
    /// Source with each line's count in the margin
    Lines(LinesArgs),
    /// Disassembly with each instruction's count
    Instructions(InstructionsArgs),
    /// Each basic block: count, addresses, function, line
    Blocks(BlocksArgs),
    /// Functions: instructions executed (ie), calls, instructions (i), never executed (ine)
    Functions(SumsArgs),
    /// Files: the same, and basic blocks executed (bbe), all (bb), never executed (bbne)
    Files(SumsArgs),
    /// How much of each file ran, in percent
    Coverage(CoverageArgs),
}

#[derive(clap::Args)]
pub(crate) struct DumpArgs {
    pub(crate) file: PathBuf,
    /// The profiled program: shows function names
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// One JSON object; addresses and counts are numbers, bins without hits are left out
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// The file to write; untouched if anything fails
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The profiled program: lets files be summed whose block counts begin at different addresses
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
