//! Every small program, with many flag sets, both kinds of hooks and both engines: the program behaves as it
//! does alone, and the profile contains exactly the arcs that the source lists. The lists are right, because
//! callgrind counts the same.
//!
//! A trial is one program with one flag set: `matrix::fib.c::O2`, `matrix::by_frida::fib.c::O2`,
//! `matrix::callgrind::fib.c::O2`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::build::{self, Applies};
use gprofinject_tests::directives::{self, Test};
use gprofinject_tests::elf::Program;
use gprofinject_tests::flags::{FLAG_SETS, FlagSet, flag_set};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::tool::{self, Engine, Hooks};
use gprofinject_tests::trials::{Company, Trial};
use gprofinject_tests::{
    callgrind, check, compile, expect, extent, generate, gprofdata, measured, normalise, run,
};

/// Much longer than any program takes, so that a hang is detected.
const LIMIT: Duration = Duration::from_secs(20);

/// The same for a program whose calls are measured: a hundred million tail calls take ten seconds.
const LIMIT_MEASURED: Duration = Duration::from_secs(90);

/// The flag sets with which the lists are compared with callgrind, which differ much from each other.
const CALLGRIND_SETS: [&str; 4] = ["O0", "O2", "Os-cf", "O2-nopie"];

/// The flag set with which every program is compiled in every run, also for callgrind.
const ALWAYS: &str = "O2";

/// The number of other flag sets for each program. The next program gets others.
const IN_TURN: usize = 2;

/// Returns the trials of the matrix.
pub(crate) fn trials() -> Vec<Trial> {
    let mut all = Vec::new();
    let mut add = |name: String, run: Box<dyn FnOnce() + Send>| {
        all.push(Trial::new(format!("matrix::{name}"), Company::Together, run));
    };
    add("ten_thousand_functions".to_owned(), Box::new(ten_thousand_functions));
    let frida = tool::frida().map_err(|why| format!("{why:#}"));
    if let Err(why) = &frida {
        let why = why.clone();
        add("by_frida".to_owned(), Box::new(move || skip::skipped("matrix::by_frida", &why)));
    }
    for (number, test) in directives::all().unwrap().into_iter().enumerate() {
        let test = Arc::new(test);
        for set in in_this_run(number) {
            let what = format!("{}::{}", test.name, set.name);
            if matches!(build::applies(&test, set), Applies::No) {
                continue;
            }
            let of_trial = test.clone();
            add(what.clone(), Box::new(move || hooked(&of_trial, set, &[Engine::Builtin])));
            if frida.is_ok() {
                let of_trial = test.clone();
                let engines = &[Engine::FridaOrBuiltin, Engine::Frida];
                add(format!("by_frida::{what}"), Box::new(move || hooked(&of_trial, set, engines)));
            }
        }
        let sets = CALLGRIND_SETS.into_iter().filter(|&name| name == ALWAYS || extent::is_full());
        for set in sets.map(flag_set).filter(|_| test.callgrind) {
            if matches!(build::applies(&test, set), Applies::No) {
                continue;
            }
            let of_trial = test.clone();
            add(
                format!("callgrind::{}::{}", test.name, set.name),
                Box::new(move || is_callgrinds(&of_trial, set)),
            );
        }
    }
    all
}

/// Returns the flag sets of a program in this run: all, or a part such that each set gets its share of the
/// programs.
fn in_this_run(number: usize) -> impl Iterator<Item = &'static FlagSet> {
    let others = FLAG_SETS.len() - 1;
    // These steps reach all other sets equally often, because 7 and 18 have no common divisor.
    let mine: Vec<usize> = (0..IN_TURN).map(|n| (number * IN_TURN + n) * 7 % others).collect();
    let mut other = 0;
    FLAG_SETS.iter().filter(move |set| {
        if set.name == ALWAYS {
            return true;
        }
        other += 1;
        extent::is_full() || mine.contains(&(other - 1))
    })
}

/// Returns the compiled program, or `None` if something is missing on this machine, which is reported.
fn compiled(test: &Test, set: &FlagSet) -> Option<PathBuf> {
    if let Applies::Missing(what) = build::applies(test, set) {
        skip::skipped(&format!("{} at {}", test.name, set.name), &what);
        return None;
    }
    Some(build::build(test, set).unwrap())
}

