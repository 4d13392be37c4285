//! The arguments of `gmon ranks`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::{RowsArgs, ShownArgs};

#[derive(clap::Args)]
pub(crate) struct RanksArgs {
    /// The results of the job's processes: gmon.out files after their program, or gmon.pb.gz files
    #[arg(value_name = "PROG|RESULT", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// What is compared [default: self; calls if there are no samples and no measured times]
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<By>,
    /// Order of the rows; numbers are sorted from the highest
    #[arg(long, value_name = "COLUMN", default_value = "max")]
    pub(crate) sort: Column,
    /// Show only functions with these names, mangled or demangled; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    /// Number of threads that read files [default: the number of processors]
    #[arg(short = 'j', long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Calls,
    /// Time in the function itself
    #[value(name = "self")]
    Own,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    Min,
    Mean,
    Max,
    /// The largest value divided by the mean
    Imbalance,
    Name,
}
