//! Finds what the tests run: the `gprofinject` command, the corpus of real programs, and the machine's own programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

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

/// Which engine patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Builtin,
    /// Frida's gum. What it cannot patch safely is not hooked.
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

    /// Returns the command that has the engine.
    ///
    /// # Errors
    /// There is none; the error says why.
    pub fn gprofinject(self) -> Result<&'static Path> {
        match self {
            Engine::Builtin => gprofinject(),
            Engine::Frida | Engine::FridaOrBuiltin => frida(),
        }
    }
}

/// The command that builds what the tests start.
const BUILD: &str = "cargo build --release --workspace --bins";

/// Returns the folder of this crate.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns Cargo's build folder, which contains the running test.
pub fn target_folder() -> PathBuf {
    gprofinject_skip::target_folder().unwrap_or_else(|| folder().join("../target"))
}

/// Returns the command under test: `$GPROFINJECT`, or the release build.
///
/// # Errors
/// It was not built, or its sources have changed since. `cargo test --workspace --release` builds it before
/// the tests.
pub fn gprofinject() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let built = target_folder().join("release/gprofinject");
        let found = named_by("GPROFINJECT").unwrap_or_else(|| is_fresh(built, BUILD));
        found.map_err(|error| format!("{error:#}"))
    });
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Returns a shell that carries out a command which a message names. It finds `gmon`.
///
/// # Errors
/// There is no `gmon`.
pub fn shell(command: &str) -> Result<Command> {
    let gmon = gmon()?;
    let folders = gmon.parent().map(Path::to_owned).into_iter();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path)))?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path);
    Ok(shell)
}

/// Returns the `gmon` command, which is beside the command under test.
///
/// # Errors
/// As for [`gprofinject`].
pub fn gmon() -> Result<PathBuf> {
    let gmon = gprofinject()?.with_file_name("gmon");
    if std::env::var_os("GPROFINJECT").is_some() { Ok(gmon) } else { is_fresh(gmon, BUILD) }
}

/// Returns the command that contains Frida's gum: `$GPROFINJECT_FRIDA`, or the one in `frida/` of the build
/// folder if `$FRIDA_GUM_DEVKIT` is set.
///
/// # Errors
/// There is none; the error says why: `no Frida: ...` if none was asked for.
pub fn frida() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let found = named_by("GPROFINJECT_FRIDA").unwrap_or_else(|| {
            if std::env::var_os("FRIDA_GUM_DEVKIT").is_none_or(|folder| folder.is_empty()) {
                bail!("no Frida: FRIDA_GUM_DEVKIT names no devkit (docs/frida.md)");
            }
            // It needs a folder of its own, because it would replace the other command.
            let built = target_folder().join("frida/release/gprofinject");
            is_fresh(built, "cargo build --release -p gprofinject --features frida --target-dir target/frida")
        });
        found.map_err(|error| format!("{error:#}"))
    });
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Returns when the file was last changed; for a folder, when any file in it was. Returns `None` if it does
/// not exist.
fn modified(path: &Path) -> Option<SystemTime> {
    let own = path.metadata().ok()?;
    if !own.is_dir() {
        return own.modified().ok();
    }
    let entries = std::fs::read_dir(path).ok()?;
    entries.flatten().filter_map(|entry| modified(&entry.path())).max()
}

fn named_by(variable: &'static str) -> Option<Result<PathBuf>> {
    let path = std::env::var_os(variable)?;
    Some(Path::new(&path).canonicalize().context(variable))
}

/// Returns the command that `build` makes, unless it is missing or older than one of its sources. `cargo build`
/// lists the sources in a file beside it; in a folder, any file counts. `cargo test`, which builds the command as well,
/// writes no such list: without one, the command is taken as it is, and a list that is older than the command may name
/// files that are gone.
fn is_fresh(command: PathBuf, build: &str) -> Result<PathBuf> {
    let how = format!("build it by `{build}`");
    let built = modified(&command).with_context(|| format!("there is no {}: {how}", command.display()))?;
    let list = command.with_extension("d");
    let Some(listed_at) = modified(&list) else { return Ok(command) };
    let listed = std::fs::read_to_string(&list)?;
    let (_, sources) =
        listed.split_once(": ").with_context(|| format!("{} lists no sources", list.display()))?;
    // Cargo escapes a space in a path.
    let sources = sources.replace("\\ ", "\0");
    for source in sources.split_whitespace() {
        let source = PathBuf::from(source.replace('\0', " "));
        match modified(&source) {
            None if listed_at < built => {}
            None => bail!("{} is made of {}, which is gone: {how}", command.display(), source.display()),
            Some(changed) if changed > built => {
                bail!("{} is older than its source {}: {how}", command.display(), source.display())
            }
            Some(_) => {}
        }
    }
    Ok(command)
}

/// Returns gprofinject, started without a cache, so that no plan of an earlier run hides the planner that is
/// tested. If `$GPROFINJECT_CACHE` names a folder, the cache is there: if all tests have run once, they run by images of the programs then.
pub fn uncached(gprofinject: &Path) -> Command {
    let mut command = Command::new(gprofinject);
    match std::env::var_os("GPROFINJECT_CACHE") {
        Some(folder) => command.env("XDG_CACHE_HOME", folder),
        None => command.arg("--no-cache"),
    };
    command
}

