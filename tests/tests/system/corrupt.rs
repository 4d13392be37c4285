//! Damaged program files cause an error or a run, never a panic or a hang.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::{build, compile, directives::Test, flags, generate, run, tool};

gprofinject_tests::trials! {
    together:
        truncated,
        corrupted;
}

/// The time after which a run is killed. It is enough for gprofinject; a damaged program may run without end.
const LIMIT: Duration = Duration::from_secs(10);

fn sound_program() -> Vec<u8> {
    let test = Test::read(&tool::folder().join("programs/direct.c")).unwrap();
    let path = build::build(&test, flags::flag_set("O2")).unwrap();
    fs::read(path).unwrap()
}

/// Plans for `data` and, if asked, runs it. Returns what gprofinject did wrong.
fn judge(folder: &Path, data: &[u8], run_it: bool) -> Option<String> {
    let path = folder.join("damaged");
    let _ = fs::remove_file(&path);
    compile::write_program(&path, data).unwrap();
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.current_dir(folder);
    if !run_it {
        command.arg("--list");
    }
    command.arg(&path);
    let outcome = run::run(command, None, LIMIT).unwrap();
    let said = outcome.stderr_text();
    let panicked = said.contains("panicked") || said.contains("RUST_BACKTRACE");
    if panicked || outcome.code() == 101 {
        return Some(format!("panics: {said}"));
    }
    if !run_it && outcome.timed_out {
        return Some("hangs".into());
    }
    if !run_it && outcome.code() > 128 {
        return Some(format!("dies by a signal: {}", outcome.code()));
    }
    // A damaged program may hang by itself; then it must hang without gprofinject, too.
    if run_it && outcome.timed_out && !run::run(Command::new(&path), None, LIMIT).is_ok_and(|o| o.timed_out) {
        return Some("hangs where the program alone ends".into());
    }
    None
}

fn truncated() {
    let folder = tempfile::tempdir().unwrap();
    let data = sound_program();
    let mut lengths: Vec<usize> = (0..64).chain((64..data.len()).step_by(data.len() / 150)).collect();
    lengths.push(data.len() - 1);
    let mut failures = Vec::new();
    for (i, length) in lengths.into_iter().enumerate() {
        if let Some(failure) = judge(folder.path(), &data[..length], i % 8 == 0) {
            failures.push(format!("at {length} bytes: {failure}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn corrupted() {
    let folder = tempfile::tempdir().unwrap();
    let data = sound_program();
    let mut failures = Vec::new();
    for seed in 0..400 {
        let mut random = generate::random_numbers(seed);
        let mut damaged = data.clone();
        // Changes are mostly in headers and tables, where readers make mistakes.
        for _ in 0..1 + random() % 8 {
            let at = match random() % 6 {
                0 | 1 => random() as usize % 0x400,
                2 => random() as usize % 0x1000,
                3 => data.len() - 1 - random() as usize % 0x800,
                _ => random() as usize % data.len(),
            };
            damaged[at] = match random() % 4 {
                0 => 0xff,
                1 => 0,
                _ => random() as u8,
            };
        }
        // The code itself may be damaged, so most files are only planned, and few are run.
        if let Some(failure) = judge(folder.path(), &damaged, seed % 10 == 0) {
            failures.push(format!("seed {seed}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
