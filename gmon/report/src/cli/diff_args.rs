//! The arguments of `gmon diff`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::When;
use crate::cli::run_args::PartArgs;

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The results of two runs, the older first: gmon.pb.gz, or a program and its gmon.out. A program is that of all
    /// results after it: PROG OLD NEW, or PROG OLD PROG NEW
    #[arg(value_names = ["OLD", "NEW"], required = true, num_args = 2..=4)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// What decides whether something has become worse [default: calls, and instructions if both runs have counted them. Times
    /// are shown with how far they spread, but are no reason to fail]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Compared>,
    /// Exit with status 1 if a function has become worse by more than this part of the old run's total, in percent. Of times, a
    /// change that may be chance does not count
    #[arg(long, alias = "gate", value_name = "PERCENT", default_value_t = 2.0, value_parser = percent)]
    pub(crate) threshold: f64,
    /// Print at most this many functions and arcs in each table, 0 for all [default: 10, with --json all]
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub(crate) limit: Option<usize>,
    /// Print one JSON object with everything; times are in nanoseconds
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page for a browser in place of tables: a flame graph of the new run, red where it has become worse and blue where
    /// better, and all functions [default of FILE: gmon-diff.html]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "gmon-diff.html", conflicts_with = "json")]
    pub(crate) html: Option<PathBuf>,
    /// Open the page of --html in the browser: $BROWSER, or else xdg-open
    #[arg(long, requires = "html")]
    pub(crate) open: bool,
    /// Print C++ and Rust names in full, with parameters and template arguments
    #[arg(long)]
    pub(crate) full_names: bool,
    /// Colours [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN")]
    pub(crate) color: Option<When>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

impl DiffArgs {
    /// Returns the number of rows that a table may have. `usual` is what it may have if the user has not said so.
    pub(crate) fn rows(&self, usual: usize) -> usize {
        match self.limit.unwrap_or(usual) {
            0 => usize::MAX,
            rows => rows,
        }
    }
}

/// What is compared of functions and arcs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compared {
    /// Time in the function itself
    #[value(name = "self")]
    Own,
    /// Time in the function and in what it called
    Inclusive,
    Calls,
    /// Executed instructions, if basic blocks were counted
    Instructions,
}
/// Reads a number with or without a percent sign.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let number = number.parse::<f64>().map_err(|_| "expected a number of percent, such as 0.1".to_owned())?;
    if (0.0..=f64::MAX).contains(&number) {
        Ok(number)
    } else {
        Err("expected a number from 0 on".to_owned())
    }
}
