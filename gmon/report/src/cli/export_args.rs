//! The arguments of the commands that write a run for other tools.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use gmon_export::formats::{Format, UnknownFormat};

use crate::cli::form_args::FormArgs;
use crate::cli::report_args::SourceArgs;
use crate::cli::run_args::{PartArgs, RunArgs};

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The format: callgrind (KCachegrind), pprof, folded (flame graphs), speedscope, firefox, dot (Graphviz), svg (a flame graph), html (for a
    /// browser, as `gmon html` writes it), gprof (NAME.syms and NAME.whole, of `-o NAME`), json; for compilers, from a run with `--count blocks`: llvm
    /// (clang, rustc), gcc, autofdo (create_llvm_prof, create_gcov), bolt (llvm-bolt); from any run of a Go program: go (go build -pgo)
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
    /// For compilers: the profile of these modules only, by file name or path; may be repeated [default: llvm and gcc: all that were counted;
    /// the others: the program that was started]
    #[arg(short, long, value_name = "GLOB")]
    pub(crate) module: Vec<String>,
    /// For compilers: separate file with the debug information of the one module [default: searched where debuggers search]
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_file: Option<PathBuf>,
}

/// What a run can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The pair of files that gprof reads.
    Gprof,
    /// One file.
    File(Format),
    /// A profile for a compiler.
    Compiler(Compiler),
}

/// What a profile is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compiler {
    Llvm,
    Gcc,
    AutoFdo,
    Bolt,
    Go,
}

impl Compiler {
    /// All of them, with the name of each.
    pub(crate) const ALL: [(&'static str, Compiler); 5] = [
        ("llvm", Compiler::Llvm),
        ("gcc", Compiler::Gcc),
        ("autofdo", Compiler::AutoFdo),
        ("bolt", Compiler::Bolt),
        ("go", Compiler::Go),
    ];

    pub(crate) fn name(self) -> &'static str {
        Compiler::ALL.iter().find(|(_, compiler)| *compiler == self).map_or("", |&(name, _)| name)
    }
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<To, String> {
        match text {
            "gprof" => Ok(To::Gprof),
            text => {
                let compiler = Compiler::ALL.iter().find(|(name, _)| *name == text);
                if let Some(&(_, compiler)) = compiler {
                    return Ok(To::Compiler(compiler));
                }
                let compilers = Compiler::ALL.map(|(name, _)| name).join(", ");
                text.parse()
                    .map(To::File)
                    .map_err(|error: UnknownFormat| format!("{error}, gprof, {compilers}"))
            }
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct GprofArgs {
    /// A gmon.pb.gz, or a program and its gmon.out [default: gmon.pb.gz]; then options of gprof. Options of gmon come before it
    #[arg(value_name = "RUN|GPROF OPTION", allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    #[command(flatten)]
    pub(crate) form: FormArgs,
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
