//! Standalone programs: static and static-pie ones with glibc or musl, and dynamic ones with musl. Every small program of the matrix behaves as it does
//! alone, and its functions have the arcs that the source lists; and other programs, for what only standalone programs do.
//!
//! A trial is one program with one flag set: `standalone::fib.c::static`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::build::{self, Applies};
use gprofinject_tests::directives::{self, Test};
use gprofinject_tests::elf::Program;
use gprofinject_tests::flags::{FlagSet, MUSL_DYNAMIC, STANDALONE_SETS, flag_set};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_tests::trials::{Company, Trial};
use gprofinject_tests::{expect, extent, gprofdata, run};

pub(crate) mod musl;
mod real;
mod written;

/// Much longer than any program takes, so that a hang is detected.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns the trials.
pub(crate) fn trials() -> Vec<Trial> {
    let mut all = Vec::new();
    for (number, test) in directives::all().unwrap().into_iter().enumerate() {
        let test = Arc::new(test);
        let applies = |set: &&FlagSet| !matches!(build::applies(&test, set), Applies::No);
        let sets: Vec<&FlagSet> = STANDALONE_SETS.iter().filter(applies).collect();
        let in_turn = number % sets.len().max(1);
        let mine = sets.iter().enumerate().filter(|(index, _)| extent::is_full() || *index == in_turn);
        for (_, &set) in mine {
            let of_trial = test.clone();
            let name = format!("standalone::{}::{}", test.name, set.name);
            all.push(Trial::new(name, Company::Together, Box::new(move || hooked(&of_trial, set))));
        }
    }
    all.extend(written::trials());
    all.extend(musl::trials());
    all.extend(real::trials());
    all
}

/// Runs the program alone, and with each kind of hooks: in its own functions only, as the lists in the sources expect, and in
/// all functions, the C library's included.
fn hooked(test: &Test, set: &FlagSet) {
    for set in [set, flag_set("O2")] {
        if let Applies::Missing(what) = build::applies(test, set) {
            return skip::skipped(&format!("{} at {}", test.name, set.name), &what);
        }
    }
    let program = build::build(test, set).unwrap();
    let mut own = own_functions(test);
    let standalone = Program::read(&program).unwrap();
    // The compiler may have made other clones. The program's entry point is called by nobody.
    own.retain(|name| name != "_start" && standalone.named(name).is_some());
    let alone = run::run(command_of(&program, test), None, LIMIT).unwrap();
    assert_eq!(alone.code(), test.exit, "exit status of the program alone, {:?}", alone.stderr_text());
    let mut failures = Vec::new();
    for hooks in Hooks::ALL.into_iter().filter(|hooks| test.hooks.is_none_or(|only| only == *hooks)) {
        for selected in [true, false] {
            let own: &[String] = if selected { &own } else { &[] };
            // musl itself is hooked like the C library that a static program contains.
            let libs = if set.name == MUSL_DYNAMIC && !selected { "all" } else { "auto" };
            let wrong = one(test, &program, &alone, (hooks, libs), own);
            let what = if selected { "own functions" } else { "all functions" };
            failures.extend(wrong.into_iter().map(|wrong| format!("{hooks:?}, {what}: {wrong}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn command_of(program: &Path, test: &Test) -> Command {
    let mut command = Command::new(program);
    command.args(&test.args);
    command
}

/// Returns the names of the program's functions without those of its libraries: those of the same program, linked
/// dynamically.
fn own_functions(test: &Test) -> Vec<String> {
    let program = Program::read(&build::build(test, flag_set("O2")).unwrap()).unwrap();
    let own = program.functions().filter(|function| function.parent.is_none() && !function.is_start_up());
    let mut names: Vec<String> = own.flat_map(|function| function.names.iter().cloned()).collect();
    // The lists also name functions of the C library that are linked into every program.
    names.extend(Hooks::ALL.into_iter().flat_map(|hooks| test.arcs(hooks)).flat_map(|arc| [arc.caller, arc.callee]));
    names
}

/// Runs the program under gprofinject. Returns everything that is wrong. `own` are the functions that are hooked; if there
/// are none, all are.
fn one(
    test: &Test,
    path: &Path,
    alone: &Outcome,
    (hooks, libs): (Hooks, &str),
    own: &[String],
) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let (gmon, stats) = (place.path().join("gmon.out"), place.path().join("stats.json"));
    let stats_name = stats.display().to_string();
    let mut options = vec!["-q", hooks.option(), "--libs", libs, "--stats", &stats_name];
    // Some are inlined with some flags, and a pattern that matches nothing is refused.
    let there: BTreeSet<String> =
        Program::read(path).unwrap().functions().flat_map(|function| function.names.iter().cloned()).collect();
    options.extend(own.iter().filter(|name| there.contains(*name)).flat_map(|name| ["-I", name]));
    let mut command = tool::command(&options, &gmon, path, &test.args).unwrap();
    command.current_dir(place.path());
    let profiled = run::run(command, None, LIMIT).unwrap();
    if profiled.timed_out {
        return vec![format!("hangs; {}", profiled.stderr_text())];
    }
    let mut failures = Vec::new();
    if profiled.code() != alone.code() {
        failures.push(format!("exit status {}, alone {}", profiled.code(), alone.code()));
    }
    if profiled.stdout_text() != alone.stdout_text() || profiled.stderr != alone.stderr {
        let (out, err) = (profiled.stdout_text(), profiled.stderr_text());
        failures.push(format!("prints {out:?} and {err:?}, not {:?} and {:?}", alone.stdout_text(), alone.stderr_text()));
    }
    let program = Program::read(path).unwrap();
    let mut profile = match gprofdata::read(&gmon) {
        Ok(profile) => profile,
        Err(error) => {
            failures.push(format!("{error:#}"));
            return failures;
        }
    };
    let arcs = test.arcs(hooks);
    if own.is_empty() {
        // The callers include the C library's functions, which the lists do not name.
        failures.extend(compare_totals(&arcs, &profile, &program));
        return failures;
    }
    // A call out of a function that is not hooked is one from outside, as it is if that function is a library's.
    let start = program.named("_start").map_or(0, |start| start.address);
    let is_own = |address: u64| program.owner(address).is_some_and(|f| f.names.iter().any(|name| own.contains(name)));
    let mut counted = BTreeMap::new();
    for ((from, callee), count) in std::mem::take(&mut profile.arcs) {
        // The functions that are called through the agent are hooked as well.
        if !is_own(callee) {
            continue;
        }
        *counted.entry((if is_own(from) { from } else { start }, callee)).or_default() += count;
    }
    profile.arcs = counted;
    failures.extend(expect::compare(&arcs, test.others_allowed, &profile, &program));
    failures
}

/// Returns the differences between the number of calls of each listed function and the profile's.
fn compare_totals(arcs: &[directives::Arc], profile: &gprofdata::GmonOut, program: &Program) -> Vec<String> {
    let (listed, mut differences) = expect::as_profile(arcs, program);
    let totals = |profile: &gprofdata::GmonOut| {
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, callee), count) in &profile.arcs {
            *totals.entry(*callee).or_default() += count;
        }
        totals
    };
    let counted = totals(profile);
    for (callee, expected) in totals(&listed) {
        let got = counted.get(&callee).copied().unwrap_or(0);
        if got != expected {
            differences.push(format!("calls of {}: expected {expected}, got {got}", program.label(callee)));
        }
    }
    differences
}

