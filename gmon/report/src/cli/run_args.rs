//! The arguments that say which run is shown.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use gmon_export::formats::{Format, UnknownFormat};

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::{RowsArgs, ShownArgs, SourceArgs};

/// The files of a run.
#[derive(clap::Args)]
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
    /// The format: callgrind (KCachegrind), pprof, folded (flame graphs), speedscope, firefox, dot (Graphviz), html (for a
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
#[derive(clap::Args)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) files: RunArgs,
    /// Show only functions with these names, mangled or demangled; may be repeated
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

#[derive(clap::Args)]
pub(crate) struct FlatArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// Order of the rows; numbers are sorted from the highest [default: self, or calls if there are no times]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Order>,
}

#[derive(clap::Args)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) common: TableArgs,
    /// Order of the functions; numbers are sorted from the highest [default: inclusive, or calls if there are no times]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<Order>,
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
}

/// A column by which functions are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Time in the function itself
    #[value(name = "self")]
    Own,
    /// Time in the function and in what it called
    Inclusive,
    Calls,
    /// Inclusive time of a call
    PerCall,
    /// Executed instructions, if basic blocks were counted
    Instructions,
    Name,
    Module,
}