/// Runs the program alone, and with each engine and each kind of hooks.
fn hooked(test: &Test, set: &FlagSet, engines: &[Engine]) {
    let Some(program) = compiled(test, set) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(&program);
    // The folder in which it leaves its own profile, if it was built to make one.
    command.args(&test.args).current_dir(folder.path());
    let alone = run::run(command, None, LIMIT).unwrap();
    assert!(!alone.timed_out, "hangs by itself");
    let said = alone.stderr_text();
    assert_eq!(alone.code(), test.exit, "exit status of the program alone, which prints {said:?}");
    // glibc's counters may change what such a program prints.
    if !set.profiling {
        assert_eq!(alone.stdout_text(), test.stdout.clone().unwrap_or_default(), "output of the program alone");
    }
    let mut failures = Vec::new();
    for hooks in Hooks::ALL.into_iter().filter(|hooks| test.hooks.is_none_or(|only| only == *hooks)) {
        for &engine in engines {
            let wrong = one(test, &program, &alone, engine, hooks, Measure::Nothing);
            failures.extend(wrong.into_iter().map(|wrong| format!("{engine:?}, {hooks:?}: {wrong}")));
        }
    }
    let is_measured = set.name == ALWAYS && test.hooks.is_none_or(|only| only == Hooks::Both);
    let all = [Measure::Times, Measure::Paths, Measure::Outer, Measure::All];
    for measure in all.into_iter().filter(|_| is_measured) {
        // Frida's gum cannot lead to the copies.
        for &engine in engines.iter().filter(|&&engine| measure != Measure::All || engine == Engine::Builtin) {
            let wrong = one(test, &program, &alone, engine, Hooks::Both, measure);
            failures.extend(wrong.into_iter().map(|wrong| format!("{engine:?}, {measure:?}: {wrong}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What is measured beside the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Nothing,
    Times,
    Paths,
    /// Only outer calls are traced; the thunks let the others pass.
    Outer,
    /// Whatever one run can measure: the copies with counters are what the gates measure.
    All,
}

impl Measure {
    fn options(self) -> &'static [&'static str] {
        match self {
            Measure::Nothing => &[],
            Measure::Times => &["--times"],
            Measure::Paths => &["--paths"],
            Measure::Outer => &["--trace=trace", "--trace-depth=3"],
            Measure::All => &["--times", "--paths", "--count=blocks"],
        }
    }
}

/// Runs the program under gprofinject. Returns everything that is wrong.
fn one(
    test: &Test,
    path: &Path,
    alone: &Outcome,
    engine: Engine,
    hooks: Hooks,
    measure: Measure,
) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let gmon = place.path().join("gmon.out");
    let options: Vec<&str> = [&["-q", hooks.option()], measure.options()].concat();
    let mut command = tool::command_by(engine, &options, &gmon, path, &test.args).unwrap();
    command.current_dir(place.path());
    let limit = if measure == Measure::Nothing { LIMIT } else { LIMIT_MEASURED };
    let profiled = run::run(command, None, limit).unwrap();
    let mut failures = Vec::new();
    if profiled.timed_out {
        return vec![format!("hangs; {}", profiled.stderr_text())];
    }
    if profiled.code() != test.exit {
        failures.push(format!("exit status {}, expected {}", profiled.code(), test.exit));
    }
    // The output that the program should have; a program built for profiling may print something else when it
    // runs alone.
    let printed = test.stdout.as_ref().map_or(alone.stdout_text(), String::clone);
    if profiled.stdout_text() != printed {
        failures.push(format!("prints {:?}, not {printed:?}", profiled.stdout_text()));
    }
    // A thread that is cancelled anywhere may lose the event that it writes, and that is said.
    let may_lose = measure == Measure::Outer && test.name == "pthread-cancel.c";
    let lost_only = may_lose && profiled.stderr_text().starts_with("gprofinject: the trace lacks ");
    if profiled.stderr != alone.stderr && !lost_only {
        failures.push(format!("on standard error, with -q: {:?}", profiled.stderr_text()));
    }
    // The profile, and everything else.
    let is_expected =
        |name: &std::ffi::OsString| ["gmon.out", "gmon.pb.gz", "trace"].iter().any(|known| name == known);
    let files = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let unexpected: Vec<_> = files.filter(|name| !is_expected(name)).collect();
    if !unexpected.is_empty() {
        failures.push(format!("leaves {unexpected:?}"));
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
            failures.extend(gprof_refuses(path, &gmon, measure == Measure::All));
            // A thunk does not recognise control that runs on through more than eight functions: that is measured as a call.
            if matches!(measure, Measure::Times | Measure::Paths | Measure::All) && test.name != "run-on-long.c" {
                let recording = place.path().join("gmon.pb.gz");
                let cut_off = u64::from(test.name == "pthread-cancel.c");
                failures.extend(measured::differences(&recording, &profile, &program, cut_off));
            }
        }
        Err(error) => failures.push(format!("{error:#}")),
    }
    failures
}

/// Returns gprof's message about the profile, if it prints one. It takes counts of basic blocks by line only.
fn gprof_refuses(program: &Path, gmon: &Path, by_line: bool) -> Option<String> {
    let mut command = Command::new("gprof");
    command.arg("-b").args(by_line.then_some("-l")).arg(program).arg(gmon);
    let outcome = run::run(command, None, LIMIT).unwrap();
    let good = outcome.status.success() && outcome.stderr.is_empty() && !outcome.stdout.is_empty();
    (!good).then(|| format!("gprof: status {}, {:?}", outcome.code(), outcome.stderr_text()))
}

/// Checks that callgrind counts the arcs listed in the program and, with [`ALWAYS`], that the profile agrees
/// with callgrind's at each call site.
fn is_callgrinds(test: &Test, set: &FlagSet) {
    if !callgrind::available() {
        return skip::skipped("matrix::callgrind", "no valgrind");
    }
    let Some(path) = compiled(test, set) else { return };
    let program = Program::read(&path).unwrap();
    let (counted, _) = callgrind::run(&path, &test.args, None).unwrap();
    let object = counted.object(&path).unwrap();
    let mut failures = Vec::new();
    for hooks in Hooks::ALL.into_iter().filter(|hooks| test.hooks.is_none_or(|only| only == *hooks)) {
        let mut expected = normalise::normalise(&counted, object, &program, hooks).unwrap();
        let (listed, mut differences) = expect::as_profile(&test.arcs(hooks), &program);
        if test.others_allowed {
            let named: Vec<u64> = listed.arcs.keys().map(|(_, callee)| *callee).collect();
            expected.arcs.retain(|(_, callee), _| named.contains(callee));
            expected.loose.retain(|callee, _| named.contains(callee));
        }
        // The lists do not contain call sites.
        expected.sites.clear();
        differences.extend(check::compare(&expected, &listed, &program).unwrap().differences);
        failures.extend(differences.into_iter().map(|line| format!("\"ours\" is the list: {hooks:?}: {line}")));
    }
    let hooks = if set.name == ALWAYS { &Hooks::ALL[..] } else { &[] };
    for &hooks in hooks {
        let folder = tempfile::tempdir().unwrap();
        let (gmon, stats) = (folder.path().join("gmon.out"), folder.path().join("stats.json"));
        let stats_name = stats.display().to_string();
        let options = ["-q", hooks.option(), "--stats", &stats_name];
        let mut command = tool::command(&options, &gmon, &path, &test.args).unwrap();
        command.current_dir(folder.path());
        run::run(command, None, LIMIT).unwrap();
        // gprofinject may have set fewer hooks than asked, and then the counts must be right for those.
        let done = done_hooks(&stats);
        if done != hooks && test.hooks != Some(done) {
            failures.push(format!("{done:?} was done in place of {hooks:?}"));
        }
        let expected = normalise::normalise(&counted, object, &program, done).unwrap();
        let expected = expected.without(&tool::unwinder(done, &path).unwrap());
        match gprofdata::read(&gmon) {
            Ok(profile) => {
                let report = check::compare(&expected, &profile, &program).unwrap();
                if !report.is_equal() {
                    failures.push(format!("{hooks:?}:\n{report}"));
                }
            }
            Err(error) => failures.push(format!("{hooks:?}: {error:#}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the hooks that were set, by `--stats`. A program that unwinds may get fewer than were asked for.
fn done_hooks(stats: &Path) -> Hooks {
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    match stats["hooks"].as_str() {
        Some("both") => Hooks::Both,
        Some("entry") => Hooks::Entry,
        other => panic!("hooks: {other:?}"),
    }
}

/// Ten thousand functions and fifty thousand arcs, each of which must be counted.
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
    // Calls of leaves must stay. Without noipa (which is slow for so many functions) the compiler may find
    // that they have no effect.
    gcc.args(["-O1", "-w", "-fno-ipa-pure-const", "-fno-optimize-sibling-calls", "-o"])
        .arg(&program)
        .arg(&source);
    compile::compile(gcc).unwrap();
    program
}
