//! The arguments of the reports.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::run_args::RunArgs;
use crate::cli::terminal;

/// The arguments that the reports of counts have.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) files: RunArgs,
    /// Separate file with the debug information of the one module that is shown [default: searched where debuggers search]
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_file: Option<PathBuf>,
    /// Show only functions with these names, mangled or demangled; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// Show only source files with these paths (`parse.c` is any file of this name); may be repeated
    #[arg(short = 'F', long, value_name = "GLOB")]
    pub(crate) file: Vec<String>,
    /// Show only these modules, by file name or path; may be repeated
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) module: Vec<String>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
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
    /// Print a table of sums in place of the source: instructions that ran, calls, all instructions, those that never ran
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<By>,
    /// Print how much of each file ran, in percent
    #[arg(long)]
    pub(crate) coverage: bool,
    /// Write line and function counts for lcov, genhtml and other viewers (`-`: standard output)
    #[arg(long, value_name = "OUT")]
    pub(crate) lcov: Option<PathBuf>,
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
    /// With --by: order of the rows; numbers are sorted from the highest [default: instructions-run]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Column>,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
}

/// What the rows of a table of sums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Function,
    /// With the sums of basic blocks
    File,
}

#[derive(clap::Args)]
pub(crate) struct AsmArgs {
    #[command(flatten)]
    pub(crate) common: ReportArgs,
    /// Assembler syntax [default: att]
    #[arg(long, value_name = "SYNTAX")]
    pub(crate) syntax: Option<Syntax>,
    /// Print each basic block in place of the instructions: count, addresses, function, line
    #[arg(long)]
    pub(crate) blocks: bool,
    /// With --blocks: order of the rows [default: address]
    #[arg(long, value_name = "KEY")]
    pub(crate) sort: Option<BlockOrder>,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
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
    /// Print at most this many rows, 0 for all [default: all; on a terminal, tables of functions and call graphs have as many as it has lines]
    #[arg(short = 'n', long, visible_alias = "top", value_name = "ROWS")]
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

    /// Returns the same of groups of rows, of which each has so many lines.
    pub(crate) fn most_groups_on_screen(&self, others: usize, groups: impl Iterator<Item = usize>) -> usize {
        let Some(size) = terminal::size().filter(|_| self.limit.is_none()) else { return self.most() };
        let mut left = size.lines.saturating_sub(others);
        let fitting = groups.take_while(|&lines| {
            let fits = lines <= left;
            left = left.saturating_sub(lines);
            fits
        });
        fitting.count().max(FEWEST)
    }
}

/// The number of rows that a table has on the lowest terminal, and of entries that a call graph has there.
const FEWEST: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlockOrder {
    Address,
    /// Highest first
    Count,
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
