//! Runs variants of a program in turn, and keeps the minimum of each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gprofinject_tests::run;
use gprofinject_tests::tool::{self, Engine, Hooks};

pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A program, with arguments and input that make it work for a while.
pub(crate) struct Work {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) stdin: Option<PathBuf>,
}

/// The ways in which a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Both,
    Entry,
    By(Engine, Hooks),
    /// With basic-block counts.
    Blocks,
    EntryBlocks,
    BlocksOnly,
    Uftrace,
    /// Functions of libraries too.
    UftraceLibraries,
    Callgrind,
    PerfRecord,
    /// With the callers of each sample.
    PerfRecordGraph,
    /// With hooks in no library.
    ProgramOnly,
    /// With the durations of calls.
    Times,
    /// With the durations of the calls of functions whose calls are not short.
    LongTimes,
    /// With the durations of calls, and call paths.
    Paths,
    /// The program has been built with -pg.
    UftracePg,
}

impl Way {
    /// Returns the other tool that this way needs.
    pub(crate) fn tool(self) -> Option<&'static str> {
        match self {
            Way::Uftrace | Way::UftraceLibraries | Way::UftracePg => Some("uftrace"),
            Way::Callgrind => Some("valgrind"),
            Way::PerfRecord | Way::PerfRecordGraph => Some("perf"),
            _ => None,
        }
    }

    pub(crate) fn command(self, work: &Work, folder: &Path) -> Result<Command> {
        let gmon = folder.join("gmon.out");
        let mut command = match self {
            Way::Plain => Command::new(&work.program),
            // With as many samples a second as gcc -pg takes (glibc's profil): by default gprofinject takes ten times as many.
            Way::Both | Way::Entry => {
                let hooks = if self == Way::Both { "--hooks=both" } else { "--hooks=entry" };
                return tool::command(&["-q", "--rate=100", hooks], &gmon, &work.program, &work.args);
            }
            Way::Blocks | Way::EntryBlocks | Way::BlocksOnly => {
                let hooks = match self {
                    Way::Blocks => "--hooks=both",
                    Way::EntryBlocks => "--hooks=entry",
                    _ => "--hooks=none",
                };
                let options = ["-q", hooks, "--count=blocks"];
                return tool::command(&options, &gmon, &work.program, &work.args);
            }
            Way::By(engine, hooks) => {
                let options = ["-q", hooks.option()];
                return tool::command_by(engine, &options, &gmon, &work.program, &work.args);
            }
            Way::Uftrace => {
                let mut command = Command::new("uftrace");
                command.args(["record", "--no-pager", "--no-libcall", "-P", ".", "-d"]);
                command.arg(folder.join("uftrace.data")).arg(&work.program);
                command
            }
            Way::ProgramOnly => {
                let options = ["-q", "--hooks=both", "--libs=none"];
                return tool::command(&options, &gmon, &work.program, &work.args);
            }
            Way::UftraceLibraries => {
                let mut command = Command::new("uftrace");
                command.args(["record", "--no-pager", "-P", ".", "-l", "-d"]);
                command.arg(folder.join("uftrace.data")).arg(&work.program);
                command
            }
            Way::Times | Way::LongTimes | Way::Paths => {
                let what = if self == Way::Paths { "--paths" } else { "--times" };
                let mut options = vec!["-q", what, "--libs=none"];
                options.extend((self == Way::LongTimes).then_some("--min-time"));
                return tool::command(&options, &gmon, &work.program, &work.args);
            }
            Way::UftracePg => {
                let mut command = Command::new("uftrace");
                command.args(["record", "--no-pager", "--no-libcall", "-d"]);
                command.arg(folder.join("uftrace.data")).arg(&work.program);
                command
            }
            Way::PerfRecord | Way::PerfRecordGraph => {
                let mut command = Command::new("perf");
                command.args(["record", "-q", "-e", "cpu-clock", "-F", "1000"]);
                command.args((self == Way::PerfRecordGraph).then_some("-g"));
                command.arg("-o").arg(folder.join("perf.data")).arg("--").arg(&work.program);
                command
            }
            Way::Callgrind => {
                let mut command = Command::new("valgrind");
                command.args(["-q", "--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&work.program);
                command
            }
        };
        command.args(&work.args).env("LD_BIND_NOW", "1");
        // The folder in which a program built with --coverage leaves its counts.
        command.env("GCOV_PREFIX", folder);
        Ok(command)
    }
}

/// What a run cost, or the minimum of several ones, for each figure separately.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) cpu: Duration,
    pub(crate) user: Duration,
    pub(crate) wall: Duration,
}

