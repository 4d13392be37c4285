//! From the typed name to the file that is executed and the file that is profiled, by the rules of execvp(3)
//! and of the kernel's script loader.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::os::failure::Failure;
use crate::os::sys;

/// The program that is run.
#[derive(Debug)]
pub(crate) struct Program {
    /// The path for execve.
    pub(crate) path: PathBuf,
    pub(crate) argv: Vec<OsString>,
    /// Whether /bin/sh runs the program if execve returns ENOEXEC, as with execvp.
    pub(crate) shell_if_refused: bool,
    /// The file whose code is profiled.
    pub(crate) binary: PathBuf,
    /// The name of that file for a command line.
    pub(crate) shown: OsString,
    /// A message about what is profiled in place of a script.
    pub(crate) note: Option<String>,
    /// A variable that the program gets besides those of the user, with its value.
    pub(crate) variable: Option<(&'static str, &'static str)>,
}

impl Program {
    /// Returns the program that a process already runs.
    pub(crate) fn running(binary: PathBuf, shown: OsString) -> Program {
        Program {
            path: binary.clone(),
            argv: Vec::new(),
            shell_if_refused: false,
            shown,
            binary,
            note: None,
            variable: None,
        }
    }
}

/// The value of PATH that execvp uses if the environment has none.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The number of interpreters after which the kernel stops, for a script whose interpreter is a script, and
/// so on.
const MOST_INTERPRETERS: usize = 5;
/// The number of bytes of a script that the kernel examines.
const SCRIPT_HEAD: u64 = 256;
const SHELL: &str = "/bin/sh";

/// Finds the program of a command.
///
/// # Errors
/// There is no such program, or it cannot be executed.
pub(crate) fn find(command: &[OsString]) -> Result<Program, Failure> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(anyhow!("no program named; try gprofinject --help").into());
    };
    if name.is_empty() {
        return Err(cannot_execute("''", &io::Error::from_raw_os_error(libc::ENOENT)));
    }
    let path = search(name)?;
    let mut program = Program {
        path: path.clone(),
        argv: command.to_vec(),
        shell_if_refused: false,
        shown: shown_name(name, &path),
        binary: path,
        note: None,
        variable: None,
    };
    follow_scripts(&mut program, arguments)?;
    Ok(program)
}

/// Follows a script to its interpreter, until a binary is reached.
fn follow_scripts(program: &mut Program, arguments: &[OsString]) -> Result<(), Failure> {
    let first = program.path.clone();
    let mut arguments = arguments.to_vec();
    for _ in 0..MOST_INTERPRETERS {
        let script = program.binary.clone();
        let interpreter = match head(&script) {
            Head::Script(interpreter) => interpreter,
            Head::Text => {
                program.shell_if_refused = true;
                Interpreter { path: SHELL.into(), argument: None }
            }
            Head::Binary => return Ok(()),
        };
        let described = Path::new(&interpreter.path);
        runnable(described).map_err(|error| {
            let what = format!("{}: its interpreter {}", script.display(), described.display());
            cannot_execute(&what, &error)
        })?;
        program.binary = interpreter.path.clone().into();
        program.shown = interpreter.path.clone();
        if let Some(name) = interpreter.runs_by_env() {
            // env(1) would be executed first, and only env would be profiled. The result is the same without
            // env.
            program.path = search(name)?;
            program.binary = program.path.clone();
            program.shown = program.path.clone().into();
            arguments.insert(0, script.clone().into());
            program.argv = [&[name.to_owned()], &arguments[..]].concat();
        } else {
            let head = std::iter::once(script.clone().into());
            arguments = interpreter.argument.into_iter().chain(head).chain(arguments).collect();
        }
        program.note = Some(format!(
            "{} is a script: the profile is of its interpreter {}",
            first.display(),
            program.binary.display()
        ));
    }
    Ok(())
}

/// A file that a process is about to execute.
pub(crate) struct Executed {
    file: OwnedFd,
    /// The name for people, and for gprof as long as the file has this name.
    pub(crate) name: PathBuf,
}

