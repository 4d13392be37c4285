//! Runs a program under callgrind and reads the calls that callgrind has counted.
//!
//! With `--dump-instr=yes` callgrind writes the address of each call site and of each callee. Both are
//! link-time addresses of their objects: callgrind itself subtracts the load bias of position-independent
//! programs and of libraries. An object that it cannot identify is called `???`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::compile;
use crate::run::{self, Outcome};

/// A function as callgrind sees it: an object file (an index into [`Profile::objects`]) and a name. The name
/// serves only to distinguish functions of libraries; the program's functions are identified by their
/// addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    pub object: usize,
    pub name: String,
}

/// The calls from one place to one function.
#[derive(Debug, Clone)]
pub struct Call {
    pub caller: Node,
    /// The instruction that called, jumped, or ran on into the callee.
    pub site: u64,
    pub callee: Node,
    pub target: u64,
    pub count: u64,
    /// The instructions that the calls executed, with those of everything called.
    pub inclusive: u64,
}

/// The jumps from one instruction to another one of the same object.
#[derive(Debug, Clone)]
pub struct Jump {
    pub from: Node,
    pub site: u64,
    pub target: u64,
    pub count: u64,
}

/// Everything that callgrind has counted in one run.
#[derive(Debug)]
pub struct Profile {
    pub objects: Vec<String>,
    pub calls: Vec<Call>,
    /// The jumps that callgrind does not take for calls; only [`run_whole`] has them.
    pub jumps: Vec<Jump>,
    /// How often each instruction was executed, by object and address.
    pub instructions: HashMap<(usize, u64), u64>,
    /// The instructions that each function itself executed, with those of PLT stubs that it called, unless they count as their own.
    pub own: HashMap<Node, u64>,
}

impl Profile {
    /// Returns the index of the object file `path`.
    pub fn object(&self, path: &Path) -> Option<usize> {
        let path = path.canonicalize().ok()?;
        self.objects.iter().position(|o| Path::new(o) == path)
    }
}

/// Runs `program` under callgrind. Returns the counts and the program's output.
///
/// The functions of libraries must be bound at the start. Otherwise callgrind shows each first call as one
/// from the dynamic linker's resolver.
///
/// If the program was built for glibc's profiler, that is kept from starting, because its signals would end
/// the program.
///
/// # Errors
/// callgrind cannot be run, or its output cannot be parsed.
pub fn run(program: &Path, args: &[String], stdin: Option<&Path>) -> Result<(Profile, Outcome)> {
    run_with(&[], program, args, stdin)
}

/// Runs `program` as [`run()`] does, but counts the instructions of PLT stubs as their own, not as their
/// callers'.
///
/// # Errors
/// As for [`run()`].
pub fn run_instructions(program: &Path, args: &[String], stdin: Option<&Path>) -> Result<(Profile, Outcome)> {
    run_with(&["--skip-plt=no"], program, args, stdin)
}

/// Runs `program` as [`run()`] does, with changes to its environment, and also records jumps: in code without symbols,
/// callgrind does not take a jump to another function for a call. Libraries are at other addresses in another `place`.
///
/// Mappings begin at 4 GiB, not at valgrind's 64 MiB, because programs use addresses as numbers: CPython compares the
/// thread's identifier, which is an address, by another function if it has more than 30 bits, as it has without valgrind.
///
/// # Errors
/// As for [`run()`].
pub fn run_whole(
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
    variables: &[(String, String)],
    place: usize,
) -> Result<(Profile, Outcome)> {
    let lowest = format!("--aspace-minaddr={:#x}", 0x1_0000_0000_u64 + 0x101_1000 * place as u64);
    run_in(variables, &["--collect-jumps=yes", &lowest], program, args, stdin)
}

fn run_with(
    options: &[&str],
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
) -> Result<(Profile, Outcome)> {
    run_in(&[], options, program, args, stdin)
}

