//! The program `processes/attached.cc`, running, and a gprofinject that is attached to it.
// A test that cannot start its program has failed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::elf::Program;
use crate::place::Place;
use crate::run::Outcome;
use crate::{compile, container, gprofdata, place, tool};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What the program has counted by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    pub outer: u64,
    pub inner: u64,
    pub thrower: u64,
}

/// The running program. It is killed when this is dropped.
pub struct Subject {
    pub place: Place,
    pub child: Child,
    /// The process in which the program runs: the child, or the child's own child in a container.
    pid: u32,
    /// The program's input; `None` after it has been closed.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    program: Program,
    /// The path and the arguments.
    started: (PathBuf, Vec<OsString>),
    /// The lines that the program has received, and everything that it has printed.
    told: String,
    said: String,
}

impl Subject {
    /// Starts the program with a thread for each letter.
    pub fn new(kinds: &str, flags: &[&str]) -> Subject {
        let place = Place::new();
        let command = Subject::compiled(&place, kinds, flags);
        Subject::start(place, command)
    }

    /// Starts `command`, which must print "ready".
    pub fn start(place: Place, mut command: Command) -> Subject {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = Program::read(Path::new(command.get_program())).unwrap();
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let arguments = command.get_args().map(OsString::from).collect();
        let started = (command.get_program().into(), arguments);
        let (told, said) = (String::new(), String::new());
        let pid = child.id();
        let mut subject = Subject { place, child, pid, stdin, stdout, program, started, told, said };
        assert_eq!(subject.line(), "ready\n");
        subject
    }

    /// Compiles the program and starts it in a container, with a thread for each letter.
    pub fn contained(kinds: &str, flags: &[&str], container: container::Kind) -> Subject {
        let place = Place::new();
        let command = Subject::compiled(&place, kinds, flags);
        Subject::start_contained(place, command, container)
    }

    /// Starts `command` in a container. It must print "ready".
    pub fn start_contained(place: Place, mut command: Command, container: container::Kind) -> Subject {
        // The program may run as another user, and writes to the folder.
        fs::set_permissions(place.folder.path(), Permissions::from_mode(0o777)).unwrap();
        container::contain(&mut command, container, container::Refusal::End);
        let mut subject = Subject::start(place, command);
        if container != container::Kind::Filter {
            let children = format!("/proc/{0}/task/{0}/children", subject.pid);
            subject.pid = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        }
        subject
    }

    fn compiled(place: &Place, kinds: &str, flags: &[&str]) -> Command {
        let mut compiler = Command::new("g++");
        compiler.args(["-O2", "-w", "-pthread", "-o"]).arg(place.path("attached"));
        compiler.arg(tool::folder().join("processes/attached.cc")).args(flags);
        compile::compile(compiler).unwrap();
        let mut command = Command::new(place.path("attached"));
        command.arg(kinds).current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
        command
    }

