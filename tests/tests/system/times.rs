//! Sampling: there are samples, they are at the right addresses, and the header has the rate. The accuracy of
//! the shares is measured by the bench and not asserted here, because that needs a quiet machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata::{self, GmonOut};
use gprofinject_tests::{compile, run, tool, view};

gprofinject_tests::trials! {
    alone:
        samples_by_the_default,
        samples_by_the_timer,
        samples_of_two_threads,
        samples_without_hooks,
        samples_with_hooks_on_entries,
        our_own_time_is_left_out,
        our_own_time_in_a_static_program_is_left_out,
        our_own_time_in_libraries_is_left_out,
        our_own_time_in_children_is_left_out,
        samples_after_many_programs,
        why_most_samples_are_our_own,
        our_own_time_in_slow_paths_is_left_out,
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

/// A folder with a program built from `tests/data/tiny.c`, in which `work` takes four fifths of the time, and the
/// functions that it calls take the rest and much of gprofinject's time.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn built(name: &str, options: &[&str]) -> Tiny {
        let folder = tempfile::tempdir().unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-o"]).arg(folder.path().join(name)).arg(tool::folder().join("data/tiny.c")).args(options);
        compile::compile(gcc).unwrap();
        Tiny(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a program of the folder, and returns what `--stats` says, and the messages.
    fn run(&self, options: &[&str], program: &str, args: &[&str]) -> (serde_json::Value, String) {
        let stats = format!("--stats={}", self.path("stats").display());
        let args: Vec<String> = args.iter().map(|a| (*a).to_string()).collect();
        let options = [&[stats.as_str()], options].concat();
        let mut command = tool::command(&options, &self.path("gmon.out"), &self.path(program), &args).unwrap();
        command.current_dir(self.0.path());
        let outcome = run::run(command, None, Duration::from_secs(60)).unwrap();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let stats = serde_json::from_slice(&std::fs::read(self.path("stats")).unwrap()).unwrap();
        (stats, outcome.stderr_text())
    }

    /// Asserts that the profile `gmon` of the program in `symbols` has the share of `work` that it has without hooks.
    /// It is less than two thirds if the thunks are charged to the functions.
    /// Checks the shares in the view of the whole process.
    fn has_true_shares_of_all(&self, what: &str) {
        view::written(&self.path("gmon.pb.gz")).unwrap();
        self.has_true_shares("gmon.syms", "gmon.whole", what);
    }

    fn has_true_shares(&self, symbols: &str, gmon: &str, what: &str) {
        let (profile, program) =
            (gprofdata::read(&self.path(gmon)).unwrap(), Program::read(&self.path(symbols)).unwrap());
        let of = |name| samples_in(&profile, &program, name);
        let (work, tiny, step) = (of("work"), of("tiny"), of("step"));
        println!("{what}: {work}, {tiny} and {step} of {}", profile.samples());
        assert!(work > 3 * (tiny + step), "{what}: {work}, {tiny} and {step}");
    }
}

fn number(stats: &serde_json::Value, key: &str) -> f64 {
    stats.pointer(key).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{key}: {stats}"))
}

/// The share of gprofinject's own samples that a run of [`Tiny`] has at least, relative to all others.
const LEAST_OWN: f64 = 0.05;

/// Asserts that at least this share of the samples are gprofinject's own, and that all numbers fit together.
fn some_are_own(stats: &serde_json::Value, least: f64, what: &str) {
    let of = |key: &str| number(stats, &format!("/samples/{key}"));
    let (inside, outside, own) = (of("inside"), of("outside"), of("own"));
    println!("{what}: {inside} inside, {outside} outside, {own} own");
    assert!(own > least * (inside + outside), "{what}: {stats}");
    assert!((of("own_percent") - 100.0 * own / (inside + outside + own)).abs() < 0.01, "{what}: {stats}");
    assert!((of("own_seconds") - own / of("rate")).abs() < 0.001, "{what}: {stats}");
}

fn our_own_time_is_left_out() {
    let tiny = Tiny::built("prog", &[]);
    for options in [&["--hooks=both"][..], &["--hooks=entry"], &["--hooks=both", "--sampler=timer"]] {
        let (stats, said) = tiny.run(options, "prog", &["600"]);
        let what = format!("{options:?}");
        // Hooks on entries alone cost so little that on a fast machine they have 3 to 6 % of the samples.
        let least = if options.contains(&"--hooks=entry") { 0.02 } else { LEAST_OWN };
        some_are_own(&stats, least, &what);
        tiny.has_true_shares("prog", "gmon.out", &what);
        tiny.has_true_shares_of_all(&what);
        // The summary says it from 10 % on.
        let is_said = said.contains(" % of the CPU time was gprofinject's own (");
        let percent = number(&stats, "/samples/own_percent");
        assert!(is_said || percent < 11.0, "{percent}: {said}");
        assert!(!is_said || percent > 9.0, "{percent}: {said}");
    }
    // The agent's set-up may be sampled once or twice: it follows children here too.
    let (stats, _) = tiny.run(&["--hooks=none"], "prog", &["100"]);
    assert!(number(&stats, "/samples/own") <= 3.0, "{stats}");
}

fn our_own_time_in_a_static_program_is_left_out() {
    let tiny = Tiny::built("prog", &["-static"]);
    for sampler in ["--sampler=auto", "--sampler=timer"] {
        let (stats, _) = tiny.run(&["-q", sampler], "prog", &["600"]);
        some_are_own(&stats, LEAST_OWN, sampler);
        tiny.has_true_shares("prog", "gmon.out", sampler);
    }
}

fn our_own_time_in_libraries_is_left_out() {
    let tiny = Tiny::built("libtiny.so", &["-shared", "-fPIC", "-Dmain=busy"]);
    let source = tiny.path("prog.c");
    std::fs::write(&source, "int busy(int, char **); int main(int c, char **v) { return busy(c, v); }").unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wl,-rpath,$ORIGIN", "-o"]).args([tiny.path("prog"), source, tiny.path("libtiny.so")]);
    compile::compile(gcc).unwrap();
    for sampler in ["--sampler=auto", "--sampler=timer"] {
        let (stats, _) = tiny.run(&["-q", "--libs=libtiny*", sampler], "prog", &["600"]);
        some_are_own(&stats, LEAST_OWN, sampler);
        tiny.has_true_shares_of_all(sampler);
        // The timer's 250 samples a second can be in step with the loop: once, 103 of 150 were in thunks, and mostly 50 to 57.
        if sampler == "--sampler=auto" {
            assert!(number(&stats, "/samples/own") < number(&stats, "/samples/outside"), "{stats}");
        }
    }
}

fn our_own_time_in_children_is_left_out() {
    let tiny = Tiny::built("prog", &[]);
    std::fs::write(tiny.path("script"), "#!/bin/sh\n./prog 300 && ./prog 300 && true\n").unwrap();
    let mut executable = Command::new("chmod");
    assert!(executable.arg("+x").arg(tiny.path("script")).status().unwrap().success());
    for sampler in ["--sampler=auto", "--sampler=timer"] {
        let (stats, _) = tiny.run(&["-q", sampler], "script", &[]);
        assert!(number(&stats, "/processes/0/samples_own") > 0.0, "{stats}");
        view::apart(&tiny.path("")).unwrap();
        tiny.has_true_shares("prog", "gmon.out.prog", sampler);
    }
}

/// Programs that have to be planned keep gprofinject busy while the rings of samples fill.
fn samples_after_many_programs() {
    let tiny = Tiny::built("prog", &[]);
    let script = "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do\n\
        cp prog prog$i; echo $i >>prog$i; ./prog 5; ./prog$i 1\ndone\nexec ./prog 500\n";
    std::fs::write(tiny.path("script"), script).unwrap();
    let mut executable = Command::new("chmod");
    assert!(executable.arg("+x").arg(tiny.path("script")).status().unwrap().success());
    let (stats, _) = tiny.run(&["-q"], "script", &[]);
    let lost = number(&stats, "/lost/samples");
    println!("{lost} samples were lost");
    assert!(lost < 50.0, "{stats}");
}

/// If most samples of two seconds are gprofinject's own, the summary says why, and what helps.
fn why_most_samples_are_our_own() {
    const TINY: &str = "#include <stdio.h>\n__attribute__((noipa)) int f(int x) { return x; }\n\
        int main(void) { long sum = 0; for (long i = 0; i < 1500000000; i++) sum += f(i & 1); return sum == 1; }\n";
    // The machine code calls its argument as often as its second argument says: a loop that no file contains.
    const MADE: &str = "#include <string.h>\n#include <sys/mman.h>\n__attribute__((noipa)) void f(void) {}\n\
        int main(void) { static const unsigned char loop[] = {0x53, 0x55, 0x50, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xf5, 0xff, 0xd3, 0x48, \
        0xff, 0xcd, 0x75, 0xf9, 0x58, 0x5d, 0x5b, 0xc3}; \
        void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); \
        memcpy(at, loop, sizeof loop); ((void (*)(void (*)(void), long))at)(f, 300000000); return 0; }\n";
    for (source, why, help) in [
        (TINY, "functions of prog are so short", "-X 'prog!GLOB' leaves some of them out, --hooks entry takes less time for each call"),
        (MADE, "300000000 calls of functions of prog come from code that is not hooked", "-X 'prog!GLOB'"),
    ] {
        let tiny = Tiny(tempfile::tempdir().unwrap());
        std::fs::write(tiny.path("prog.c"), source).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-o"]).args([tiny.path("prog"), tiny.path("prog.c")]);
        compile::compile(gcc).unwrap();
        let (stats, said) = tiny.run(&["-v", "--hooks=both"], "prog", &[]);
        let (percent, rate) = (number(&stats, "/samples/own_percent"), number(&stats, "/samples/rate"));
        let all: f64 = ["inside", "outside", "own"].iter().map(|key| number(&stats, &format!("/samples/{key}"))).sum();
        println!("{percent} % of {} s", all / rate);
        let is_due = percent >= 50.0 && all >= 2.0 * rate;
        assert_eq!(said.contains(why) && said.contains(help), is_due, "{said}");
        assert_eq!(said.contains("mostly because"), is_due, "{said}");
    }
}

/// Callbacks from libc take the agent's own code each time.
fn our_own_time_in_slow_paths_is_left_out() {
    const CALLBACKS: &str = r"
#include <search.h>
#include <stdio.h>
#include <time.h>
__attribute__((noipa)) int same(const void *a, const void *b) { return *(int *)a != *(int *)b; }
int main(void) {
    int all[64], last = 63;
    for (int i = 0; i < 64; i++) all[i] = i;
    size_t count = 64, found = 0;
    clock_t end = clock() + CLOCKS_PER_SEC / 2;
    while (clock() < end) for (int i = 0; i < 1000; i++) found += lfind(&last, all, &count, sizeof(int), same) != 0;
    return found == 0;
}
";
    for (options, sampler) in [(&["-O2"][..], "auto"), (&["-O2"], "timer"), (&["-O2", "-static"], "auto"), (&["-O2", "-static"], "timer")] {
        let tiny = Tiny(tempfile::tempdir().unwrap());
        std::fs::write(tiny.path("prog.c"), CALLBACKS).unwrap();
        let mut gcc = Command::new("gcc");
        compile::compile({ gcc.args(options).arg("-o").args([tiny.path("prog"), tiny.path("prog.c")]); gcc }).unwrap();
        let (stats, said) = tiny.run(&[&format!("--sampler={sampler}"), "--libs=none"], "prog", &[]);
        let what = format!("{options:?} {sampler}");
        some_are_own(&stats, LEAST_OWN, &what);
        // libc's own function is small, and so is the callback.
        assert!(number(&stats, "/samples/own_percent") > 20.0, "{what}: {said}");
    }
}