fn run_in(
    variables: &[(String, String)],
    options: &[&str],
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
) -> Result<(Profile, Outcome)> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let mut file_option = std::ffi::OsString::from("--callgrind-out-file=");
    file_option.push(&out);
    let mut command = valgrind();
    command
        .args(["--tool=callgrind", "--dump-instr=yes", "--dump-line=no", "--compress-strings=no"])
        .args(["--compress-pos=no", "--separate-threads=no", "--separate-recs=1", "--demangle=no", "-q"])
        .args(options)
        .arg(file_option)
        .arg(program)
        .args(args)
        .env("LD_BIND_NOW", "1")
        .envs(variables.iter().map(|(name, value)| (name, value)));
    if std::fs::read(program)?.windows(PROFILER.len()).any(|name| name == PROFILER) {
        command.env("LD_PRELOAD", without_profiler(folder.path())?);
    }
    let outcome = run::run(command, stdin, Duration::from_secs(900))?;
    let text = std::fs::read_to_string(&out)
        .with_context(|| format!("callgrind left no profile: {}", outcome.stderr_text()))?;
    let profile = parse(&text).context("callgrind's profile")?;
    Ok((profile, outcome))
}

/// A name that every program built with -pg imports.
const PROFILER: &[u8] = b"\0__monstartup\0";

/// Compiles a library with counters that do nothing.
fn without_profiler(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("quiet.s"), folder.join("quiet.so"));
    let names = ["mcount", "_mcount", "__fentry__", "__monstartup", "_mcleanup"];
    let labels: String = names.iter().map(|n| format!(".globl {n}\n.type {n}, @function\n{n}:\n")).collect();
    std::fs::write(&source, format!("{labels}ret\n.section .note.GNU-stack,\"\",@progbits\n"))?;
    let mut gcc = std::process::Command::new("gcc");
    gcc.args(["-shared", "-nostdlib", "-o"]).arg(&library).arg(&source);
    compile::compile(gcc)?;
    Ok(library)
}

/// Returns the command `valgrind`. Debian's is a shell script, which changes the order of the environment and searches other
/// folders for libraries, before it executes the program of this name.
pub fn valgrind() -> std::process::Command {
    const BEHIND_SCRIPT: &str = "/usr/bin/valgrind.bin";
    let is_script = Path::new(BEHIND_SCRIPT).exists();
    std::process::Command::new(if is_script { BEHIND_SCRIPT } else { "valgrind" })
}

/// Whether valgrind is installed.
pub fn available() -> bool {
    valgrind().arg("--version").output().is_ok_and(|o| o.status.success())
}

fn parse(text: &str) -> Result<Profile> {
    let mut objects: Vec<String> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut object_index = |name: &str| {
        *index.entry(name.to_string()).or_insert_with(|| {
            objects.push(name.to_string());
            objects.len() - 1
        })
    };
    let mut calls = Vec::new();
    let mut jumps = Vec::new();
    let mut pending_jump: Option<(u64, u64)> = None; // count, target of a jump= or jcnd= line
    let mut instructions: HashMap<(usize, u64), u64> = HashMap::new();
    let mut own: HashMap<Node, u64> = HashMap::new();
    let mut caller = Node { object: object_index("???"), name: String::new() };
    let mut callee_object = None;
    let mut callee_name = String::new();
    let mut pending: Option<(u64, u64)> = None; // count, target of a calls= line: its site comes next

    for (number, line) in text.lines().enumerate() {
        let at = || format!("line {}: {line}", number + 1);
        if let Some((count, target)) = pending.take() {
            let (site, cost) = line.split_once(' ').with_context(at)?;
            let (site, inclusive) = (address(site).with_context(at)?, cost.trim().parse().with_context(at)?);
            let callee =
                Node { object: callee_object.take().unwrap_or(caller.object), name: callee_name.clone() };
            calls.push(Call { caller: caller.clone(), site, callee, target, count, inclusive });
        } else if let Some((count, target)) = pending_jump.take() {
            let site = address(line.split_whitespace().next().unwrap_or_default()).with_context(at)?;
            jumps.push(Jump { from: caller.clone(), site, target, count });
        } else if let Some(rest) = line.strip_prefix("jump=").or_else(|| line.strip_prefix("jcnd=")) {
            // `jump=COUNT TARGET`, `jcnd=TAKEN/EXECUTED TARGET`
            let (count, target) = rest.trim().split_once(' ').with_context(at)?;
            let taken = count.split('/').next().unwrap_or(count);
            pending_jump = Some((taken.parse().with_context(at)?, address(target).with_context(at)?));
        } else if let Some(name) = line.strip_prefix("ob=") {
            caller.object = object_index(name);
        } else if let Some(name) = line.strip_prefix("fn=") {
            caller.name = without_recursion(name).to_string();
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee_object = Some(object_index(name));
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee_name = without_recursion(name).to_string();
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let mut parts = rest.split_whitespace();
            let (Some(count), Some(target)) = (parts.next(), parts.next()) else {
                bail!("{}: expected a count and an address", at());
            };
            pending = Some((count.parse().with_context(at)?, address(target).with_context(at)?));
        } else if line.starts_with("0x") {
            let (place, count) = line.split_once(' ').with_context(at)?;
            let key = (caller.object, address(place).with_context(at)?);
            let count = count.trim().parse::<u64>().with_context(at)?;
            *instructions.entry(key).or_default() += count;
            *own.entry(caller.clone()).or_default() += count;
        }
    }
    ensure!(pending.is_none(), "cut off behind a calls= line");
    ensure!(pending_jump.is_none(), "cut off behind a jump");
    Ok(Profile { objects, calls, jumps, instructions, own })
}

