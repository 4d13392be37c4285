//! `arc-check [--gprofinject PATH] [--hooks both|entry] [--stdin FILE] PROGRAM ARGS...`
//!
//! Runs PROGRAM under callgrind and under gprofinject and compares the calls that both counted.
//! `--gmon FILE` takes a profile that is there already instead of running gprofinject. `--twice` runs
//! callgrind a second time instead: whether the program does the same in each run at all.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_tests::{callgrind, check, elf::Program, gprofdata, normalise};

struct Options {
    hooks: Hooks,
    stdin: Option<PathBuf>,
    gmon: Option<PathBuf>,
    gprofinject: Option<PathBuf>,
    twice: bool,
    program: PathBuf,
    args: Vec<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("arc-check: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let options = parse(std::env::args().skip(1))?;
    let program = Program::read(&options.program)?;
    let stdin = options.stdin.as_deref();
    let callgrind = || {
        let (theirs, _) = callgrind::run(&options.program, &options.args, stdin)?;
        let object = theirs.object(&options.program).context("callgrind saw nothing of the program")?;
        normalise::normalise(&theirs, object, &program, options.hooks)
    };
    if options.twice {
        let (first, second) = (callgrind()?, callgrind()?);
        let report = check::compare(&first, &second.as_profile(), &program)?;
        println!("(\"ours\" is callgrind's second run) {report}");
        return Ok(report.is_equal());
    }

    let folder = tempfile::tempdir()?;
    let gmon = folder.path().join("gmon.out");
    let ours = match &options.gmon {
        Some(path) => gprofdata::read(path)?,
        None => {
            let ran = profile(&options, &gmon)?;
            eprint!("{}", ran.stderr_text());
            gprofdata::read(&gmon).with_context(|| format!("exit status {}", ran.code()))?
        }
    };
    let expected = callgrind()?.without(&tool::unwinder(options.hooks, &options.program)?);
    let report = check::compare(&expected, &ours, &program)?;
    println!("{report}");
    Ok(report.is_equal())
}

fn profile(options: &Options, gmon: &std::path::Path) -> Result<gprofinject_tests::run::Outcome> {
    let stdin = options.stdin.as_deref();
    let Some(gprofinject) = &options.gprofinject else {
        return tool::profile(options.hooks, gmon, &options.program, &options.args, stdin);
    };
    let mut command = std::process::Command::new(gprofinject);
    command.args(["-q", options.hooks.option(), "-o"]).arg(gmon).arg("--");
    command.arg(&options.program).args(&options.args).env("LD_BIND_NOW", "1");
    gprofinject_tests::run::run(command, stdin, std::time::Duration::from_secs(3600))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut hooks, mut stdin, mut gmon, mut gprofinject) = (Hooks::Both, None, None, None);
    let mut twice = false;
    loop {
        let arg = args.next().context("no PROGRAM given")?;
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--hooks" => {
                hooks = match value()?.as_str() {
                    "both" => Hooks::Both,
                    "entry" => Hooks::Entry,
                    other => bail!("--hooks {other}: expected both or entry"),
                }
            }
            "--twice" => twice = true,
            "--stdin" => stdin = Some(value()?.into()),
            "--gmon" => gmon = Some(value()?.into()),
            "--gprofinject" => gprofinject = Some(value()?.into()),
            _ => {
                ensure!(!arg.starts_with('-'), "unknown option {arg}");
                let (program, args) = (arg.into(), args.collect());
                return Ok(Options { hooks, stdin, gmon, gprofinject, twice, program, args });
            }
        }
    }
}
