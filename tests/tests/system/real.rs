//! lua, sqlite's speedtest1 and bzip2: every arc is callgrind's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_skip as skip;
use gprofinject_tests::{build, callgrind, check, compile, generate, gprofdata, normalise, run};

gprofinject_tests::trials! {
    together:
        lua,
        speedtest1,
        bzip2,
        bunzip2;
}

fn lua() {
    let script = tool::folder().join("data/bench.lua");
    compare("lua", |_| vec![script.display().to_string(), "3".into()], None);
}

fn speedtest1() {
    // The database is in memory, so that the work is the same each time.
    compare("speedtest1", |_| ["--size", "2", ":memory:"].map(String::from).to_vec(), None);
}

fn bzip2() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, generate::compressible(300_000)).unwrap();
    compare("bzip2", |_| vec!["-c".into()], Some(&data));
}

fn bunzip2() {
    let Some(packer) = program("bzip2", "O2") else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, generate::compressible(300_000)).unwrap();
    let mut command = Command::new(packer);
    command.arg("-c");
    let packed = run::run(command, Some(&data), Duration::from_secs(60)).unwrap();
    let data = folder.path().join("data.bz2");
    std::fs::write(&data, &packed.stdout).unwrap();
    compare("bzip2", |_| vec!["-dc".into()], Some(&data));
}

fn program(name: &str, kind: &str) -> Option<PathBuf> {
    match tool::corpus() {
        Ok(corpus) => Some(corpus.join(format!("{name}-{kind}"))),
        Err(error) => {
            skip::skipped(&format!("{name}-{kind}"), &format!("no corpus: {error:#}"));
            None
        }
    }
}

fn compare(name: &str, args: impl Fn(&Path) -> Vec<String>, stdin: Option<&Path>) {
    if !callgrind::available() {
        return skip::skipped(name, "no valgrind");
    }
    let mut failures = Vec::new();
    for kind in ["O2", "Os", "pg"] {
        let Some(built) = program(name, kind) else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(built.file_name().unwrap());
        compile::copy(&built, &path).unwrap();
        build::show_all(&path).unwrap();
        let args = args(folder.path());
        let elf = Program::read(&path).unwrap();
        let (counted, theirs) = callgrind::run(&path, &args, stdin).unwrap();
        assert_eq!(theirs.code(), 0, "{}", theirs.stderr_text());
        let object = counted.object(&path).unwrap();
        for (engine, hooks) in cases(name) {
            let expected = normalise::normalise(&counted, object, &elf, hooks).unwrap();
            let left_alone = tool::left_alone(engine, hooks, &path, &elf).unwrap();
            let expected = expected.with_hooks_but_in(&left_alone, hooks);
            let gmon = folder.path().join("gmon.out");
            let _ = std::fs::remove_file(&gmon);
            let stats = folder.path().join("stats.json");
            let stats_option = stats.display().to_string();
            let options = ["-q", hooks.option(), "--stats", &stats_option];
            let command = tool::command_by(engine, &options, &gmon, &path, &args).unwrap();
            let ours = run::run(command, stdin, Duration::from_secs(300)).unwrap();
            assert_eq!(ours.code(), 0, "{}", ours.stderr_text());
            let report = check::compare(&expected, &gprofdata::read(&gmon).unwrap(), &elf).unwrap();
            // The number of compared arcs is a part of the result.
            println!("{name}-{kind} {engine:?} {hooks:?}: {report}");
            if !report.is_equal() {
                failures.push(format!("{name}-{kind} {engine:?} {hooks:?}:\n{report}"));
            }
            if let Some(refused) = not_hooked(&stats) {
                println!("{name}-{kind} {engine:?} {hooks:?}: {refused}");
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns both engines, if there is a command with Frida: with and without the functions that gum does not
/// patch.
fn cases(name: &str) -> Vec<(Engine, Hooks)> {
    let mut engines = vec![Engine::Builtin];
    match tool::frida() {
        Ok(_) => engines.extend([Engine::FridaOrBuiltin, Engine::Frida]),
        Err(why) => skip::skipped(&format!("{name} by Frida"), &format!("{why:#}")),
    }
    engines.into_iter().flat_map(|engine| Hooks::ALL.map(|hooks| (engine, hooks))).collect()
}

/// Returns what `--stats` says about functions that are not hooked.
fn not_hooked(stats: &Path) -> Option<String> {
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).ok()?).ok()?;
    Some(stats.get("functions").unwrap_or(&stats).to_string())
}