fn address(text: &str) -> Result<u64> {
    let digits = text.strip_prefix("0x").context("expected an address, 0x...")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

/// Returns the name of the function: `f'2` is `f` when it is called by itself.
fn without_recursion(name: &str) -> &str {
    match name.rsplit_once('\'') {
        Some((function, level)) if !level.is_empty() && level.bytes().all(|b| b.is_ascii_digit()) => function,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_calls_within_and_between_objects() {
        let text = "positions: instr\nevents: Ir\n\nob=/p\nfl=a.c\nfn=main\n0x10 1\n\
                    cfn=f'2\ncalls=3 0x20 \n0x14 30\n0x19 1\n\
                    cob=/lib\ncfi=q.c\ncfn=qsort\ncalls=1 0x900 \n0x1e 70\n\
                    \nob=/lib\nfn=qsort\ncob=/p\ncfn=cmp\ncalls=9 0x30 \n0x910 9\n";
        let profile = parse(text).expect("a good profile");
        let seen: Vec<_> = profile
            .calls
            .iter()
            .map(|c| {
                let object = |n: &Node| profile.objects[n.object].clone();
                (object(&c.caller), c.caller.name.clone(), c.site, object(&c.callee), c.target, c.count)
            })
            .collect();
        let main = |site, object: &str, target, count| {
            ("/p".to_string(), "main".to_string(), site, object.to_string(), target, count)
        };
        assert_eq!(seen[0], main(0x14, "/p", 0x20, 3));
        assert_eq!(seen[1], main(0x1e, "/lib", 0x900, 1));
        assert_eq!(seen[2], ("/lib".into(), "qsort".into(), 0x910, "/p".into(), 0x30, 9));
        assert_eq!(profile.calls[0].callee.name, "f");
        assert_eq!(profile.calls[0].inclusive, 30);
        assert_eq!(profile.own[&Node { object: 1, name: "main".into() }], 2);
    }

    #[test]
    fn reads_jumps() {
        let text = "ob=/p\nfl=a.c\nfn=f\n0x10 5\njcnd=3/5 0x20 \n0x10 \n0x12 2\njfn=g\njump=2 0x30 \n0x12 \n0x20 3\n";
        let profile = parse(text).expect("a good profile");
        let seen: Vec<_> = profile.jumps.iter().map(|j| (j.site, j.target, j.count)).collect();
        assert_eq!(seen, [(0x10, 0x20, 3), (0x12, 0x30, 2)]);
        assert_eq!(profile.instructions[&(1, 0x20)], 3);
    }

    #[test]
    fn a_lifetime_is_no_recursion() {
        assert_eq!(without_recursion("f::<'a>"), "f::<'a>");
        assert_eq!(without_recursion("f'12"), "f");
    }
}
