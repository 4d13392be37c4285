//! Sampling: there are samples, they are at the right addresses, and the header has the rate. The accuracy of
//! the shares is measured by the bench and not asserted here, because that needs a quiet machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata::{self, GmonOut};
use gprofinject_tests::{compile, run, tool};

gprofinject_tests::trials! {
    alone:
        samples_by_the_default,
        samples_by_the_timer,
        samples_of_two_threads,
        samples_without_hooks,
        samples_with_hooks_on_entries,
        no_samples_at_rate_zero;
}

/// Compiles a program with two functions that take time in the ratio 3 : 1. Its arguments are the number of
/// threads and the milliseconds of each.
fn burner(folder: &Path) -> PathBuf {
    let program = folder.join("shares");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-pthread", "-o"]).arg(&program).arg(tool::folder().join("data/shares.c"));
    compile::compile(gcc).unwrap();
    program
}

fn samples_in(profile: &GmonOut, program: &Program, name: &str) -> u64 {
    let function = program.named(name).unwrap();
    profile.samples_in(function.address, function.size)
}

fn profile(options: &[&str], args: &[&str]) -> (GmonOut, Program) {
    let folder = tempfile::tempdir().unwrap();
    let path = burner(folder.path());
    let gmon = folder.path().join("gmon.out");
    let args: Vec<String> = args.iter().map(|a| (*a).to_string()).collect();
    let command = tool::command(options, &gmon, &path, &args).unwrap();
    let outcome = run::run(command, None, Duration::from_secs(60)).unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    (gprofdata::read(&gmon).unwrap(), Program::read(&path).unwrap())
}

fn both_functions_are_seen(options: &[&str], args: &[&str]) {
    let (profile, program) = profile(options, args);
    let (long, short) =
        (samples_in(&profile, &program, "burn_three"), samples_in(&profile, &program, "burn_one"));
    println!("{options:?} {args:?}: {long} and {short} of {} samples", profile.samples());
    assert!(long > 0 && short > 0, "{long} and {short}");
    assert!(long > short, "{long} and {short}: three parts and one");
    assert!(profile.histograms.iter().all(|h| h.rate > 0 && h.low < h.high));
}

fn samples_by_the_default() {
    both_functions_are_seen(&["-q"], &["1", "400"]);
}

fn samples_by_the_timer() {
    both_functions_are_seen(&["-q", "--sampler=timer"], &["1", "400"]);
}

fn samples_of_two_threads() {
    both_functions_are_seen(&["-q"], &["2", "400"]);
    both_functions_are_seen(&["-q", "--sampler=timer"], &["2", "400"]);
}

fn samples_without_hooks() {
    both_functions_are_seen(&["-q", "--hooks=none"], &["1", "400"]);
}

fn samples_with_hooks_on_entries() {
    both_functions_are_seen(&["-q", "--hooks=entry"], &["1", "400"]);
}

fn no_samples_at_rate_zero() {
    let (profile, _) = profile(&["-q", "--rate=0"], &["1", "50"]);
    assert_eq!(profile.samples(), 0);
    // gprof needs a histogram nevertheless.
    assert!(!profile.histograms.is_empty());
    assert!(profile.calls() > 0);
}
