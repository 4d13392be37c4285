//! Finds what the tests run: the `gprofinject` command, and the corpus of real programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::elf::Program;
use crate::run::{self, Outcome};

/// The two ways of hooking that count calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hooks {
    Both,
    Entry,
}

impl Hooks {
    pub const ALL: [Hooks; 2] = [Hooks::Both, Hooks::Entry];

    pub fn option(self) -> &'static str {
        match self {
            Hooks::Both => "--hooks=both",
            Hooks::Entry => "--hooks=entry",
        }
    }
}

/// Who patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Builtin,
    /// Frida's gum; what it can't do safely isn't hooked.
    Frida,
    /// Frida's gum, and the built-in engine for the rest.
    FridaOrBuiltin,
}

impl Engine {
    pub fn option(self) -> &'static str {
        match self {
            Engine::Builtin => "--engine=builtin",
            Engine::Frida => "--engine=frida",
            Engine::FridaOrBuiltin => "--engine=frida,builtin",
        }
    }

    /// The command that has the engine; the error says why there is none.
    pub fn gprofinject(self) -> Result<&'static Path> {
        match self {
            Engine::Builtin => gprofinject(),
            Engine::Frida | Engine::FridaOrBuiltin => frida(),
        }
    }
}

/// The folder of this crate.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's build folder: the one that the running test lies in.
pub fn target_folder() -> PathBuf {
    let running = std::env::current_exe().unwrap_or_default();
    let build = running.ancestors().find(|a| a.join("CACHEDIR.TAG").is_file());
    build.map_or_else(|| folder().join("../target"), Path::to_path_buf)
}

/// The command under test: `$GPROFINJECT`, or the release build, made here if it isn't there or is old.
pub fn gprofinject() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_or_build().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// The command with Frida's gum in it: `$GPROFINJECT_FRIDA`, or made here where `$FRIDA_GUM_DEVKIT` names what
/// it takes. (The devkit isn't downloaded for a test.) The error says why there is none.
pub fn frida() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_or_build_frida().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn find_or_build_frida() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPROFINJECT_FRIDA") {
        return Path::new(&path).canonicalize().context("$GPROFINJECT_FRIDA");
    }
    if std::env::var_os("FRIDA_GUM_DEVKIT").is_none_or(|folder| folder.is_empty()) {
        bail!("no Frida: FRIDA_GUM_DEVKIT names no devkit (docs/frida.md)");
    }
    // A folder of its own, or it would take the other command's place.
    build(&target_folder().join("frida"), &["--features", "gprofinject/frida"])
}

fn find_or_build() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPROFINJECT") {
        return Path::new(&path).canonicalize().context("$GPROFINJECT");
    }
    build(&target_folder(), &[])
}

