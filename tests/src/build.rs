//! Compiles the small programs in `programs/`, each with the flag sets in [`crate::flags`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::compile;
use crate::directives::Test;
use crate::flags::{Compiler, FlagSet};
use crate::tool;
use gprofinject_skip as skip;

/// Whether a test applies to a flag set.
pub enum Applies {
    Yes,
    /// The test itself excludes the flag set.
    No,
    /// It applies, but something is missing on this machine.
    Missing(String),
}

/// Returns whether a test applies to a flag set.
pub fn applies(test: &Test, set: &FlagSet) -> Applies {
    // A test that cannot be linked with musl says `not: musl`, which holds for static and dynamic programs.
    let is_excluded = |name: &String| name == set.name || set.compiler == Compiler::Musl && name == "musl";
    if test.only.is_some_and(|only| only != set.compiler) || test.not.iter().any(is_excluded) {
        return Applies::No;
    }
    let extension = extension(&test.source);
    if extension == "rs" && set.rust.is_none() || extension == "f90" && set.compiler == Compiler::Clang {
        return Applies::No;
    }
    if extension != "c" && set.compiler == Compiler::Musl {
        return Applies::No;
    }
    let missing = test.needs.iter().map(String::as_str).chain(set.needs).chain([compiler(&extension, set)]);
    match missing.into_iter().find(|tool| !skip::have(tool)) {
        Some(tool) => Applies::Missing(format!("no {tool}")),
        None => Applies::Yes,
    }
}

/// Compiles `test` and returns the path of the program. Other tests share the program, so nothing may write
/// to it, and each test runs it in a folder of its own.
///
/// # Errors
/// The compiler fails. The error is its output.
pub fn build(test: &Test, set: &FlagSet) -> Result<PathBuf> {
    let extension = extension(&test.source);
    let mut command = Command::new(compiler(&extension, set));
    if extension == "rs" {
        command.args(["--edition=2024", "-Awarnings"]).args(set.rust.unwrap_or_default());
    } else {
        command.args(set.flags).args(["-w", "-pthread"]).arg("-I").arg(tool::folder().join("programs"));
    }
    command.arg(&test.source).args(&test.flags);
    let name = test.name.replace('.', "-");
    compile::shared(command, OsStr::new(&name), "all names shown", show_all)
}

/// Makes names global that gprof leaves out while they are local. The profile has no records of such
/// functions, and callers of this function want to see all of them. gprof drops even a local name that ends
/// with a number, such as `f.constprop.0`, if it would drop the next string in the string table. Cold parts
/// are not changed.
///
/// # Errors
/// objcopy fails, or the program cannot be read.
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
    compile::compile(command)
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
        (_, Compiler::Musl) => "musl-gcc",
    }
}
