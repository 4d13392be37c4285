//! The arguments of the reports.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::form_args::FormArgs;
use crate::cli::terminal;

/// The arguments that all reports have.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// The profiled program, or one of its libraries
    #[arg(value_name = "PROG")]
    pub(crate) program: PathBuf,
    /// gmon.out or gmon.pb.gz files with basic-block counts; several are summed
    #[arg(value_name = "FILE", default_value = "gmon.out")]
    pub(crate) files: Vec<PathBuf>,
    /// Of a gmon.pb.gz: show only what these programs of the run did, by name or process number; may be repeated
    #[arg(long = "program", id = "programs", value_name = "NAME")]
    pub(crate) programs: Vec<String>,
    /// Separate file with the program's debug information [default: searched where debuggers search]
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_file: Option<PathBuf>,
    /// Show only functions with these names, mangled or demangled; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// Show only source files with these paths (`parse.c` is any file of this name); may be repeated
    #[arg(short = 'F', long, value_name = "GLOB")]
    pub(crate) file: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

/// How any report is shown.
#[derive(Default, clap::Args)]
pub(crate) struct ShownArgs {
    /// Print names as in the symbol table
    #[arg(long)]
    pub(crate) no_demangle: bool,
    /// Print C++ and Rust names in full, with parameters and template arguments
    #[arg(long, conflicts_with = "no_demangle")]
    pub(crate) full_names: bool,
    /// Print one JSON object; times are in nanoseconds
    #[arg(long)]
    pub(crate) json: bool,
    /// Colours [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN")]
    pub(crate) color: Option<When>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    Always,
    Never,
    Auto,
}

/// The folders of source files that are not where they were compiled.
#[derive(Default, clap::Args)]
pub(crate) struct SourceArgs {
    /// Look for source files in this folder too, by the last components of their paths; may be repeated
    #[arg(short, long, value_name = "DIR")]
    pub(crate) source_dir: Vec<PathBuf>,
    /// Look below NEW for paths that begin with OLD; may be repeated
    #[arg(long, value_name = "OLD=NEW")]
    pub(crate) substitute_path: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct LinesArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
    /// Show template instances and inlined code separately as well: a row for each instance of a line that has several
    #[arg(short, long)]
    pub(crate) apart: bool,
    /// Show the counts of all basic blocks of a line, not only the highest
    #[arg(short = 'b', long)]
    pub(crate) all_counts: bool,
    /// Add a column with the instructions executed on the line
    #[arg(short, long)]
    pub(crate) instructions: bool,
}

#[derive(clap::Args)]
pub(crate) struct InstructionsArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    /// Assembler syntax
    #[arg(long, value_name = "SYNTAX", default_value = "att")]
    pub(crate) syntax: Syntax,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Syntax {
    Att,
    Intel,
}

impl From<Syntax> for gmon_blocks::Syntax {
    fn from(syntax: Syntax) -> gmon_blocks::Syntax {
        match syntax {
            Syntax::Att => gmon_blocks::Syntax::Att,
            Syntax::Intel => gmon_blocks::Syntax::Intel,
        }
    }
}

#[derive(Default, clap::Args)]
pub(crate) struct RowsArgs {
    /// Print at most this many rows, 0 for all [default: all; on a terminal, a table of functions has as many as it has lines]
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub(crate) limit: Option<usize>,
}

impl RowsArgs {
    /// Returns the largest number of rows.
    pub(crate) fn most(&self) -> usize {
        self.limit.filter(|&limit| limit > 0).unwrap_or(usize::MAX)
    }

    /// Returns the largest number of rows of a table that stands on a terminal with `others` more lines.
    pub(crate) fn most_on_screen(&self, others: usize) -> usize {
        match (self.limit, terminal::size()) {
            (None, Some(size)) => size.lines.saturating_sub(others).max(FEWEST),
            _ => self.most(),
        }
    }
}

/// The number of rows that a table has on the lowest terminal.
const FEWEST: usize = 5;

#[derive(clap::Args)]
pub(crate) struct BlocksArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    /// Order of the rows
    #[arg(long, value_name = "KEY", default_value = "address")]
    pub(crate) sort: BlockOrder,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlockOrder {
    Address,
    /// Highest first
    Count,
}

/// The arguments of `functions` and `files`.
#[derive(clap::Args)]
pub(crate) struct SumsArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    /// Order of the rows; numbers are sorted from the highest
    #[arg(long, value_name = "COLUMN", default_value = "instructions-run")]
    pub(crate) sort: Column,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// Executed instructions
    #[value(name = "instructions-run", alias = "ie")]
    Ie,
    Calls,
    /// Instructions
    #[value(name = "instructions", alias = "i")]
    I,
    /// Instructions that were never executed
    #[value(name = "instructions-never-run", alias = "ine")]
    Ine,
    /// Executed basic blocks
    #[value(name = "blocks-run", alias = "bbe")]
    Bbe,
    /// Basic blocks
    #[value(name = "blocks", alias = "bb")]
    Bb,
    /// Basic blocks that were never executed
    #[value(name = "blocks-never-run", alias = "bbne")]
    Bbne,
    Name,
    /// Functions only
    Address,
}

#[derive(clap::Args)]
pub(crate) struct CoverageArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    /// Write line and function counts for lcov, genhtml and other viewers (`-`: standard output)
    #[arg(long, value_name = "OUT")]
    pub(crate) lcov: Option<PathBuf>,
}