fn build(target: &Path, features: &[&str]) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    // Of the whole workspace, whose crates the tests' own build has made already; cargo decides what is left to be done.
    cargo.args(["build", "--release", "--workspace", "--bin", "gprofinject"]).args(features);
    cargo.arg("--target-dir").arg(target);
    cargo.current_dir(folder().join(".."));
    let built = cargo.output().context("cannot run cargo")?;
    if !built.status.success() {
        bail!("gprofinject doesn't build:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    Ok(target.join("release/gprofinject"))
}

/// gprofinject, started so that it plans anew: no plan of an earlier run, by the user or by another test, stands in for
/// the planner that is tested.
pub fn uncached(gprofinject: &Path) -> Command {
    let mut command = Command::new(gprofinject);
    command.arg("--no-cache");
    command
}

/// `gprofinject OPTIONS -o PROFILE -- PROGRAM ARGS`, ready to run. `$GPROFINJECT_OPTIONS` has more options, so that
/// any test can be run with `--count blocks`, say.
pub fn command(options: &[&str], profile: &Path, program: &Path, args: &[String]) -> Result<Command> {
    command_by(Engine::Builtin, options, profile, program, args)
}

/// The same with an engine.
pub fn command_by(
    engine: Engine,
    options: &[&str],
    profile: &Path,
    program: &Path,
    args: &[String],
) -> Result<Command> {
    let mut command = uncached(engine.gprofinject()?);
    if engine != Engine::Builtin {
        command.arg(engine.option());
    }
    to_profile(&mut command, options, profile, program, args);
    Ok(command)
}

/// The same as [`command`], but with a cache of plans in this folder.
pub fn cached(
    caches: &Path,
    options: &[&str],
    profile: &Path,
    program: &Path,
    args: &[String],
) -> Result<Command> {
    let mut command = Command::new(gprofinject()?);
    command.env("XDG_CACHE_HOME", caches);
    to_profile(&mut command, options, profile, program, args);
    Ok(command)
}

fn to_profile(command: &mut Command, options: &[&str], profile: &Path, program: &Path, args: &[String]) {
    let more = std::env::var("GPROFINJECT_OPTIONS").unwrap_or_default();
    command.args(options).args(more.split_whitespace());
    command.arg("-o").arg(profile).arg("--").arg(program).args(args);
    command.env_remove("GMON_OUT_PREFIX").env("LD_BIND_NOW", "1");
}

/// Entries of the functions that the engine leaves alone, by `--list`.
pub fn refused(engine: Engine, hooks: Hooks, program: &Path) -> Result<BTreeSet<u64>> {
    refused_for("", engine, hooks, program)
}

/// Those among them that take an unwinder's steps.
pub fn unwinder(hooks: Hooks, program: &Path) -> Result<BTreeSet<u64>> {
    refused_for("unwinder ", Engine::Builtin, hooks, program)
}

/// Entries of the functions whose calls aren't counted for either reason. `_start` isn't among them: it is the root of
/// the calls.
pub fn left_alone(engine: Engine, hooks: Hooks, path: &Path, program: &Program) -> Result<BTreeSet<u64>> {
    let mut left_alone = match engine {
        Engine::Frida => refused(engine, hooks, path)?,
        Engine::Builtin | Engine::FridaOrBuiltin => unwinder(hooks, path)?,
    };
    left_alone.retain(|&entry| program.named("_start").is_none_or(|start| start.address != entry));
    Ok(left_alone)
}

fn refused_for(reason: &str, engine: Engine, hooks: Hooks, program: &Path) -> Result<BTreeSet<u64>> {
    let mut command = uncached(engine.gprofinject()?);
    command.args(["-q", engine.option(), hooks.option(), "--list", "--"]).arg(program);
    let listed = run::run(command, None, Duration::from_secs(60))?;
    let text = listed.stdout_text();
    // Address, size, name, tactic or refusal.
    let wanted = format!("  refused: {reason}");
    let lines = text.lines().filter(|line| line.contains(&wanted));
    lines
        .map(|line| {
            let address = line.strip_prefix("0x").and_then(|rest| rest.split(' ').next());
            u64::from_str_radix(address.context("no address")?, 16).with_context(|| line.to_owned())
        })
        .collect()
}

/// Runs a program under gprofinject, quietly.
pub fn profile(
    hooks: Hooks,
    profile: &Path,
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
) -> Result<Outcome> {
    let command = command(&["-q", hooks.option()], profile, program, args)?;
    run::run(command, stdin, Duration::from_secs(600))
}

/// The folder of the real programs: `$GPROFINJECT_CORPUS`, or made in the build folder by `corpus.sh`.
/// The error says why there is none.
pub fn corpus() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_or_make_corpus().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn find_or_make_corpus() -> Result<PathBuf> {
    make_corpus(&[])
}

/// The real programs, of these kinds; of none: of those that tests want.
pub fn make_corpus(kinds: &[&str]) -> Result<PathBuf> {
    let corpus = match std::env::var_os("GPROFINJECT_CORPUS") {
        Some(path) => PathBuf::from(path),
        None => target_folder().join("corpus"),
    };
    let mut made = Command::new(folder().join("corpus.sh"));
    let made = made.arg(&corpus).args(kinds).output().context("corpus.sh")?;
    if !made.status.success() {
        bail!("{}", String::from_utf8_lossy(&made.stderr).trim_end());
    }
    Ok(corpus.canonicalize()?)
}
