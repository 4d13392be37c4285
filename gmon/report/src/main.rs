//! `gmon`: looks at gmon.out files, sums them, checks them, reports what blocks were counted and what times were
//! measured.

#![forbid(unsafe_code)]

mod browse;
mod cli;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gmon_export::load::Detail;
use gprofinject_usage::Mistake;

use crate::browse::session;
use crate::cli::args::{Args, Command};
use crate::cli::browse_args::BrowseArgs;
use crate::cli::run::DEFAULT_FILE;
use crate::cli::run_view::RunView;
use crate::cli::spread::Ranks;
use crate::cli::table_args::{FlatArgs, TableArgs};
use crate::cli::text::{Out, plain, standard_output};
use crate::cli::{check, counts, diff, export, files, hints, html, merge, moved, reports, run, trace};

/// `gmon check` found an error or what exceeds a budget, or `gmon diff` that something has become worse.
const EXIT_FOUND: u8 = 1;
/// `gmon` itself could not do what it was asked.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == gprofinject_usage::ASK) {
        // The line that is being typed may be anything, so it is not parsed as one that is complete.
        cli::complete::answer(words.collect(), Args::command());
        return ExitCode::SUCCESS;
    }
    let ended = run(parse());
    cli::pager::finish();
    match ended {
        Ok(code) => code,
        // The reader has read enough, as in `gmon flat | head`.
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
            if !error.use_stderr() {
                error.exit();
            }
            let said = match error.kind() {
                ErrorKind::InvalidSubcommand => instead_of(word).map(|said| vec![said]),
                _ => None,
            };
            for line in said.unwrap_or_else(|| mistake(&error, word)) {
                let _ = writeln!(io::stderr(), "gmon: {}", plain(&line));
            }
            std::process::exit(EXIT_FAILED.into());
        }),
    }
}

/// Returns the lines to print for a mistake on the command line, of which `word` is the first word.
fn mistake(error: &clap::Error, word: &OsStr) -> Vec<String> {
    let known = Args::command();
    let command = known.get_subcommands().map(clap::Command::get_name).find(|name| word == *name);
    let command = command.map_or_else(|| "gmon".to_owned(), |name| format!("gmon {name}"));
    Mistake::of(error, &command).lines().collect()
}

/// Returns what to type instead of a word that is no command: a file, or a command of an earlier version.
fn instead_of(word: &OsStr) -> Option<String> {
    if Path::new(word).is_file() {
        let file = plain(&word.to_string_lossy());
        return Some(format!("{file} is a file; {}", shown_by(Path::new(word), &file)));
    }
    moved::command_of(word).map(|now| format!("{}: this is `{now}` now", word.display()))
}

/// Returns the command that shows a file.
fn shown_by(path: &Path, file: &str) -> String {
    let start = files::read_start(path).unwrap_or_default();
    match () {
        () if files::is_gzip(&start) => format!("`gmon flat {file}` shows it"),
        () if files::is_gmon(&start) => {
            format!("`gmon flat {}` shows it with the names of its program", hints::with_program(path))
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
        kind.write(Args::command(), true, &mut io::stdout().lock())?;
    }
    let Some(command) = args.command else { return Ok(ExitCode::SUCCESS) };
    match command {
        Command::Merge(args) => merge::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args).map(exit_found),
        #[cfg(feature = "push")]
        Command::Push(args) => cli::push::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Lines(args) => counts::lines(&args).map(|()| ExitCode::SUCCESS),
        Command::Asm(args) => counts::asm(&args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(&args).map(exit_found),
        Command::Export(args) => export::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => browse_or_print(args),
        Command::Flat(args) if args.spread => spread(&args),
        Command::Flat(args) => run_table(&args.common, |view, out| reports::flat::flat(view, &args, out)),
        Command::Graph(args) => run_table(&args.common, |view, out| reports::graph::graph(view, &args, out)),
        Command::Gprof(args) => cli::gprof::run(args),
        Command::Html(args) => html::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(args).map(|()| ExitCode::SUCCESS),
        Command::Values(args) => {
            run_table(&args.common, |view, out| reports::values::values(view, &args, out))
        }
        Command::Paths(args) if args.slow => {
            run_table(&args.common, |view, out| reports::slow::slow(view, &args, out))
        }
        Command::Paths(args) => run_table(&args.common, |view, out| reports::paths::paths(view, &args, out)),
    }
}

fn exit_found(found: bool) -> ExitCode {
    if found { ExitCode::from(EXIT_FOUND) } else { ExitCode::SUCCESS }
}

/// Shows a run in a browser, or prints its functions if there is no terminal.
fn browse_or_print(args: BrowseArgs) -> Result<ExitCode> {
    if session::has_terminal() {
        return session::browse(args).map(|()| ExitCode::SUCCESS);
    }
    let flat =
        FlatArgs { common: TableArgs { files: args.files, ..TableArgs::default() }, ..FlatArgs::default() };
    run_table(&flat.common, |view, out| reports::flat::flat(view, &flat, out))
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

fn spread(args: &FlatArgs) -> Result<ExitCode> {
    let ranks = Ranks::load(args)?;
    let mut out = standard_output();
    reports::spread::spread(&ranks, args, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
