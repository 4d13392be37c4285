//! How the tests of all crates report that they cannot run on this machine.
//!
//! A test that lacks a tool, a privilege or a feature of the kernel calls [`skipped`] and returns. That
//! prints a line, bypassing the test harness, and adds it to a file, so that a run can list all skips at its
//! end. With `GPROFINJECT_REQUIRE=1`, which CI sets, a skip makes the test fail, unless `tests/skips.txt`
//! lists it with a reason.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The skips that `GPROFINJECT_REQUIRE=1` allows, with a reason for each.
const ALLOWED: &str = include_str!("../../skips.txt");

/// Returns Cargo's build folder, which contains the running program, or `None` if the program is in no such
/// folder.
pub fn target_folder() -> Option<PathBuf> {
    let running = std::env::current_exe().ok()?;
    running.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Path::to_path_buf)
}

/// Returns the file that lists the skips: `$GPROFINJECT_SKIPPED`, or `skipped.txt` in the build folder.
pub fn summary_file() -> Option<PathBuf> {
    match std::env::var_os("GPROFINJECT_SKIPPED") {
        Some(path) => Some(path.into()),
        None => target_folder().map(|folder| folder.join("skipped.txt")),
    }
}

/// Reports that `test`, or the part of a test with this name, does not run, and why.
///
/// # Panics
/// If `GPROFINJECT_REQUIRE=1` is set and `tests/skips.txt` does not allow the skip.
pub fn skipped(test: &str, reason: &str) {
    let what = format!("{test}: {}", reason.replace('\n', " "));
    let line = format!("SKIPPED: {what}\n");
    // A test harness does not show what a passing test prints, but it does not capture what is written to the
    // descriptor.
    for path in [Some("/proc/self/fd/2".into()), summary_file()].into_iter().flatten() {
        let file: Result<std::fs::File, _> =
            OpenOptions::new().create(true).append(true).open::<PathBuf>(path);
        if let Ok(mut file) = file {
            let _ = file.write_all(line.as_bytes());
        }
    }
    if is_required() && !allowed(ALLOWED, &what) {
        panic!("skipped, with GPROFINJECT_REQUIRE=1 and without a line in tests/skips.txt: {what}");
    }
}

/// Returns the file that a command of that name starts, found by `$PATH`, or `None` if there is no such
/// command.
pub fn path_of(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file())
}

/// Whether a command of that name can be started.
pub fn have(tool: &str) -> bool {
    path_of(tool).is_some()
}

/// Whether all of these commands can be started. If not, the test is reported as [`skipped`].
pub fn have_for(test: &str, tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| !have(tool));
    if let Some(tool) = missing {
        skipped(test, &format!("no {tool}"));
    }
    missing.is_none()
}

/// Whether this machine has a compiler that makes an executable file of an empty program in its language with
/// `flags`. If not, the test is reported as [`skipped`].
///
/// Some flags need a library, a plugin or a linker that is not part of every compiler: `-static`, `-m32`,
/// `-flto`. The empty program distinguishes a machine that lacks it from a test program that does not
/// compile, which is a failure of the test.
pub fn can_compile_for(test: &str, compiler: &str, flags: &[&str]) -> bool {
    if !have_for(test, &[compiler]) {
        return false;
    }
    let complaint = complaint(compiler, flags);
    if let Some(complaint) = &complaint {
        let what = format!("{compiler} {} does not compile an empty program", flags.join(" "));
        skipped(test, &format!("{what}: {}", complaint.trim_end()));
    }
    complaint.is_none()
}

/// Returns the compiler's message about an empty program with these flags, or `None` if it compiles.
fn complaint(compiler: &str, flags: &[&str]) -> Option<String> {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => panic!("no temporary folder: {error}"),
    };
    let source = folder.path().join(if compiler.ends_with("++") { "empty.cc" } else { "empty.c" });
    // The header of a 32-bit C library may be missing as well as the library.
    if let Err(error) = std::fs::write(&source, "#include <stdio.h>\nint main(void) { return 0; }\n") {
        panic!("{}: {error}", source.display());
    }
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(folder.path().join("empty")).arg(&source);
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether a skip is a failure.
pub fn is_required() -> bool {
    std::env::var_os("GPROFINJECT_REQUIRE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Whether a line of the list matches `what`. `*` matches any text; empty lines and comments match nothing.
fn allowed(list: &str, what: &str) -> bool {
    let patterns = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    patterns.into_iter().any(|pattern| matches(pattern, what))
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_allowed() {
        let list = "# a reason\n\nghc: no ghc\n* by Frida: no Frida*\n";
        for what in
            ["ghc: no ghc", "lua by Frida: no Frida: FRIDA_GUM_DEVKIT names no devkit", " by Frida: no Frida"]
        {
            assert!(allowed(list, what), "{what}");
        }
        for what in ["", "# a reason", "ghc: no ghc2", "node: no node", "lua by Frida: other"] {
            assert!(!allowed(list, what), "{what}");
        }
    }

    #[test]
    fn flags_are_tried_with_an_empty_program() {
        for (compiler, flags) in [("gcc", &[][..]), ("gcc", &["-O2", "-g"]), ("g++", &["-O1"])] {
            assert_eq!(complaint(compiler, flags), None, "{compiler} {flags:?}");
        }
        let complaint = complaint("gcc", &["-fno-such-flag-at-all"]);
        assert!(complaint.is_some_and(|said| said.contains("-fno-such-flag-at-all")));
    }

    #[test]
    fn every_allowed_skip_has_a_reason() {
        let mut explained = false;
        for line in ALLOWED.lines().map(str::trim) {
            explained = line.starts_with('#') || explained && !line.is_empty();
            assert!(line.is_empty() || explained, "no comment above: {line}");
        }
    }
}
