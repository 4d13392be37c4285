//! Compiles the small programs, each in the ways that compilers lay out code differently.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::directives::Test;
use crate::skip;
use crate::{run, tool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    Gnu,
    Clang,
}

/// One way of compiling.
#[derive(Debug)]
pub struct FlagSet {
    pub name: &'static str,
    pub compiler: Compiler,
    pub flags: &'static [&'static str],
    /// The same for rustc, where there is such a thing.
    pub rust: Option<&'static [&'static str]>,
    /// A linker that may be missing.
    pub needs: Option<&'static str>,
}

const fn gnu(name: &'static str, flags: &'static [&'static str]) -> FlagSet {
    FlagSet { name, compiler: Compiler::Gnu, flags, rust: None, needs: None }
}

const fn clang(name: &'static str, flags: &'static [&'static str]) -> FlagSet {
    FlagSet { compiler: Compiler::Clang, needs: Some("clang"), ..gnu(name, flags) }
}

pub const FLAG_SETS: &[FlagSet] = &[
    FlagSet { rust: Some(&["-Copt-level=0"]), ..gnu("O0", &["-O0"]) },
    FlagSet { rust: Some(&["-Copt-level=2"]), ..gnu("O2", &["-O2"]) },
    FlagSet { rust: Some(&["-Copt-level=3"]), ..gnu("O3-noplt", &["-O3", "-fno-plt"]) },
    FlagSet { rust: Some(&["-Copt-level=s"]), ..gnu("Os-cf", &["-Os", "-fcf-protection"]) },
    FlagSet {
        rust: Some(&["-Copt-level=2", "-Crelocation-model=static"]),
        ..gnu("O2-nopie", &["-O2", "-fno-pie", "-no-pie"])
    },
    FlagSet { rust: Some(&["-Copt-level=2", "-Clto=fat"]), ..gnu("O2-lto", &["-O2", "-flto"]) },
    gnu("O2-gc", &["-O2", "-ffunction-sections", "-Wl,--gc-sections"]),
    FlagSet {
        needs: Some("ld.gold"),
        ..gnu("O2-icf", &["-O2", "-ffunction-sections", "-fuse-ld=gold", "-Wl,--icf=all"])
    },
    clang("clang-O2", &["-O2"]),
];

/// Built for profiling. Alone, some programs do not do what they say: glibc's counters are in their way.
pub const PROFILING_SETS: &[FlagSet] = &[
    gnu("O0-pg-nopie", &["-O0", "-pg", "-fno-pie", "-no-pie"]),
    gnu("O2-pg", &["-O2", "-pg"]),
    gnu("O3-fentry-cf", &["-O3", "-pg", "-mfentry", "-fcf-protection"]),
    gnu("O2-fentry-nopie", &["-O2", "-pg", "-mfentry", "-mrecord-mcount", "-fno-pie", "-no-pie"]),
    gnu("O2-nop-mcount", &["-O2", "-pg", "-mfentry", "-mnop-mcount", "-fno-pie", "-no-pie"]),
    gnu("O2-patchable", &["-O2", "-fpatchable-function-entry=16,6"]),
    gnu("Os-patchable-short", &["-Os", "-fpatchable-function-entry=3,1"]),
    gnu("O2-instrument", &["-O2", "-finstrument-functions"]),
    clang("clang-O2-pg", &["-O2", "-pg"]),
    clang("clang-O1-instrument", &["-O1", "-finstrument-functions"]),
];

pub fn flag_set(name: &str) -> &'static FlagSet {
    FLAG_SETS
        .iter()
        .chain(PROFILING_SETS)
        .find(|set| set.name == name)
        .unwrap_or_else(|| panic!("no flag set {name}"))
}

/// Why `test` is not for these flags, if it isn't.
pub enum Applies {
    Yes,
    /// The test says so itself.
    No,
    /// It would, but something is missing on this machine.
    Missing(String),
}

pub fn applies(test: &Test, set: &FlagSet) -> Applies {
    if test.only.is_some_and(|only| only != set.compiler) || test.not.iter().any(|n| n == set.name) {
        return Applies::No;
    }
    let extension = extension(&test.source);
    if extension == "rs" && set.rust.is_none() || extension == "f90" && set.compiler == Compiler::Clang {
        return Applies::No;
    }
    let missing = test.needs.iter().map(String::as_str).chain(set.needs).chain([compiler(&extension, set)]);
    match missing.into_iter().find(|tool| !skip::have(tool)) {
        Some(tool) => Applies::Missing(format!("no {tool}")),
        None => Applies::Yes,
    }
}

/// Compiles `test` into `folder` and says where the program is.
pub fn build(test: &Test, set: &FlagSet, folder: &Path) -> Result<PathBuf> {
    let program = folder.join(test.name.replace('.', "-"));
    let extension = extension(&test.source);
    let mut command = Command::new(compiler(&extension, set));
    if extension == "rs" {
        command.args(["--edition=2024", "-Awarnings"]).args(set.rust.unwrap_or_default());
        command.arg("--out-dir").arg(folder).arg("-o").arg(&program).arg(&test.source);
    } else {
        command.args(set.flags).args(["-w", "-pthread"]).arg("-I").arg(tool::folder().join("programs"));
        command.arg("-o").arg(&program).arg(&test.source);
    }
    command.args(&test.flags);
    compile(command)?;
    show_all(&program)?;
    Ok(program)
}

/// Makes names global that gprof leaves out while they are local. The profile has no records of such functions, and
/// those who call this want to see all. gprof drops even a local name that ends with a number, such as
/// `f.constprop.0`, if the string behind it in the string table is one that it would drop. Cold parts stay what they are.
pub fn show_all(program: &Path) -> Result<()> {
    const HIDDEN: [&str; 11] = [
        "!*.cold*",
        "*.isra.*[0-9]",
        "*.part.*[0-9]",
        "*.lto_priv.*[0-9]",
        "*.llvm.*[0-9]",
        "*.constprop.*[0-9]",
        "*.clone.*[0-9]",
        "*.[0-9]*",
        "*_omp_fn*",
        "_GLOBAL__*",
        "*$*",
    ];
    let mut command = Command::new("objcopy");
    command.arg("-w").args(HIDDEN.map(|pattern| format!("--globalize-symbol={pattern}"))).arg(program);
    compile(command)
}

/// Runs a compiler; what it says comes with the error.
pub fn compile(command: Command) -> Result<()> {
    let line = format!("{command:?}");
    let outcome = run::run(command, None, Duration::from_secs(600))?;
    if !outcome.status.success() {
        bail!("{line}\n{}", outcome.stderr_text());
    }
    Ok(())
}

fn extension(source: &Path) -> String {
    source.extension().unwrap_or_default().to_string_lossy().into_owned()
}

fn compiler(extension: &str, set: &FlagSet) -> &'static str {
    match (extension, set.compiler) {
        ("rs", _) => "rustc",
        ("f90", _) => "gfortran",
        ("cc", Compiler::Gnu) => "g++",
        ("cc", Compiler::Clang) => "clang++",
        (_, Compiler::Gnu) => "gcc",
        (_, Compiler::Clang) => "clang",
    }
}
