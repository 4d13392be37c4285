//! `gmon`: looks at gmon.out files, sums them, checks them, reports what blocks were counted and what times were
//! measured.

#![forbid(unsafe_code)]

mod browse;
mod cli {
    pub(crate) mod args;
    pub(crate) mod browse_args;
    pub(crate) mod diff;
    pub(crate) mod diff_args;
    pub(crate) mod dump;
    pub(crate) mod examples;
    pub(crate) mod export;
    pub(crate) mod files;
    pub(crate) mod fold;
    pub(crate) mod form_args;
    pub(crate) mod gprof;
    pub(crate) mod html;
    pub(crate) mod json;
    pub(crate) mod load;
    pub(crate) mod measured;
    pub(crate) mod measured_args;
    pub(crate) mod merge;
    #[cfg(feature = "push")]
    pub(crate) mod push;
    #[cfg(feature = "push")]
    pub(crate) mod push_args;
    pub(crate) mod rank;
    pub(crate) mod ranks;
    pub(crate) mod ranks_args;
    pub(crate) mod recordings;
    pub(crate) mod report_args;
    pub(crate) mod reports {
        pub(crate) mod arcs;
        pub(crate) mod blocks;
        pub(crate) mod coverage;
        pub(crate) mod flat;
        pub(crate) mod graph;
        pub(crate) mod instructions;
        pub(crate) mod lines;
        pub(crate) mod paths;
        pub(crate) mod ranks;
        pub(crate) mod sums;
        pub(crate) mod times;
    }
    pub(crate) mod run;
    pub(crate) mod run_args;
    pub(crate) mod run_view;
    pub(crate) mod similar;
    pub(crate) mod sources;
    pub(crate) mod table;
    pub(crate) mod text;
    pub(crate) mod trace;
    pub(crate) mod trace_args;
    pub(crate) mod traces {
        pub(crate) mod calls;
        pub(crate) mod chrome;
        pub(crate) mod folded;
        pub(crate) mod json;
        pub(crate) mod load;
        pub(crate) mod measured;
        pub(crate) mod names;
        pub(crate) mod perfetto;
        pub(crate) mod text;
        pub(crate) mod tracks;
        pub(crate) mod wire;
    }
    pub(crate) mod tree;
    pub(crate) mod units;
    pub(crate) mod view;
}

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Args as _, CommandFactory, FromArgMatches, Parser};
use gmon::Severity;
use gmon_export::load::Detail;

use crate::browse::session;
use crate::cli::args::{Args, CheckArgs, Command};
use crate::cli::browse_args::BrowseArgs;
use crate::cli::measured::Measurement;
use crate::cli::measured_args::MeasuredArgs;
use crate::cli::ranks::Ranks;
use crate::cli::ranks_args::RanksArgs;
use crate::cli::report_args::ReportArgs;
use crate::cli::run::DEFAULT_FILE;
use crate::cli::run_args::{FlatArgs, TableArgs};
use crate::cli::run_view::RunView;
use crate::cli::text::{Out, plain, standard_output};
use crate::cli::view::View;
use crate::cli::{diff, dump, export, files, html, load, merge, reports, run, trace};

/// `gmon check` found an error, or `gmon diff` that something has become worse.
const EXIT_FOUND: u8 = 1;
/// `gmon` itself could not do what it was asked.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    match run(parse()) {
        Ok(code) => code,
        // The reader has read enough, as in `gmon dump FILE | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed too, nothing can be done.
            let _ = writeln!(io::stderr(), "gmon: {}", gmon::visible(&format!("{error:#}")));
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// Reads the command line. Without a command, the newest run in this folder is shown.
fn parse() -> Args {
    let words: Vec<OsString> = std::env::args_os().collect();
    match words.as_slice() {
        [_] | [] if Path::new(DEFAULT_FILE).exists() => Args::parse_from(["gmon", "report"]),
        [_] | [] => {
            let said = "`gprofinject PROG` writes it, and `gmon --help` lists the commands";
            let _ = writeln!(io::stderr(), "gmon: no {DEFAULT_FILE} in this folder; {said}");
            std::process::exit(EXIT_FAILED.into());
        }
        [_, word, ..] => Args::try_parse_from(&words).unwrap_or_else(|error| {
            if error.kind() == ErrorKind::InvalidSubcommand && Path::new(word).is_file() {
                let file = plain(&word.to_string_lossy());
                let _ =
                    writeln!(io::stderr(), "gmon: {file} is a file; {}", shown_by(Path::new(word), &file));
                std::process::exit(EXIT_FAILED.into());
            }
            error.exit()
        }),
    }
}