/// Returns `gprofinject OPTIONS -o PROFILE -- PROGRAM ARGS`, ready to run. `$GPROFINJECT_OPTIONS` has further
/// options, so that any test can be run with `--count blocks`, for example.
///
/// # Errors
/// There is no gprofinject.
pub fn command(options: &[&str], profile: &Path, program: &Path, args: &[String]) -> Result<Command> {
    command_by(Engine::Builtin, options, profile, program, args)
}

/// Returns the same command with an engine.
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

/// Returns the same as [`command`], but with a cache of plans in this folder.
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

/// Returns the entries of the functions that the engine refuses, by `--list`.
///
/// # Errors
/// `--list` fails.
pub fn refused(engine: Engine, hooks: Hooks, program: &Path) -> Result<BTreeSet<u64>> {
    refused_for("", engine, hooks, program)
}

/// Returns the entries of those among them that take an unwinder's steps.
///
/// # Errors
/// `--list` fails.
pub fn unwinder(hooks: Hooks, program: &Path) -> Result<BTreeSet<u64>> {
    refused_for("unwinder ", Engine::Builtin, hooks, program)
}

/// Returns the entries of the functions whose calls are not counted, for either reason. `_start` is not among
/// them, because it is the root of the calls.
///
/// # Errors
/// `--list` fails.
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
    // The columns are address, size, name, and tactic or refusal.
    let wanted = format!("  refused: {reason}");
    let lines = text.lines().filter(|line| line.contains(&wanted));
    lines
        .map(|line| {
            let address = line.strip_prefix("0x").and_then(|rest| rest.split(' ').next());
            u64::from_str_radix(address.context("no address")?, 16).with_context(|| line.to_owned())
        })
        .collect()
}

/// Runs a program under gprofinject, with `-q`.
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

/// Returns the folder of the real programs: `$GPROFINJECT_CORPUS`, or one in the build folder that
/// `corpus.sh` makes.
///
/// # Errors
/// The programs cannot be built; the error says why.
pub fn corpus() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_or_make_corpus().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn find_or_make_corpus() -> Result<PathBuf> {
    make_corpus(&[], &[])
}

/// Builds these real programs in these kinds; if a list is empty, those that tests use.
///
/// # Errors
/// They cannot be built.
pub fn make_corpus(programs: &[&str], kinds: &[&str]) -> Result<PathBuf> {
    let corpus = match std::env::var_os("GPROFINJECT_CORPUS") {
        Some(path) => PathBuf::from(path),
        None => target_folder().join("corpus"),
    };
    let mut made = Command::new(folder().join("corpus.sh"));
    let made =
        made.env("CORPUS", programs.join(" ")).arg(&corpus).args(kinds).output().context("corpus.sh")?;
    if !made.status.success() {
        bail!("{}", String::from_utf8_lossy(&made.stderr).trim_end());
    }
    Ok(corpus.canonicalize()?)
}

/// Returns the machine's program of this name. Version managers put scripts with the names of programs first.
pub fn installed(name: &str) -> Option<PathBuf> {
    let candidates = gprofinject_skip::path_of(name).into_iter().chain([Path::new("/usr/bin").join(name)]);
    candidates.into_iter().find(|path| std::fs::read(path).is_ok_and(|data| data.starts_with(b"\x7fELF")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_not_run_if_it_is_missing_or_old() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (command, source, sources) = (folder.join("command"), folder.join("a b.rs"), folder.join("src"));
        let tried = || is_fresh(command.clone(), "make").map_err(|error| error.to_string());
        let complaint = |what: &str| assert_eq!(tried().unwrap_err(), format!("{what}: build it by `make`"));
        complaint(&format!("there is no {}", command.display()));
        std::fs::create_dir(&sources).unwrap();
        for file in [&command, &source, &sources.join("c.rs")] {
            std::fs::write(file, "").unwrap();
        }
        // As `cargo test` leaves it.
        assert_eq!(tried().unwrap(), command);
        let escaped = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(
            folder.join("command.d"),
            format!("{}: {escaped} {}\n", command.display(), sources.display()),
        )
        .unwrap();
        let at = |path: &Path, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            std::fs::File::open(path).unwrap().set_modified(time).unwrap();
        };
        at(&command, 100);
        at(&source, 99);
        at(&sources.join("c.rs"), 100);
        assert_eq!(tried().unwrap(), command);
        at(&sources.join("c.rs"), 101);
        complaint(&format!("{} is older than its source {}", command.display(), sources.display()));
        at(&sources.join("c.rs"), 99);
        at(&source, 101);
        complaint(&format!("{} is older than its source {}", command.display(), source.display()));
        std::fs::remove_file(&source).unwrap();
        complaint(&format!("{} is made of {}, which is gone", command.display(), source.display()));
        at(&folder.join("command.d"), 99);
        assert_eq!(tried().unwrap(), command);
    }
}
