//! Programs that have children or end in unusual ways. They are compared with themselves running alone, and
//! each process's counts with the source.
// A test that cannot make its folders has failed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::elf::Program;
use crate::place::Place;
use crate::run::{self, Outcome};
use crate::{compile, gprofdata, tool, view};

/// The ways to profile a family of processes.
pub const MODES: [&str; 4] = ["--hooks=both", "--hooks=entry", "--sampler=timer", "--no-follow"];
pub const NO_FOLLOW: &str = "--no-follow";

/// The ways in which `processes/forks.c` makes a child with memory of its own.
pub const WAYS_TO_FORK: [&str; 12] = [
    "fork",
    "_Fork",
    "exit",
    "return",
    "syscall-fork",
    "syscall-clone",
    "syscall-clone-files",
    "syscall-clone3",
    "clone",
    "clone-files",
    "thread",
    "signal",
];

/// The ways in which `processes/execs.c` executes a program.
pub const WAYS_TO_EXECUTE: [&str; 22] = [
    "execv",
    "execvp",
    "execve-null",
    "execve-empty",
    "execle",
    "execve-long",
    "fexecve",
    "memfd",
    "self",
    "thread-self",
    "self-fd",
    "dev-fd",
    "empty-path",
    "syscall",
    "syscall-at",
    "memfd-path",
    "deleted",
    "thread",
    "vfork",
    "vfork-closed",
    "spawn-closed",
    "spawnp",
];

/// The time after which a run is killed. No run takes so long.
const LIMIT: Duration = Duration::from_secs(60);

/// The functions that are counted, of all programs in `processes/`.
const COUNTED: [&str; 3] = ["work", "other", "late"];

/// The calls of `work`, `other` and `late` in one process.
pub type Calls = [u64; 3];

/// A folder with a compiled program of `processes/`.
pub struct Subject {
    place: Place,
    pub path: PathBuf,
}

impl Subject {
    pub fn new(name: &str) -> Subject {
        Subject::with(name, &[])
    }

    pub fn with(name: &str, flags: &[&str]) -> Subject {
        Subject::by("gcc", name, flags)
    }

    /// Compiles it with another compiler.
    pub fn by(compiler: &str, name: &str, flags: &[&str]) -> Subject {
        let place = Place::new();
        let path = place.path(name);
        let mut command = Command::new(compiler);
        command.args(["-O1", "-w", "-pthread", "-o"]).arg(&path);
        command.arg(tool::folder().join(format!("processes/{name}.c"))).args(flags);
        compile::compile(command).unwrap();
        Subject { place, path }
    }

    /// Returns the folder, for further programs.
    pub fn place(&self) -> &Place {
        &self.place
    }

    pub fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Runs the program alone and in each mode. It must behave in the same way, and the processes must have
    /// made these calls: those of the first process, and those of the others in any order. With --no-follow,
    /// only the first process is profiled.
    pub fn check(&self, args: &[&str], expected: &[Calls]) {
        for mode in MODES {
            let expected = if mode == NO_FOLLOW { expected.get(..1).unwrap() } else { expected };
            let run = self.same_as_alone(&["-q", mode], args, &[]);
            assert_eq!(run.said, run.said_alone, "{mode} {args:?}");
            run.made(expected, &format!("{mode} {args:?}"));
        }
    }

    /// Runs the program alone and profiled. Output and status must be the same.
    pub fn same_as_alone(&self, options: &[&str], args: &[&str], env: &[(&str, &str)]) -> Run {
        let mut alone = Command::new(&self.path);
        alone.args(args).envs(env.iter().copied()).env_remove("GMON_OUT_PREFIX");
        let alone = in_new_folder(alone).0;
        let run = Run { said_alone: alone.stderr_text(), ..self.profiled(options, args, env) };
        let what = format!("{options:?} {args:?}: {}", run.said);
        assert_eq!(run.outcome.stdout_text(), alone.stdout_text(), "{what}");
        assert_eq!(run.outcome.code(), alone.code(), "{what}");
        run
    }

    pub fn profiled(&self, options: &[&str], args: &[&str], env: &[(&str, &str)]) -> Run {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.arg("--per-process").args(options).arg(&self.path).args(args).envs(env.iter().copied());
        // A folder in which no other program leaves run folders.
        let shared = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        command.env("XDG_RUNTIME_DIR", shared.path()).env_remove("GMON_OUT_PREFIX");
        let (outcome, folder) = in_new_folder(command);
        let left: Vec<_> = fs::read_dir(shared.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let said = outcome.stderr_text();
        assert!(!said.contains("panicked"), "{said}");
        Run { program: Program::read(&self.path).unwrap(), outcome, folder, said, said_alone: String::new() }
    }
}

fn in_new_folder(mut command: Command) -> (Outcome, Place) {
    let folder = Place::new();
    command.current_dir(folder.folder.path());
    let what = format!("{command:?}");
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: {what}");
    view::apart(folder.folder.path()).unwrap();
    (outcome, folder)
}

/// A profiled run, and the folder with its files. The profiles of other processes than the first are made of the recording.
pub struct Run {
    program: Program,
    pub outcome: Outcome,
    folder: Place,
    /// The text on standard error.
    pub said: String,
    /// The text on standard error without gprofinject.
    pub said_alone: String,
}

impl Run {
    /// Returns whether the first process has a profile, and the file names of the others' profiles.
    pub fn files(&self) -> (bool, Vec<String>) {
        let entries = fs::read_dir(self.folder.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut others: Vec<String> =
            names.filter(|n| n.starts_with("gmon.out") && !n.ends_with(".program")).collect();
        others.sort();
        let first = others.iter().position(|name| name == "gmon.out");
        (first.map(|at| others.remove(at)).is_some(), others)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// Returns the calls in one profile.
    pub fn calls(&self, file: &Path) -> Calls {
        let profile = gprofdata::read(file).unwrap();
        let mut calls = BTreeMap::new();
        for ((_, callee), count) in &profile.arcs {
            *calls.entry(self.program.label(*callee)).or_default() += count;
        }
        COUNTED.map(|name| calls.get(name).copied().unwrap_or(0))
    }

    /// Checks that there are exactly these profiles, besides those of children that a sample has met before they called anything: whether one
    /// does is chance.
    pub fn made(&self, expected: &[Calls], what: &str) {
        let (first, others) = self.files();
        assert!(first, "{what}: no gmon.out");
        for name in &others {
            let numbers = name.strip_prefix("gmon.out.").unwrap();
            assert!(numbers.split('.').all(|n| n.parse::<u32>().is_ok()), "{what}: {name}");
        }
        let mut calls: Vec<Calls> = others.iter().map(|name| self.calls(&self.path(name))).collect();
        calls.retain(|calls| *calls != Calls::default());
        calls.sort_unstable();
        calls.insert(0, self.calls(&self.path("gmon.out")));
        let mut expected = expected.to_vec();
        expected[1..].sort_unstable();
        assert_eq!(calls, expected, "{what}");
    }
}
