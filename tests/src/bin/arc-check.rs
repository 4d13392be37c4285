//! `arc-check [--gprofinject PATH] [--engine ENGINE] [--hooks both|entry] [--stdin FILE] [--libs LIBS] PROGRAM ARGS...`
//!
//! Runs PROGRAM under callgrind and under gprofinject and compares the calls that both have counted, except
//! those of functions that the engine refuses. `--gmon FILE` uses an existing profile and does not run
//! gprofinject. `--twice` runs callgrind a second time instead, to find out whether the program does the same
//! in each run.
//!
//! `--libs auto|all|...` compares the view of the whole process instead: the calls of the program and of its libraries. With
//! `--runs N`, callgrind runs N times, and functions whose counts differ between these runs are left out; `--twice` is
//! `--runs 3` here.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_tests::{callgrind, check, elf::Program, gprofdata, normalise, whole};

struct Options {
    engine: Engine,
    hooks: Hooks,
    stdin: Option<PathBuf>,
    gmon: Option<PathBuf>,
    gprofinject: Option<PathBuf>,
    twice: bool,
    runs: Option<usize>,
    libs: Option<String>,
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
    if let Some(libs) = &options.libs {
        let runs = options.runs.or(options.twice.then_some(3)).map_or(whole::Runs::One, whole::Runs::Several);
        let report = whole::check(
            &options.program,
            &options.args,
            options.stdin.as_deref(),
            libs,
            options.hooks,
            runs,
        )?;
        println!("{report}");
        return Ok(report.is_equal());
    }
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
    let left_alone = tool::left_alone(options.engine, options.hooks, &options.program, &program)?;
    let expected = callgrind()?.with_hooks_but_in(&left_alone, options.hooks);
    let report = check::compare(&expected, &ours, &program)?;
    println!("{report}");
    Ok(report.is_equal())
}

fn profile(options: &Options, gmon: &std::path::Path) -> Result<gprofinject_tests::run::Outcome> {
    let stdin = options.stdin.as_deref();
    let (engine, hooks) = (options.engine, options.hooks.option());
    let command = match &options.gprofinject {
        None => tool::command_by(engine, &["-q", hooks], gmon, &options.program, &options.args)?,
        Some(gprofinject) => {
            let mut command = tool::uncached(gprofinject);
            command.args(["-q", engine.option(), hooks, "-o"]).arg(gmon).arg("--");
            command.arg(&options.program).args(&options.args).env("LD_BIND_NOW", "1");
            command
        }
    };
    gprofinject_tests::run::run(command, stdin, std::time::Duration::from_secs(3600))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut engine, mut hooks) = (Engine::Builtin, Hooks::Both);
    let (mut stdin, mut gmon, mut gprofinject, mut twice, mut runs, mut libs) =
        (None, None, None, false, None, None);
    loop {
        let arg = args.next().context("no PROGRAM given")?;
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--engine" => {
                engine = match value()?.as_str() {
                    "builtin" => Engine::Builtin,
                    "frida" => Engine::Frida,
                    "frida,builtin" => Engine::FridaOrBuiltin,
                    other => bail!("--engine {other}: expected builtin, frida or frida,builtin"),
                }
            }
            "--hooks" => {
                hooks = match value()?.as_str() {
                    "both" => Hooks::Both,
                    "entry" => Hooks::Entry,
                    other => bail!("--hooks {other}: expected both or entry"),
                }
            }
            "--libs" => libs = Some(value()?),
            "--twice" => twice = true,
            "--runs" => {
                let count: std::num::NonZeroUsize =
                    value()?.parse().context("--runs expects a number above 0")?;
                runs = Some(count.get());
            }
            "--stdin" => stdin = Some(value()?.into()),
            "--gmon" => gmon = Some(value()?.into()),
            "--gprofinject" => gprofinject = Some(value()?.into()),
            _ => {
                ensure!(!arg.starts_with('-'), "unknown option {arg}");
                let (program, args) = (arg.into(), args.collect());
                return Ok(Options {
                    engine,
                    hooks,
                    stdin,
                    gmon,
                    gprofinject,
                    twice,
                    runs,
                    libs,
                    program,
                    args,
                });
            }
        }
    }
}
