//! Calls from code that is not hooked, or from a hooked library, in random programs, which themselves report the caller of
//! each call. It is the same in the program's own view, whether the library is hooked or not.
//!
//! `GPROFINJECT_FUZZ_PROGRAMS=1000 cargo test --release -p gprofinject-tests --test system callbacks::` tries
//! that many seeds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::directives::Arc;
use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, expect, extent, generate, gprofdata, run};

gprofinject_tests::trials! {
    together:
        random_trees_of_calls;
}

const LIMIT: Duration = Duration::from_secs(60);
/// The place of the code that calls back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unhooked {
    /// In a library.
    Library,
    /// In the program: the function is excluded by its name.
    Excluded,
}

/// The ways to build, each of which makes different frames.
const BUILDS: &[(&str, &[&str], Unhooked)] = &[
    ("g++", &["-O2"], Unhooked::Library),
    ("g++", &["-O0"], Unhooked::Library),
    ("g++", &["-Os", "-no-pie"], Unhooked::Library),
    ("clang++", &["-O2"], Unhooked::Library),
    ("g++", &["-O2"], Unhooked::Excluded),
];

/// Which libraries are hooked, in turn, where the code that calls back is in a library: that one, none, or also
/// the C library.
const LIBRARIES: [&str; 3] = ["auto", "none", "all"];

/// Seeds that were wrong once: by a cell of siglongjmp's frame that stayed in use after the jump (two), and by a stack that lies on both
/// sides of the end of a shadow.
const ONCE_WRONG: [u64; 4] = [733, 2395, 2370, 5775];

fn random_trees_of_calls() {
    let seeds = extent::times("GPROFINJECT_FUZZ_PROGRAMS", 60, 1000);
    let folder = tempfile::tempdir().unwrap();
    let mut programs = Vec::new();
    for (n, &(compiler, flags, unhooked)) in BUILDS.iter().enumerate() {
        if !skip::have(compiler) {
            skip::skipped("random_trees_of_calls", &format!("no {compiler}"));
            continue;
        }
        let program = build_random(&folder.path().join(n.to_string()), compiler, flags, unhooked);
        programs.push((program, unhooked));
    }
    let mut failures = Vec::new();
    let first = generate::first_seed();
    for seed in (first..first + seeds).chain(ONCE_WRONG) {
        let (program, unhooked) = &programs[seed as usize % programs.len()];
        for failure in compare(program, *unhooked, seed, folder.path()) {
            failures.push(format!("seed {seed}, {}: {failure}", program.display()));
        }
        if failures.len() > 10 {
            break;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn build_random(folder: &Path, compiler: &str, flags: &[&str], unhooked: Unhooked) -> PathBuf {
    std::fs::create_dir(folder).unwrap();
    let (library, program) = (folder.join("libcallback.so"), folder.join("random"));
    let source = tool::folder().join("callbacks");
    let mut whole = Command::new(compiler);
    whole.args(flags).args(["-g", "-w", "-pthread", "-o"]).arg(&program).arg(source.join("random.cc"));
    match unhooked {
        Unhooked::Library => {
            let mut command = Command::new(compiler);
            command
                .args(["-O2", "-shared", "-fPIC", "-fexceptions", "-o"])
                .arg(&library)
                .arg(source.join("library.cc"));
            compile::compile(command).unwrap();
            whole.arg(&library).arg("-Wl,-rpath,$ORIGIN");
        }
        Unhooked::Excluded => {
            whole.arg(source.join("library.cc"));
        }
    }
    compile::compile(whole).unwrap();
    program
}

/// Returns what is wrong with one run.
fn compare(path: &Path, unhooked: Unhooked, seed: u64, folder: &Path) -> Vec<String> {
    let args = [seed.to_string()];
    let mut command = Command::new(path);
    command.args(&args);
    let alone = run::run(command, None, LIMIT).unwrap();
    let gmon = folder.join("gmon.out");
    let _ = std::fs::remove_file(&gmon);
    let mut options = vec!["-q", Hooks::Both.option()];
    match unhooked {
        Unhooked::Excluded => options.extend(["--exclude", "call_back"]),
        Unhooked::Library => {
            let turn = seed as usize / BUILDS.len() % LIBRARIES.len();
            options.extend(["--libs", LIBRARIES[turn]]);
        }
    }
    let command = tool::command(&options, &gmon, path, &args).unwrap();
    let ours = run::run(command, None, LIMIT).unwrap();
    if alone.code() != 0 || (ours.code(), &ours.stdout) != (0, &alone.stdout) {
        let (alone, ours, said) = (alone.code(), ours.code(), ours.stderr_text());
        return vec![format!("status {ours}, alone {alone}; the same output or not: {said}")];
    }
    expect::compare(
        &arcs(&alone.stdout_text()),
        true,
        &gprofdata::read(&gmon).unwrap(),
        &Program::read(path).unwrap(),
    )
}

/// Parses lines of the form `caller -> callee count`.
fn arcs(text: &str) -> Vec<Arc> {
    let arc = |line: &str| {
        let (caller, rest) = line.split_once(" -> ")?;
        let (callee, count) = rest.split_once(' ')?;
        Some(Arc { caller: caller.into(), callee: callee.into(), count: count.parse().ok()? })
    };
    text.lines().map(|line| arc(line).unwrap()).collect()
}