/// Returns the command that shows a file.
fn shown_by(path: &Path, file: &str) -> String {
    let start = files::read_start(path).unwrap_or_default();
    match () {
        () if files::is_gzip(&start) => format!("`gmon flat {file}` shows it"),
        () if files::is_gmon(&start) => {
            format!("`gmon flat PROG {file}` shows it, with the program of which it is")
        }
        () if files::is_elf(&start) => {
            format!(
                "`gmon flat {file} {DEFAULT_FILE}` shows what it has done, and `gmon flat {file} gmon.out` its own view"
            )
        }
        () => "gmon shows gmon.pb.gz, gmon.out and traces; see gmon --help".to_owned(),
    }
}

fn run(args: Args) -> Result<ExitCode> {
    if let Some(kind) = args.generate {
        kind.write(Args::command(), &mut io::stdout().lock())?;
    }
    let Some(command) = args.command else { return Ok(ExitCode::SUCCESS) };
    match command {
        Command::Dump(args) => dump::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Merge(args) => merge::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check(&args),
        Command::Ranks(args) => ranks(&args),
        #[cfg(feature = "push")]
        Command::Push(args) => cli::push::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Lines(args) => report(&args.common, |view, out| reports::lines::lines(view, &args, out)),
        Command::Instructions(args) => {
            report(&args.common, |view, out| reports::instructions::instructions(view, &args, out))
        }
        Command::Blocks(args) => report(&args.common, |view, out| reports::blocks::blocks(view, &args, out)),
        Command::Functions(args) => {
            report(&args.common, |view, out| reports::sums::functions(view, &args, out))
        }
        Command::Files(args) => report(&args.common, |view, out| reports::sums::files(view, &args, out)),
        Command::Coverage(args) => {
            report(&args.common, |view, out| reports::coverage::coverage(view, &args, out))
        }
        Command::Times(args) => measured(&args.common, |times, out| reports::times::times(times, &args, out)),
        Command::Callers(args) => {
            measured(&args.common, |times, out| reports::arcs::callers(times, &args, out))
        }
        Command::Callees(args) => {
            measured(&args.common, |times, out| reports::arcs::callees(times, &args, out))
        }
        Command::Diff(args) => {
            diff::run(&args).map(|worse| if worse { ExitCode::from(EXIT_FOUND) } else { ExitCode::SUCCESS })
        }
        Command::Export(args) => export::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => browse_or_print(args),
        Command::Flat(args) => run_table(&args.common, |view, out| reports::flat::flat(view, &args, out)),
        Command::Graph(args) => run_table(&args.common, |view, out| reports::graph::graph(view, &args, out)),
        Command::Gprof(args) => cli::gprof::run(args),
        Command::Html(args) => html::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(args).map(|()| ExitCode::SUCCESS),
        Command::Paths(args) => measured(&args.common, |times, out| reports::paths::paths(times, &args, out)),
    }
}

/// Shows a run in a browser, or prints its functions if there is no terminal.
fn browse_or_print(args: BrowseArgs) -> Result<ExitCode> {
    if session::has_terminal() {
        return session::browse(args).map(|()| ExitCode::SUCCESS);
    }
    let options = FlatArgs::augment_args(clap::Command::new("flat"));
    let mut flat = FlatArgs::from_arg_matches(&options.get_matches_from(["flat"]))?;
    flat.common.files = args.files;
    run_table(&flat.common, |view, out| reports::flat::flat(view, &flat, out))
}

fn report(args: &ReportArgs, write: impl FnOnce(&View, &mut Out) -> Result<()>) -> Result<ExitCode> {
    let loaded = load::load(args)?;
    let view = View::new(args, &loaded)?;
    let mut out = standard_output();
    write(&view, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn measured(
    args: &MeasuredArgs,
    write: impl FnOnce(&Measurement, &mut Out) -> Result<()>,
) -> Result<ExitCode> {
    let measurement = Measurement::load(args)?;
    let mut out = standard_output();
    write(&measurement, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn run_table(args: &TableArgs, write: impl FnOnce(&RunView, &mut Out) -> Result<()>) -> Result<ExitCode> {
    let source = run::open(&args.files)?;
    let run = source.run(Detail::Functions)?;
    let view = RunView::new(args, &run, source.library())?;
    let mut out = standard_output();
    write(&view, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn ranks(args: &RanksArgs) -> Result<ExitCode> {
    let ranks = Ranks::load(args)?;
    let mut out = standard_output();
    reports::ranks::ranks(&ranks, args, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let program = args.program.as_deref().map(files::read_program).transpose()?;
    let mut found = false;
    let mut out = standard_output();
    for file in &args.files {
        let bytes = files::read_gmon(file)?;
        let options = args.form.resolve(&bytes, program.as_ref());
        for finding in gmon::check(&bytes, &options, program.as_ref()) {
            found |= finding.severity == Severity::Error;
            writeln!(out, "{}", plain(&format!("{}: {finding}", file.display())))?;
        }
    }
    out.flush()?;
    Ok(if found { ExitCode::from(EXIT_FOUND) } else { ExitCode::SUCCESS })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
