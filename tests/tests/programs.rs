//! The small programs by themselves: what they claim holds without us, and callgrind agrees with it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use gprofinject_tests::build::{self, Applies, FLAG_SETS, FlagSet};
use gprofinject_tests::directives::{self, Test};
use gprofinject_tests::tool::Hooks;
use gprofinject_tests::{callgrind, check, elf::Program, expect, normalise, run, skip};

/// Each program, in each way of compiling: exit status and output.
#[test]
fn run_as_they_say() {
    let mut failures = Vec::new();
    for set in FLAG_SETS {
        let folder = tempfile::tempdir().unwrap();
        for test in directives::all().unwrap() {
            if let Some(failure) = run_alone(&test, set, folder.path()) {
                failures.push(format!("{} at {}: {failure}", test.name, set.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn run_alone(test: &Test, set: &FlagSet, folder: &Path) -> Option<String> {
    match build::applies(test, set) {
        Applies::Yes => {}
        Applies::No => return None,
        Applies::Missing(what) => {
            skip::skipped(&format!("{} at {}", test.name, set.name), &what);
            return None;
        }
    }
    let program = match build::build(test, set, folder) {
        Ok(program) => program,
        Err(error) => return Some(format!("{error:#}")),
    };
    let mut command = std::process::Command::new(program);
    command.args(&test.args);
    let outcome = run::run(command, None, Duration::from_secs(20)).unwrap();
    let stdout = outcome.stdout_text();
    if outcome.timed_out || outcome.code() != test.exit || stdout != test.stdout.clone().unwrap_or_default() {
        return Some(format!("exit status {}, {stdout:?}, {:?}", outcome.code(), outcome.stderr_text()));
    }
    None
}

/// The arcs listed in the programs are those that callgrind counts, at two flag sets that differ a lot.
#[test]
fn callgrind_agrees_with_the_lists() {
    if !callgrind::available() {
        return skip::skipped("callgrind_agrees_with_the_lists", "no valgrind");
    }
    let mut failures = Vec::new();
    for set in ["O0", "O2", "Os-cf", "O2-nopie"].map(build::flag_set) {
        let folder = tempfile::tempdir().unwrap();
        for test in directives::all().unwrap().iter().filter(|t| t.callgrind) {
            if !matches!(build::applies(test, set), Applies::Yes) {
                continue;
            }
            let path = build::build(test, set, folder.path()).unwrap();
            let program = Program::read(&path).unwrap();
            let (counted, _) = callgrind::run(&path, &test.args, None).unwrap();
            let object = counted.object(&path).unwrap();
            for hooks in Hooks::ALL {
                if test.hooks.is_some_and(|only| only != hooks) {
                    continue;
                }
                let mut expected = normalise::normalise(&counted, object, &program, hooks).unwrap();
                let (listed, mut differences) = expect::as_profile(&test.arcs(hooks), &program);
                if test.others_allowed {
                    let named: Vec<u64> = listed.arcs.keys().map(|(_, callee)| *callee).collect();
                    expected.arcs.retain(|(_, callee), _| named.contains(callee));
                    expected.loose.retain(|callee, _| named.contains(callee));
                }
                // The lists say nothing of sites.
                expected.sites.clear();
                let report = check::compare(&expected, &listed, &program).unwrap();
                differences.extend(report.differences);
                if !differences.is_empty() {
                    let lines = differences.join("\n    ");
                    failures.push(format!("{} at {}, {hooks:?}:\n    {lines}", test.name, set.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "\"ours\" is what the source lists:\n{}", failures.join("\n"));
}
