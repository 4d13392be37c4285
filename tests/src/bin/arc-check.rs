//! `arc-check [--gprofinject PATH] [--engine ENGINE] [--hooks both|entry] [--stdin FILE] [--libs LIBS] [--with-lines] PROGRAM ARGS...`
//!
//! Runs PROGRAM under callgrind and under gprofinject and compares the calls that both have counted, except
//! those of functions that the engine refuses. `--gmon FILE` uses an existing profile and does not run
//! gprofinject. `--twice` runs callgrind a second time instead, to find out whether the program does the same
//! in each run.
//!
//! `--with-lines` hooks and compares only the functions that have line information, and of those the ones whose name no other
//! function has: in a static program, these are its own ones. What its C library does at the start depends on the processor,
//! and valgrind's is another one.
//!
//! `--libs auto|all|...` compares the view of the whole process instead: the calls of the program and of its libraries. With
//! `--runs N`, callgrind runs N times, and functions whose counts differ between these runs are left out; `--twice` is
//! `--runs 3` here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use gprofinject_tests::elf::{Function, Program};
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_tests::{callgrind, check, gprofdata, normalise, whole};

struct Options {
    engine: Engine,
    hooks: Hooks,
    stdin: Option<PathBuf>,
    gmon: Option<PathBuf>,
    gprofinject: Option<PathBuf>,
    twice: bool,
    with_lines: bool,
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
    let own = match options.with_lines {
        true => with_lines(&options.program, &program)?,
        false => BTreeSet::new(),
    };
    let is_left_out =
        |function: &&Function| !own.is_empty() && !function.names.iter().any(|name| own.contains(name));
    let mut others: BTreeSet<u64> =
        program.functions().filter(is_left_out).map(|function| function.address).collect();
    // What nobody calls has the entry point as its caller, which is not hooked in any case.
    let start = program.named("_start").map_or(0, |start| start.address);
    others.remove(&start);
    let mut ours = match &options.gmon {
        Some(path) => gprofdata::read(path)?,
        None => {
            let ran = profile(&options, &gmon, &own)?;
            eprint!("{}", ran.stderr_text());
            gprofdata::read(&gmon).with_context(|| format!("exit status {}", ran.code()))?
        }
    };
    let mut left_alone = tool::left_alone(options.engine, options.hooks, &options.program, &program)?;
    // The functions that are called through the agent are hooked as well.
    ours.arcs.retain(|(_, callee), _| !others.contains(callee));
    left_alone.extend(&others);
    let mut expected = callgrind()?.with_hooks_but_in(&left_alone, options.hooks);
    // With a shadow stack, a call out of a function that is left out is one from outside.
    let outside = if options.hooks == Hooks::Both { &others } else { &BTreeSet::new() };
    for ((caller, callee), count) in std::mem::take(&mut expected.arcs) {
        let caller = if outside.contains(&caller) { start } else { caller };
        *expected.arcs.entry((caller, callee)).or_default() += count;
    }
    expected.sites.retain(|_, site| !outside.contains(&site.caller));
    let report = check::compare(&expected, &ours, &program)?;
    println!("{report}");
    Ok(report.is_equal())
}

/// Returns the names of the functions that have line information and whose name no other function has.
fn with_lines(path: &std::path::Path, program: &Program) -> Result<BTreeSet<String>> {
    let lines =
        gprofinject_image::debug::Lines::parse(&std::fs::read(path)?).context("no line information")?;
    let has_line = |address: u64| {
        let row = lines.rows().partition_point(|row| row.end <= address);
        lines.rows().get(row).is_some_and(|row| row.start <= address && row.location.is_some())
    };
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for name in program.functions().flat_map(|function| &function.names) {
        *seen.entry(name).or_default() += 1;
    }
    let own = program.functions().filter(|function| function.parent.is_none() && has_line(function.address));
    let names = own.filter_map(|function| function.names.iter().find(|name| seen[name.as_str()] == 1));
    Ok(names.filter(|name| *name != "_start").cloned().collect())
}

/// Runs gprofinject. `own` are the functions that it hooks; if there are none, it hooks all.
fn profile(
    options: &Options,
    gmon: &std::path::Path,
    own: &BTreeSet<String>,
) -> Result<gprofinject_tests::run::Outcome> {
    let stdin = options.stdin.as_deref();
    let (engine, hooks) = (options.engine, options.hooks.option());
    let command = match &options.gprofinject {
        None => {
            let mut given = vec!["-q", hooks];
            given.extend(own.iter().flat_map(|name| ["-I", name.as_str()]));
            let mut command = tool::command_by(engine, &given, gmon, &options.program, &options.args)?;
            // Under valgrind a program has this variable, and its calls may depend on how many there are.
            if options.with_lines {
                command.env("LD_PRELOAD", " ");
            }
            command
        }
        Some(gprofinject) => {
            let mut command = tool::uncached(gprofinject);
            command.args(["-q", engine.option(), hooks, "-o"]).arg(gmon);
            command.args(own.iter().flat_map(|name| ["-I", name.as_str()])).arg("--");
            command.arg(&options.program).args(&options.args).env("LD_BIND_NOW", "1");
            command
        }
    };
    gprofinject_tests::run::run(command, stdin, std::time::Duration::from_secs(3600))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let (mut engine, mut hooks) = (Engine::Builtin, Hooks::Both);
    let (mut stdin, mut gmon, mut gprofinject, mut runs, mut libs) = (None, None, None, None, None);
    let (mut twice, mut with_lines) = (false, false);
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
            "--with-lines" => with_lines = true,
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
                    with_lines,
                    runs,
                    libs,
                    program,
                    args,
                });
            }
        }
    }
}
