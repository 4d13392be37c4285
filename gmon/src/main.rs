//! `gmon`: looks at gmon.out files, sums them, checks them.

#![forbid(unsafe_code)]

mod cli {
    pub(crate) mod args;
    pub(crate) mod dump;
    pub(crate) mod files;
    pub(crate) mod json;
    pub(crate) mod merge;
}

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use gmon::Severity;

use crate::cli::args::{Args, CheckArgs, Command};
use crate::cli::{dump, files, merge};

/// `gmon check` found an error.
const EXIT_FOUND: u8 = 1;
/// `gmon` itself could not do what it was asked.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        // The reader has seen enough: `gmon dump FILE | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do when stderr is closed too.
            let _ = writeln!(io::stderr(), "gmon: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Dump(args) => dump::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Merge(args) => merge::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check(&args),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let program = args.program.as_deref().map(files::read_program).transpose()?;
    let mut found = false;
    let mut out = io::stdout().lock();
    for file in &args.files {
        let bytes = files::read_any(file)?;
        let options = args.form.resolve(&bytes, program.as_ref());
        for finding in gmon::check(&bytes, &options, program.as_ref()) {
            found |= finding.severity == Severity::Error;
            writeln!(out, "{}: {finding}", file.display())?;
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