/// Runs each case once per round, one after the other, so that a slow period of the machine affects all of
/// them. Returns the minimum of each.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn alternate(cases: &[(&Work, Way)], rounds: usize, folder: &Path) -> Result<Vec<Cost>> {
    let most = Cost { cpu: Duration::MAX, user: Duration::MAX, wall: Duration::MAX };
    let mut best = vec![most; cases.len()];
    for costs in all_rounds(cases, rounds, folder)? {
        for (cost, best) in costs.iter().zip(&mut best) {
            best.cpu = best.cpu.min(cost.cpu);
            best.user = best.user.min(cost.user);
            best.wall = best.wall.min(cost.wall);
        }
    }
    Ok(best)
}

/// Does the same, and returns what each case cost in each round.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn all_rounds(cases: &[(&Work, Way)], rounds: usize, folder: &Path) -> Result<Vec<Vec<Cost>>> {
    let run = |(work, way): &(&Work, Way)| {
        let mut command = way.command(work, folder)?;
        command.current_dir(folder); // a -pg program leaves its profile where it runs
        let outcome = run::run(command, work.stdin.as_deref(), LIMIT)?;
        if !outcome.status.success() {
            bail!("{}: status {}: {}", work.program.display(), outcome.code(), outcome.stderr_text());
        }
        Ok(Cost { cpu: outcome.cpu(), user: outcome.user, wall: outcome.wall })
    };
    (0..rounds).map(|_| cases.iter().map(run).collect()).collect()
}

/// Returns what `--stats` says about a run.
pub(crate) fn stats(
    work: &Work,
    options: &[&str],
    folder: &Path,
) -> Result<(serde_json::Value, run::Outcome)> {
    stats_by(Engine::Builtin, work, options, folder)
}

/// Returns what `--stats` says about a run with an engine.
pub(crate) fn stats_by(
    engine: Engine,
    work: &Work,
    options: &[&str],
    folder: &Path,
) -> Result<(serde_json::Value, run::Outcome)> {
    let make = |options: &[&str], profile: &Path| {
        tool::command_by(engine, options, profile, &work.program, &work.args)
    };
    stats_from(make, work, options, folder)
}

/// Returns what `--stats` says about a run with a cache of plans.
pub(crate) fn stats_cached(
    caches: &Path,
    work: &Work,
    folder: &Path,
) -> Result<(serde_json::Value, run::Outcome)> {
    let make =
        |options: &[&str], profile: &Path| tool::cached(caches, options, profile, &work.program, &work.args);
    stats_from(make, work, &[], folder)
}

fn stats_from(
    make: impl FnOnce(&[&str], &Path) -> Result<Command>,
    work: &Work,
    options: &[&str],
    folder: &Path,
) -> Result<(serde_json::Value, run::Outcome)> {
    let file = folder.join("stats.json");
    let name = file.display().to_string();
    let command = make(&[&["-q", "--stats", &name], options].concat(), &folder.join("gmon.out"))?;
    let outcome = run::run(command, work.stdin.as_deref(), LIMIT)?;
    let text = std::fs::read(&file).with_context(|| format!("no stats: {}", outcome.stderr_text()))?;
    Ok((serde_json::from_slice(&text)?, outcome))
}

pub(crate) fn number(stats: &serde_json::Value, path: &str) -> Result<u64> {
    stats.pointer(path).and_then(|v| v.as_u64()).with_context(|| format!("no {path} in the stats"))
}
