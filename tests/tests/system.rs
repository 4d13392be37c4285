//! Every small program, in every way of compiling, with both kinds of hooks and both engines: the program notices nothing,
//! and the profile holds the arcs that the source lists, all of them and no other.
//!
//! `GPROFINJECT_PROGRAM=name cargo test --test system` runs the programs whose names hold `name`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::build::{self, Applies, FlagSet};
use gprofinject_tests::directives::{self, Test};
use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_tests::{callgrind, check, expect, generate, gprofdata, normalise, run, skip};

/// Far more than any of them needs; a hang is to show as such.
const LIMIT: Duration = Duration::from_secs(20);

/// Each with the built-in engine, and in a module of its own with Frida's gum.
macro_rules! flag_set_tests {
    ($($test:ident: $set:literal,)*) => {
        $(#[test] fn $test() { all_programs(build::flag_set($set), &[Engine::Builtin]) })*

        mod by_frida {
            use super::*;

            $(#[test] fn $test() {
                match tool::frida() {
                    Ok(_) => all_programs(build::flag_set($set), &[Engine::FridaOrBuiltin, Engine::Frida]),
                    Err(why) => skip::skipped(concat!("by_frida::", stringify!($test)), &format!("{why:#}")),
                }
            })*
        }
    };
}

flag_set_tests! {
    at_o0: "O0",
    at_o2_plain: "O2",
    at_o3_without_plt: "O3-noplt",
    at_os_with_cet: "Os-cf",
    at_o2_not_pie: "O2-nopie",
    at_o2_lto: "O2-lto",
    at_o2_gc_sections: "O2-gc",
    at_o2_folded: "O2-icf",
    at_o2_clang: "clang-O2",
    built_with_pg_at_o0_not_pie: "O0-pg-nopie",
    built_with_pg_at_o2: "O2-pg",
    built_with_fentry_at_o3_with_cet: "O3-fentry-cf",
    built_with_fentry_at_o2_not_pie: "O2-fentry-nopie",
    built_with_nop_mcount: "O2-nop-mcount",
    built_with_nops_at_entries: "O2-patchable",
    built_with_too_few_nops_at_entries: "Os-patchable-short",
    built_with_instrumented_functions: "O2-instrument",
    built_with_pg_by_clang: "clang-O2-pg",
    built_with_instrumented_functions_by_clang: "clang-O1-instrument",
}

fn all_programs(set: &FlagSet, engines: &[Engine]) {
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    let mut runs = 0;
    for test in directives::all().unwrap() {
        match build::applies(&test, set) {
            Applies::Yes => {}
            Applies::No => continue,
            Applies::Missing(what) => {
                skip::skipped(&format!("{} at {}", test.name, set.name), &what);
                continue;
            }
        }
        let program = build::build(&test, set, folder.path()).unwrap();
        let wanted = |hooks: &Hooks| test.hooks.is_none_or(|only| only == *hooks);
        for hooks in Hooks::ALL.into_iter().filter(wanted) {
            for &engine in engines {
                runs += 1;
                for failure in one(&test, &program, engine, hooks, folder.path()) {
                    failures.push(format!("{} at {}, {engine:?}, {hooks:?}: {failure}", test.name, set.name));
                }
            }
        }
    }
    let failed = failures.len();
    assert!(failures.is_empty(), "{failed} failures in {runs} runs:\n{}", failures.join("\n"));
}

/// Runs the program alone and under gprofinject; everything that's wrong.
fn one(test: &Test, path: &Path, engine: Engine, hooks: Hooks, folder: &Path) -> Vec<String> {
    let mut command = Command::new(path);
    // Where it leaves its own profile, if it was built to make one.
    command.args(&test.args).current_dir(folder);
    let alone = run::run(command, None, LIMIT).unwrap();

    let place = tempfile::tempdir_in(folder).unwrap();
    let gmon = place.path().join("gmon.out");
    let mut command = tool::command_by(engine, &["-q", hooks.option()], &gmon, path, &test.args).unwrap();
    command.current_dir(place.path());
    let profiled = run::run(command, None, LIMIT).unwrap();
    let mut failures = Vec::new();
    if profiled.timed_out {
        return vec![format!("hangs; {}", profiled.stderr_text())];
    }
    if profiled.code() != alone.code() || alone.code() != test.exit {
        let (want, alone, got) = (test.exit, alone.code(), profiled.code());
        failures.push(format!("exit status {got}, alone {alone}, expected {want}"));
    }
    // With glibc's counters in its way a program may print something else than it should.
    let printed = test.stdout.as_ref().map_or(alone.stdout_text(), String::clone);
    if profiled.stdout_text() != printed {
        failures.push(format!("prints {:?}, not {printed:?}", profiled.stdout_text()));
    }
    if profiled.stderr != alone.stderr {
        failures.push(format!("on standard error, with -q: {:?}", profiled.stderr_text()));
    }
    let files = std::fs::read_dir(place.path()).unwrap().count();
    if files != 1 {
        failures.push(format!("leaves {files} files"));
    }
    match gprofdata::read(&gmon) {
        Ok(profile) => {
            let program = Program::read(path).unwrap();
            let (arcs, others) = (test.arcs(hooks), test.others_allowed);
            failures.extend(match engine {
                Engine::Frida => {
                    let refused = tool::refused(engine, hooks, path).unwrap();
                    expect::compare_without(&refused, &arcs, others, &profile, &program)
                }
                _ => expect::compare(&arcs, others, &profile, &program),
            });
            failures.extend(gprof_refuses(path, &gmon));
        }
        Err(error) => failures.push(format!("{error:#}")),
    }
    failures
}

