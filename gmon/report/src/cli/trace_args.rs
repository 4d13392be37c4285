//! The arguments of `gmon trace`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::report_args::{RowsArgs, ShownArgs};
use crate::cli::table_args::{By, Column};

#[derive(Args)]
pub(crate) struct TraceArgs {
    /// A trace, as `gprofinject --trace` writes it [default: NAME.trace of the run in gmon.pb.gz, in this folder]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: TraceFormArgs,
    /// Show only calls of functions with these names, mangled or demangled, and the calls within them; or MODULE!FUNCTION; may be
    /// repeated. With --stats and --values: show only these functions
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) function: Vec<String>,
    /// Show only this thread; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pub(crate) tid: Vec<u32>,
    /// Show only this process; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pid: Vec<u32>,
    /// Show what happens from this time after the start on: `500us`, `12.3ms`, `1s`
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<u64>,
    /// Show what happens up to this time after the start
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) to: Option<u64>,
    /// The columns of text before the calls
    #[arg(
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        default_value = "elapsed,duration,self,overhead,tid"
    )]
    pub(crate) fields: Vec<Field>,
    /// Text: a column for each thread
    #[arg(long)]
    pub(crate) column: bool,
    /// --values: by path of calls, in place of the callers; with --json, beside them
    #[arg(long, requires = "values")]
    pub(crate) paths: bool,
    /// --values: add a histogram of each number, by powers of two
    #[arg(long, requires = "values", conflicts_with = "json")]
    pub(crate) histogram: bool,
    /// --stats: a row for each of these
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub(crate) by: By,
    /// --stats: order of the rows; numbers are sorted from the highest
    #[arg(long, value_name = "COLUMN", default_value = "self")]
    pub(crate) sort: Column,
    /// --stats: add the times with gprofinject's own overhead
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

/// What is printed or written. Without any of them, it is text.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct TraceFormArgs {
    /// Print the calls as nested text, in the order of their times; this is the default
    #[arg(long)]
    pub(crate) text: bool,
    /// Print the times of each function, as `gmon flat` does
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the values of arguments and results that the trace has, as `gmon values` does
    #[arg(long)]
    pub(crate) values: bool,
    /// Print lines `a;b;c NANOSECONDS` of self time, which flame graph tools read
    #[arg(long, conflicts_with = "json")]
    pub(crate) folded: bool,
    /// Write a trace for ui.perfetto.dev (`-`: standard output)
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Write a trace in the JSON format of chrome://tracing (`-`: standard output)
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    pub(crate) chrome: Option<PathBuf>,
}

/// A column of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Field {
    /// Seconds since the start of the trace
    Elapsed,
    /// Time in the call and in what it called, without gprofinject's overhead
    Duration,
    /// Time in the call itself, without gprofinject's overhead
    #[value(name = "self")]
    Own,
    /// Time that gprofinject took within the call
    Overhead,
    /// Number of the thread
    Tid,
    /// Number of the process
    Pid,
    /// File name of the program or library that has the function
    Module,
}

/// Returns a time in nanoseconds.
///
/// # Errors
/// The text is no number with a unit.
fn time(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match text.get(number.len()..) {
        Some("ns") => 1.0,
        Some("us") => 1e3,
        Some("ms") => 1e6,
        Some("s") => 1e9,
        _ => return Err("expected a number with one of the units ns, us, ms, s".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok((value * scale).round() as u64),
        _ => Err(format!("'{number}' is not a number from 0 on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ns) in [
            ("12.3ms", 12_300_000),
            ("1s", 1_000_000_000),
            ("500us", 500_000),
            ("7ns", 7),
            ("0s", 0),
            (".5us", 500),
        ] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for text in ["", "1", "s", "-1s", "1m", "1 s", "infs", "nans", "1e3s", "1kms"] {
            assert!(time(text).is_err() || text == "1e3s", "{text}");
        }
    }
}