    /// The program's process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        self.said += &line;
        line
    }

    /// Waits until the program prints this text.
    pub fn hear(&mut self, what: &str) {
        assert_eq!(self.line(), what);
    }

    /// Sends the program a line of input, which makes it do something.
    pub fn tell(&mut self, what: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.told += what;
        self.told.push('\n');
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Makes the program call `step` so many times, and waits until it has.
    pub fn step(&mut self, times: u32) {
        self.tell(&times.to_string());
        assert_eq!(self.line(), "done\n");
    }

    /// Returns what the program has counted by itself.
    pub fn counters(&self) -> Counters {
        let bytes = fs::read(self.place.path("counters")).unwrap();
        let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
        Counters { outer: word(0), inner: word(1), thrower: word(2) }
    }

    /// Returns the command `gprofinject --pid` with these options, whose folders are in the test's own.
    pub fn command(&self, options: &[&str]) -> Command {
        let mut command = self.place.command(&["--rate", "0", "--pid", &self.pid().to_string()]);
        command.args(options).env("XDG_RUNTIME_DIR", self.place.folder.path());
        command
    }

    /// Runs `gprofinject --pid` to its end.
    pub fn attach(&self, options: &[&str]) -> Outcome {
        place::finish(self.command(options))
    }

    /// Runs `gprofinject --pid` until it is attached.
    pub fn attached(&self, options: &[&str]) -> Attached {
        let mut command = self.command(options);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut command = command.spawn().unwrap();
        let mut stderr = BufReader::new(command.stderr.take().unwrap());
        let mut said = String::new();
        // This is the last line that it prints before it waits.
        while !said.contains("Ctrl-C") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "not attached: {said}");
        }
        Attached { command, stderr, said }
    }

    /// Returns how often a function was called, by the profile.
    pub fn calls(&self, function: &str) -> u64 {
        let profile = gprofdata::read(&self.place.path("gmon.out")).unwrap();
        let address = self.program.named(function).unwrap().address;
        profile.arcs.iter().filter(|((_, callee), _)| *callee == address).map(|(_, count)| count).sum()
    }

    /// Returns the code in the program's memory, by the file from which it is.
    pub fn code(&self) -> BTreeMap<String, Vec<u8>> {
        code(&self.pid().to_string())
    }

    /// Returns the first place at which the code has changed.
    pub fn changed(&self, before: &BTreeMap<String, Vec<u8>>) -> Option<String> {
        self.changed_in(&self.pid().to_string(), before)
    }

    /// Returns the first place at which the code in a child has changed.
    pub fn changed_in(&self, pid: &str, before: &BTreeMap<String, Vec<u8>>) -> Option<String> {
        let now = code(pid);
        before.iter().find_map(|(name, was)| {
            let Some(is) = now.get(name) else { return Some(format!("{name} is gone")) };
            // Megabytes: byte by byte only where there is something to find.
            if was == is {
                return None;
            }
            let at = (0..was.len().max(is.len())).find(|&at| was.get(at) != is.get(at))?;
            Some(format!("{name}, {at:#x} of {:#x} and {:#x}", was.len(), is.len()))
        })
    }

    /// Sends an order to the gprofinject that is attached to the program.
    pub fn ask(&self, order: &str) {
        let mut command = self.place.command(&["--pid", &self.pid().to_string(), order]);
        command.env("XDG_RUNTIME_DIR", self.place.folder.path());
        let outcome = place::finish(command);
        assert_eq!(outcome.code(), 0, "{order}: {}", outcome.stderr_text());
    }

    /// Whether nothing of gprofinject is in the program's memory: neither its files, nor code that is from no file.
    pub fn is_clean(&self) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let is_ours = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            line.contains("gprofinject") || fields[1].contains('x') && fields.len() < 6
        };
        !maps.lines().any(is_ours)
    }

    /// Whether the program still runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes the program's input and waits for its end. It must end as it does alone, with the same output.
    pub fn finish(&mut self) {
        self.stdin = None;
        let start = Instant::now();
        // The program's last lines do not fill the pipe.
        while self.lives() {
            assert!(start.elapsed() < PATIENCE, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stdout.read_to_string(&mut self.said).unwrap();
        let (path, arguments) = &self.started;
        let mut alone = Command::new(path);
        alone.args(arguments).current_dir(self.place.folder.path()).env_remove("GMON_OUT_PREFIX");
        let mut alone = alone.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        alone.stdin.take().unwrap().write_all(self.told.as_bytes()).unwrap();
        let alone = alone.wait_with_output().unwrap();
        let alone = (alone.status, String::from_utf8_lossy(&alone.stdout).into_owned());
        assert_eq!((self.child.wait().unwrap(), self.said.clone()), alone);
    }
}

fn code(pid: &str) -> BTreeMap<String, Vec<u8>> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut code: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains(" r-xp ") && line.contains('/')) {
        let (lo, hi) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (hex(hi) - hex(lo)) as usize];
        memory.read_exact_at(&mut bytes, hex(lo)).unwrap();
        code.entry(line[line.find('/').unwrap()..].to_owned()).or_default().extend(bytes);
    }
    code
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gprofinject that is attached to a process.
pub struct Attached {
    pub command: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Attached {
    /// Sends gprofinject a signal and waits for its end. Returns its status and everything that it has
    /// printed.
    pub fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.command.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.wait()
    }

    /// Waits until gprofinject ends by itself.
    pub fn wait(&mut self) -> (Option<i32>, String) {
        while self.stderr.read_line(&mut self.said).unwrap() > 0 {}
        (self.command.wait().unwrap().code(), std::mem::take(&mut self.said))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

/// Returns the times for which threads stood still, in milliseconds.
pub fn pauses(said: &str) -> Vec<f64> {
    let lines = said.lines().filter(|line| line.contains("stood still"));
    lines
        .map(|line| line.trim_end_matches(" ms").rsplit(' ').next().unwrap_or_default().parse().unwrap())
        .collect()
}
