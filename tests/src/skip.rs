//! Tests that cannot run here say so where nobody can miss it.

use std::io::Write;
use std::path::PathBuf;

/// Where skips are collected, so that a CI run can print them at its end: `$GPROFINJECT_SKIPPED`, or
/// `skipped.txt` in the build folder.
pub fn summary_file() -> PathBuf {
    match std::env::var_os("GPROFINJECT_SKIPPED") {
        Some(path) => path.into(),
        None => crate::tool::target_folder().join("skipped.txt"),
    }
}

/// Notes that `test` does not run, and why.
pub fn skipped(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    // Past the test harness, which keeps what a passing test prints to itself.
    let terminal = std::fs::OpenOptions::new().append(true).open("/proc/self/fd/2");
    if let Ok(mut stderr) = terminal {
        let _ = stderr.write_all(line.as_bytes());
    }
    let summary = std::fs::OpenOptions::new().create(true).append(true).open(summary_file());
    if let Ok(mut summary) = summary {
        let _ = summary.write_all(line.as_bytes());
    }
}

/// Whether a command of that name can be started.
pub fn have(tool: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}