impl Executed {
    /// Returns the file of an open descriptor.
    pub(crate) fn new(file: OwnedFd) -> Executed {
        let name = fs::read_link(by_descriptor(&file)).unwrap_or_default();
        // The kernel says so if the file has no name any more.
        let name = match name.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
            Some(before) if !name.exists() => PathBuf::from(OsStr::from_bytes(before)),
            _ => name,
        };
        Executed { file, name }
    }

    /// Returns a path by which the injector can open the file whatever its name, as long as this value lives.
    pub(crate) fn path(&self) -> PathBuf {
        by_descriptor(&self.file)
    }
}

fn by_descriptor(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the binary that execve would run for a file that a process has opened, if it would. For a script
/// it is the interpreter's.
pub(crate) fn executed(pid: i32, file: OwnedFd) -> Option<Executed> {
    let mut binary = Executed::new(file);
    for _ in 0..MOST_INTERPRETERS {
        runnable(&binary.path()).ok()?;
        match head(&binary.path()) {
            Head::Script(interpreter) => {
                binary = Executed::new(seen_by(pid, Path::new(&interpreter.path)).ok()?)
            }
            Head::Text => return None,
            Head::Binary => return Some(binary),
        }
    }
    None
}

/// Opens an interpreter by its path in a process, whose root folder and mounts may differ from the
/// injector's.
fn seen_by(pid: i32, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let folder = if path.is_absolute() { "root" } else { "cwd" };
    let open = |name: &Path, flags| rustix::fs::openat(CWD, name, flags, Mode::empty());
    let Ok(folder) = open(&PathBuf::from(format!("/proc/{pid}/{folder}")), flags | OFlags::DIRECTORY) else {
        // The process may not be examined. Most such processes have the same root folder.
        return if path.is_absolute() { Ok(open(path, flags)?) } else { Err(io::ErrorKind::NotFound.into()) };
    };
    let inside = if path.is_absolute() { ResolveFlags::IN_ROOT } else { ResolveFlags::NO_MAGICLINKS };
    Ok(rustix::fs::openat2(folder, path, flags, Mode::empty(), inside)?)
}

/// Finds the file as execvp does.
fn search(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match runnable(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(cannot_execute(&path.display().to_string(), &error)),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut refused = None;
    for folder in folders.as_bytes().split(|&byte| byte == b':').filter(|_| !name.is_empty()) {
        // An empty entry is the current folder.
        let folder = if folder.is_empty() { b"." } else { folder };
        let path = Path::new(OsStr::from_bytes(folder)).join(name);
        match runnable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if absent(&error) => {}
            Err(error) => refused = refused.or(Some((path, error))),
        }
    }
    let shown = name.to_string_lossy();
    match refused {
        Some((path, error)) => Err(cannot_execute(&path.display().to_string(), &error)),
        None => {
            let hint = if Path::new(name).is_file() {
                format!("; there is one in this folder: try ./{shown}")
            } else {
                String::new()
            };
            let error = anyhow!("{shown}: not found in PATH{hint}");
            Err(Failure::exec(libc::ENOENT, error))
        }
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Checks that a file is regular and may be executed.
fn runnable(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    if !metadata.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    sys::executable(path)
}

fn cannot_execute(what: &str, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().unwrap_or(libc::EACCES);
    let hint = match errno {
        libc::EACCES => " (is it executable? chmod +x)",
        libc::EISDIR => " (expected a program)",
        _ => "",
    };
    Failure::exec(errno, anyhow!("{what}: {}{hint}", sys::reason(error)))
}

/// Returns the program's name for `gprof`, which does not search PATH.
fn shown_name(typed: &OsStr, found: &Path) -> OsString {
    if typed.as_bytes().contains(&b'/') { typed.to_owned() } else { found.into() }
}

#[derive(Debug, PartialEq, Eq)]
struct Interpreter {
    path: OsString,
    argument: Option<OsString>,
}

impl Interpreter {
    /// Returns NAME if the script begins with `#!/usr/bin/env NAME` and env has nothing else to do.
    fn runs_by_env(&self) -> Option<&OsStr> {
        let name = self.argument.as_deref()?;
        let plain = !name.as_bytes().starts_with(b"-")
            && !name.as_bytes().iter().any(|byte| matches!(byte, b'=' | b' ' | b'\t'));
        let by_env = Path::new(&self.path).file_name() == Some(OsStr::new("env"));
        (by_env && plain).then_some(name)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Head {
    Script(Interpreter),
    /// Neither ELF nor `#!`: for /bin/sh, unless the kernel knows a loader for it.
    Text,
    /// ELF, unreadable, or nothing that a shell would accept as text.
    Binary,
}

fn head(path: &Path) -> Head {
    let mut bytes = Vec::new();
    let read = sys::open_regular(path).and_then(|file| file.take(SCRIPT_HEAD).read_to_end(&mut bytes));
    if read.is_err() { Head::Binary } else { parse_head(&bytes) }
}

/// Parses the first line as Linux's binfmt_script does: one interpreter, and the rest of the line as one
/// argument.
fn parse_head(bytes: &[u8]) -> Head {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!") else {
        let binary = bytes.starts_with(b"\x7fELF") || line.contains(&0);
        return if binary { Head::Binary } else { Head::Text };
    };
    let line = trim(line.split(|&byte| byte == 0).next().unwrap_or_default());
    let end = line.iter().position(|&byte| blank(byte)).unwrap_or(line.len());
    let (path, argument) = line.split_at(end);
    if path.is_empty() {
        return Head::Binary;
    }
    let argument = trim(argument);
    Head::Script(Interpreter {
        path: OsString::from_vec(path.to_vec()),
        argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
    })
}

fn blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && blank(*last)
    {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(path: &str, argument: Option<&str>) -> Head {
        Head::Script(Interpreter { path: path.into(), argument: argument.map(Into::into) })
    }

    #[test]
    fn script_lines_are_read_as_the_kernel_does() {
        assert_eq!(parse_head(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(parse_head(b"#! /bin/sh -e  \n"), script("/bin/sh", Some("-e")));
        assert_eq!(parse_head(b"#!/usr/bin/awk -f x y\n"), script("/usr/bin/awk", Some("-f x y")));
        assert_eq!(parse_head(b"#!/bin/sh"), script("/bin/sh", None));
        assert_eq!(parse_head(b"#!\n"), Head::Binary);
        assert_eq!(parse_head(b"echo hi\n"), Head::Text);
        assert_eq!(parse_head(b""), Head::Text);
        assert_eq!(parse_head(b"\x7fELF\x02"), Head::Binary);
        assert_eq!(parse_head(b"MZ\0\0"), Head::Binary);
    }

    #[test]
    fn env_is_stepped_over_only_when_it_does_nothing_else() {
        let name = |head: &[u8]| match parse_head(head) {
            Head::Script(interpreter) => interpreter.runs_by_env().map(OsStr::to_owned),
            _ => None,
        };
        assert_eq!(name(b"#!/usr/bin/env python3\n"), Some("python3".into()));
        assert_eq!(name(b"#!/usr/bin/env -S python3 -u\n"), None);
        assert_eq!(name(b"#!/usr/bin/env A=b python3\n"), None);
        assert_eq!(name(b"#!/usr/bin/env\n"), None);
        assert_eq!(name(b"#!/bin/python3 x\n"), None);
    }

    #[test]
    fn missing_and_forbidden_have_their_own_status() {
        let status = |name: &str| find(&[name.into()]).map(drop).expect_err("an error").status;
        assert_eq!(status("/nonexistent/x"), 127);
        assert_eq!(status("no-such-program-anywhere"), 127);
        assert_eq!(status(""), 127);
        assert_eq!(status("/etc"), 126);
        assert_eq!(status("/etc/passwd"), 126);
        assert_eq!(status("/etc/passwd/x"), 126);
    }

    #[test]
    fn arguments_stay_with_a_program_from_the_path() {
        let program = find(&["ls".into(), "-l".into()]).expect("ls");
        assert_eq!(program.argv, ["ls", "-l"]);
        assert!(program.path.is_absolute() && program.path == program.binary);
        assert!(program.note.is_none());
    }
}
