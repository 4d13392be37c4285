//! The program `processes/switched.c`, running under gprofinject or beside it.
// A test that cannot start its program has failed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::elf::Program;
use crate::place::Place;
use crate::{compile, gprofdata, tool};

/// How often each function was called, as the program has counted.
pub type Counts = BTreeMap<String, u64>;

/// The running program. It is killed when this is dropped.
pub struct Subject {
    pub place: Place,
    pub pid: u32,
    /// The program, or the gprofinject that has started it.
    pub child: Child,
    answers: BufReader<ChildStdout>,
    attached: Option<Child>,
}

/// Compiles the program, and the library that it loads, into a new folder.
pub fn compiled(flags: &[&str]) -> Place {
    compiled_by("gcc", flags)
}

/// Compiles the program by another compiler.
pub fn compiled_by(compiler: &str, flags: &[&str]) -> Place {
    let place = Place::new();
    let mut compiler = Command::new(compiler);
    compiler.args(["-w", "-pthread", "-o"]).arg(place.path("switched")).args(flags);
    compiler.arg(tool::folder().join("processes/switched.c")).arg("-ldl");
    compile::compile(compiler).unwrap();
    let plug = "unsigned other_one(unsigned x) { return x - 1; }\nunsigned plugged(unsigned x) { return x * 5 + 1; }\n";
    place.c("libplug.so", plug, &["-fPIC", "-shared"]);
    place
}

/// Reads a line of names and numbers in turn.
pub fn counts(line: &str) -> Counts {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
}

impl Subject {
    /// Starts the program by gprofinject, or starts it and attaches gprofinject to it.
    pub fn new(flags: &[&str], options: &[&str], attach: bool) -> Subject {
        Subject::of(compiled(flags), options, attach)
    }

    /// Does the same with a program that was compiled already.
    pub fn of(place: Place, options: &[&str], attach: bool) -> Subject {
        let mut command = match attach {
            true => Command::new(place.path("switched")),
            false => place.command(&["--rate", "0"]),
        };
        if !attach {
            command.args(options).arg("./switched");
        }
        command.current_dir(place.folder.path()).env("XDG_RUNTIME_DIR", place.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Subject { place, pid: child.id(), child, answers, attached: None };
        assert_eq!(subject.line(), "ready");
        if attach {
            let mut command = subject.place.command(&["--rate", "0", "--pid", &subject.pid.to_string()]);
            command.args(options).env("XDG_RUNTIME_DIR", subject.place.folder.path()).stderr(Stdio::piped());
            let mut attached = command.stdin(Stdio::null()).spawn().unwrap();
            let mut said = String::new();
            let mut stderr = BufReader::new(attached.stderr.take().unwrap());
            while !said.contains("Ctrl-C") {
                assert!(stderr.read_line(&mut said).unwrap() > 0, "not attached: {said}");
            }
            attached.stderr = Some(stderr.into_inner());
            subject.attached = Some(attached);
        } else {
            let children = format!("/proc/{0}/task/{0}/children", subject.pid);
            let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let found = fs::read_to_string(children).unwrap();
            let pid = found.split_whitespace().find(|pid| name(pid).trim() == "switched").unwrap();
            subject.pid = pid.parse().unwrap();
        }
        subject
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Makes the program do something, and returns what it says.
    pub fn tell(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_ref().unwrap(), "{what}").unwrap();
        self.line()
    }

    pub fn asked_of(&self, pid: u32, arguments: &[&str]) -> Output {
        let mut command = self.place.command(&["--pid", &pid.to_string()]);
        command.args(arguments).env("XDG_RUNTIME_DIR", self.place.folder.path()).output().unwrap()
    }

    /// Asks the gprofinject that profiles the program. Returns what it says.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = self.asked_of(self.pid, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    }

    /// Lets the program end. Returns the rest of what it says, and the calls of each function by the profile.
    pub fn finish(mut self) -> (String, Counts) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        while self.answers.read_line(&mut rest).unwrap() > 0 {}
        let start = Instant::now();
        for child in [Some(&mut self.child), self.attached.as_mut()].into_iter().flatten() {
            while child.try_wait().unwrap().is_none() {
                assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let calls = self.calls("gmon.out", "switched");
        (rest, calls)
    }

    /// Returns the calls of each function by a profile of the program.
    pub fn calls(&self, profile: &str, program: &str) -> Counts {
        let profile = gprofdata::read(&self.place.path(profile)).unwrap();
        let program = Program::read(&self.place.path(program)).unwrap();
        let mut calls = Counts::new();
        for ((_, callee), count) in &profile.arcs {
            if let Some(function) = program.entry(*callee) {
                *calls.entry(function.name().to_owned()).or_default() += count;
            }
        }
        calls
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).stderr(Stdio::null()).status();
        for child in [Some(&mut self.child), self.attached.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