/// What gprof says against the profile, if anything.
fn gprof_refuses(program: &Path, gmon: &Path) -> Option<String> {
    if !skip::have("gprof") {
        return None;
    }
    let mut command = Command::new("gprof");
    command.arg("-b").arg(program).arg(gmon);
    let outcome = run::run(command, None, LIMIT).unwrap();
    let good = outcome.status.success() && outcome.stderr.is_empty() && !outcome.stdout.is_empty();
    (!good).then(|| format!("gprof: status {}, {:?}", outcome.code(), outcome.stderr_text()))
}

/// The small programs once more, call site by call site, against callgrind.
#[test]
fn call_sites_are_callgrinds() {
    if !callgrind::available() {
        return skip::skipped("call_sites_are_callgrinds", "no valgrind");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for test in directives::all().unwrap().iter().filter(|t| t.callgrind) {
        let set = build::flag_set("O2");
        if !matches!(build::applies(test, set), Applies::Yes) {
            continue;
        }
        let path = build::build(test, set, folder.path()).unwrap();
        let program = Program::read(&path).unwrap();
        let (counted, _) = callgrind::run(&path, &test.args, None).unwrap();
        let object = counted.object(&path).unwrap();
        for hooks in Hooks::ALL {
            let gmon = folder.path().join("gmon.out");
            let _ = std::fs::remove_file(&gmon);
            let stats = folder.path().join("stats.json");
            let stats_name = stats.display().to_string();
            let options = ["-q", hooks.option(), "--stats", &stats_name];
            run::run(tool::command(&options, &gmon, &path, &test.args).unwrap(), None, LIMIT).unwrap();
            let done = done_hooks(&stats).unwrap_or(hooks);
            if done != hooks {
                // What a program can't have yet is another test's business; here, that the counts are right.
                skip::skipped(
                    &format!("{} with {hooks:?}", test.name),
                    &format!("{done:?} was done instead"),
                );
            }
            let expected = normalise::normalise(&counted, object, &program, done).unwrap();
            let expected = expected.without(&tool::unwinder(done, &path).unwrap());
            match gprofdata::read(&gmon) {
                Ok(profile) => {
                    let report = check::compare(&expected, &profile, &program).unwrap();
                    if !report.is_equal() {
                        failures.push(format!("{} {hooks:?}:\n{report}", test.name));
                    }
                }
                Err(error) => failures.push(format!("{} {hooks:?}: {error:#}", test.name)),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The hooks that were set, by `--stats`: a program that unwinds may get fewer than were asked for.
fn done_hooks(stats: &Path) -> Option<Hooks> {
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).ok()?).ok()?;
    match stats.get("hooks")?.as_str()? {
        "both" => Some(Hooks::Both),
        "entry" => Some(Hooks::Entry),
        _ => None,
    }
}

/// Ten thousand functions and fifty thousand arcs: every one of them.
#[test]
fn ten_thousand_functions() {
    let folder = tempfile::tempdir().unwrap();
    let path = many(folder.path(), 10_000, 5);
    let program = Program::read(&path).unwrap();
    let expected: Vec<directives::Arc> = generate::many_functions_arcs(10_000, 5)
        .into_iter()
        .map(|(caller, callee, count)| directives::Arc { caller, callee, count })
        .collect();
    for hooks in Hooks::ALL {
        let gmon = folder.path().join("gmon.out");
        let outcome = tool::profile(hooks, &gmon, &path, &[], None).unwrap();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let profile = gprofdata::read(&gmon).unwrap();
        let differences = expect::compare(&expected, false, &profile, &program);
        let few: Vec<_> = differences.iter().take(20).collect();
        assert!(differences.is_empty(), "{hooks:?}: {} differences: {few:#?}", differences.len());
    }
}

fn many(folder: &Path, functions: usize, fan_out: usize) -> PathBuf {
    let (source, program) = (folder.join("many.c"), folder.join("many"));
    std::fs::write(&source, generate::many_functions(functions, fan_out)).unwrap();
    let mut gcc = Command::new("gcc");
    // Leaf calls must stay: without noipa (slow at this size) the compiler may find them pure.
    gcc.args(["-O1", "-w", "-fno-ipa-pure-const", "-fno-optimize-sibling-calls", "-o"])
        .arg(&program)
        .arg(&source);
    build::compile(gcc).unwrap();
    program
}
