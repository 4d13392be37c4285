//! Go programs: what they print and how they end is as without hooks, and calls are counted as the programs themselves
//! count them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::run::{self, Outcome};
use gprofinject_tests::{compile, gprofdata, tool, view};

gprofinject_tests::trials! {
    together:
        counts_in_every_build,
        counts_of_callbacks_from_c,
        counts_of_coverage,
        the_trace_of_a_fault,
        preempted_in_relocated_code,
        its_own_profile,
        processes,
        processes_with_little_stack,
        a_sampler_with_timers,
        gos_own_tools;
}

const LIMIT: Duration = Duration::from_secs(120);
const RUNS: u32 = 3;

/// Returns whether there is a Go compiler. A missing one is reported.
pub(crate) fn has_go(test: &str) -> bool {
    let found = skip::have("go");
    if !found {
        skip::skipped(test, "no go");
    }
    found
}

fn go(place: &Place, args: &[&str]) -> Command {
    let mut go = Command::new("go");
    go.args(args).current_dir(place.folder.path());
    // The folder in which go keeps its compiled library, whose compilation takes longer than all tests here.
    go.env("GOCACHE", tool::target_folder().join("go-cache")).env("GO111MODULE", "off");
    go
}

/// Builds a program of tests/go with more arguments of `go build`. Returns whether that was possible.
pub(crate) fn build(place: &Place, source: &str, name: &str, args: &[&str]) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    fs::copy(folder.join(source), place.path(source)).unwrap();
    let all = [&["build", "-o", name], args, &[source]].concat();
    compile::compile(go(place, &all)).map_err(|error| format!("{error:#}"))
}

fn finish(mut command: Command, place: &Place) -> Outcome {
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    let what = format!("{command:?}");
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: {what}");
    outcome
}

fn plain(place: &Place, words: &[&str]) -> Outcome {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    finish(command, place)
}

fn injected(place: &Place, options: &[&str], words: &[&str]) -> Outcome {
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.args(options).args(["-o", "profile"]).args(words);
    finish(command, place)
}

/// Runs a program alone and with hooks, with the same output and status.
fn runs_as_alone(place: &Place, options: &[&str], words: &[&str]) -> Outcome {
    let alone = plain(place, words);
    let run = injected(place, options, words);
    let said = run.stderr_text();
    assert_eq!((run.code(), run.stdout_text()), (alone.code(), alone.stdout_text()), "{words:?}: {said}");
    let own: Vec<&str> = said.lines().filter(|line| !line.starts_with("gprofinject: ")).collect();
    assert_eq!(own, alone.stderr_text().lines().collect::<Vec<_>>(), "{words:?}");
    run
}

/// Returns how often each function was called, by the profile and binutils' nm. The view of the whole process is read if
/// there is one, because it also has functions whose names gprof leaves out.
fn counted(place: &Place, program: &str) -> BTreeMap<String, u64> {
    let [symbols, profile] = match view::written(&place.path("profile.pb.gz")) {
        Ok(whole) => whole,
        Err(_) => [place.path(program), place.path("profile")],
    };
    let mut nm = Command::new("nm");
    nm.arg(symbols);
    let listed = run::run(nm, None, LIMIT).unwrap().stdout_text();
    let mut names = BTreeMap::new();
    for line in listed.lines() {
        let mut words = line.splitn(3, ' ');
        let (address, kind, name) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        if matches!(kind, "t" | "T") {
            names.insert(u64::from_str_radix(address, 16).unwrap(), name);
        }
    }
    let mut counts = BTreeMap::new();
    for (&(_, callee), &count) in &gprofdata::read(&profile).unwrap().arcs {
        let name = names.range(..=callee).next_back().map_or("", |(_, name)| name);
        *counts.entry(name.to_owned()).or_default() += count;
    }
    for file in ["profile", "profile.pb.gz"] {
        let _ = fs::remove_file(place.path(file));
    }
    counts
}

/// Compares counts with those that the program has written to the file `counts`.
fn are_as_counted(place: &Place, program: &str) {
    let counts = counted(place, program);
    let expected = fs::read_to_string(place.path("counts")).unwrap();
    assert!(!expected.is_empty());
    for line in expected.lines() {
        let (name, count) = line.rsplit_once(' ').unwrap();
        let found = counts.get(name).copied().unwrap_or(0);
        assert_eq!(found, count.parse::<u64>().unwrap(), "{program}: {name}");
    }
}

fn counts_in_every_build() {
    if !has_go("counts_in_every_build") {
        return;
    }
    let builds: [(&str, &[&str]); 7] = [
        ("static", &[]),
        ("stripped", &["-ldflags=-s -w"]),
        ("pie", &["-buildmode=pie"]),
        ("external", &["-ldflags=-linkmode=external"]),
        ("external-pie", &["-ldflags=-linkmode=external -s", "-buildmode=pie"]),
        ("external-static", &["-ldflags=-linkmode=external -extldflags=-static"]),
        ("race", &["-race"]),
    ];
    for (name, args) in builds {
        let place = Place::new();
        if let Err(error) = build(&place, "everything.go", name, args) {
            assert_eq!(name, "race", "{error}");
            skip::skipped("counts_in_every_build", "go has no race detector here");
            continue;
        }
        let path = format!("./{name}");
        let mut words = vec![path.as_str(), "counts"];
        words.extend((name == "race").then_some("racing"));
        for _ in 0..RUNS {
            runs_as_alone(&place, &[], &words);
            are_as_counted(&place, name);
        }
    }
}

fn counts_of_callbacks_from_c() {
    if !has_go("counts_of_callbacks_from_c") {
        return;
    }
    for (name, args) in [("dynamic", &[][..]), ("all", &["-ldflags=-linkmode=external -extldflags=-static"])] {
        let place = Place::new();
        build(&place, "callbacks.go", name, args).unwrap();
        for options in [&[][..], &["--libs=all"], &["--libs=none"]] {
            runs_as_alone(&place, options, &[&format!("./{name}"), "counts"]);
            are_as_counted(&place, name);
        }
    }
}

/// The blocks of `go test -covermode=count` that begin on the line of a function's name are the functions' first ones.
fn counts_of_coverage() {
    if !has_go("counts_of_coverage") {
        return;
    }
    let place = Place::new();
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("go/covered.go")).unwrap();
    // Only code outside of tests is covered.
    let (code, tests) = source.split_once("func TestAll").unwrap();
    let code = code.replace("\t\"sort\"\n", "").replace("\t\"testing\"\n", "");
    let imports = "package covered\nimport (\"sort\"; \"testing\")\n";
    fs::write(place.path("covered.go"), &code).unwrap();
    fs::write(place.path("covered_test.go"), format!("{imports}func TestAll{tests}")).unwrap();
    compile::compile(go(&place, &["test", "-c", "-covermode=count", "-o", "tests"])).unwrap();
    let run = injected(&place, &[], &["./tests", "-test.coverprofile=cover"]);
    assert_eq!(run.code(), 0, "{}", run.stderr_text());
    let counts = counted(&place, "tests");
    let cover = fs::read_to_string(place.path("cover")).unwrap();
    let mut checked = 0;
    for (number, line) in (1..).zip(code.lines()).filter(|(_, line)| line.starts_with("func ")) {
        let begins = format!(":{number}.");
        let first = cover.lines().find(|block| block.contains(&begins)).unwrap();
        let expected: u64 = first.rsplit(' ').next().unwrap().parse().unwrap();
        let name = line.trim_start_matches("func ").replace("(s items) ", "items.");
        let name = format!(".{}", name.split('(').next().unwrap());
        let found = counts.iter().filter(|(found, _)| found.starts_with("_/") && found.ends_with(&name));
        assert_eq!(found.map(|(_, count)| count).sum::<u64>(), expected, "{line}");
        checked += 1;
    }
    assert_eq!(checked, 6);
}

/// Go prints words of the stack that the function has not written as arguments, with a question mark.
fn the_trace_of_a_fault() {
    if !has_go("the_trace_of_a_fault") {
        return;
    }
    let without_arguments = |outcome: &Outcome| -> Vec<String> {
        let text = outcome.stderr_text();
        let own = text.lines().filter(|line| !line.starts_with("gprofinject: "));
        own.map(|line| line.split("(0x").next().unwrap().to_owned()).collect()
    };
    for (name, function) in [("fault", "main.(*T).get"), ("fault_later", "main.inner")] {
        let place = Place::new();
        build(&place, &format!("{name}.go"), name, &[]).unwrap();
        let words = [&*format!("./{name}")];
        let alone = plain(&place, &words);
        let run = injected(&place, &[], &words);
        assert!(alone.stderr_text().contains(function));
        assert_eq!((run.code(), without_arguments(&run)), (alone.code(), without_arguments(&alone)), "{name}");
    }
}

/// The program never ends if a loop cannot be preempted.
fn preempted_in_relocated_code() {
    if !has_go("preempted_in_relocated_code") {
        return;
    }
    for (name, args) in [("static", &[][..]), ("dynamic", &["-ldflags=-linkmode=external"])] {
        let place = Place::new();
        build(&place, "preempted.go", name, args).unwrap();
        let run = runs_as_alone(&place, &[], &[&format!("./{name}"), "counts"]);
        assert_eq!(run.stdout_text(), "0 wrong true\n");
        are_as_counted(&place, name);
    }
}

fn its_own_profile() {
    if !has_go("its_own_profile") {
        return;
    }
    let place = Place::new();
    build(&place, "profile.go", "profiled", &[]).unwrap();
    runs_as_alone(&place, &[], &["./profiled", "own"]);
    let shown = run::run(go(&place, &["tool", "pprof", "-traces", "profiled", "own"]), None, LIMIT).unwrap();
    let shown = shown.stdout_text();
    let at = shown.find("main.tiny").unwrap_or_else(|| panic!("{shown}"));
    let callers: Vec<&str> = shown[at..].lines().take(3).map(str::trim).collect();
    assert_eq!(callers, ["main.tiny", "main.busy", "main.main"], "{shown}");
}

fn processes() {
    if !has_go("processes") {
        return;
    }
    let place = Place::new();
    build(&place, "executes.go", "executes", &[]).unwrap();
    for _ in 0..RUNS {
        runs_as_alone(&place, &[], &["./executes"]);
        // The children run the same program, so their calls are in the same profile.
        assert_eq!(counted(&place, "executes").get("main.main"), Some(&9));
    }
}

/// The first hooked call or system call of a thread that leads to the agent may be in the middle of a goroutine.
fn processes_with_little_stack() {
    if !has_go("processes_with_little_stack") {
        return;
    }
    for (name, args) in [("static", &[][..]), ("dynamic", &["-ldflags=-linkmode=external"])] {
        let place = Place::new();
        build(&place, "deep.go", name, args).unwrap();
        let words = [&*format!("./{name}")];
        for options in [&[][..], &["-I", "main.*"], &["--hooks=none"], &["--hooks=none", "--sampler=timer"]] {
            let run = runs_as_alone(&place, options, &words);
            assert_eq!(run.stdout_text(), "[0 0 0 0 0 0 0 0]\n", "{name} {options:?}");
            if !options.contains(&"--hooks=none") {
                // 240 processes are executed, and are followed.
                assert_eq!(counted(&place, name).get("main.main"), Some(&241), "{name} {options:?}");
            }
        }
    }
}

fn a_sampler_with_timers() {
    if !has_go("a_sampler_with_timers") {
        return;
    }
    let place = Place::new();
    build(&place, "everything.go", "static", &[]).unwrap();
    for hooks in ["--hooks=both", "--hooks=none"] {
        runs_as_alone(&place, &["--sampler=timer", hooks], &["./static", "counts"]);
    }
}

/// gofmt and the compiler, which are stripped.
fn gos_own_tools() {
    if !has_go("gos_own_tools") {
        return;
    }
    let place = Place::new();
    build(&place, "everything.go", "static", &[]).unwrap();
    let root = run::run(go(&place, &["env", "GOROOT", "GOTOOLDIR"]), None, LIMIT).unwrap().stdout_text();
    let (root, tools) = root.trim().split_once('\n').unwrap();
    let sources = Path::new(root).join("src/fmt");
    let formatted = runs_as_alone(&place, &[], &[&format!("{root}/bin/gofmt"), "-d", &sources.to_string_lossy()]);
    assert_eq!(formatted.code(), 0);
    let compiler = format!("{tools}/compile");
    let source = "package main\nfunc fib(n int) int { if n < 2 { return n }; return fib(n-1) + fib(n-2) }\nfunc main() { println(fib(9)) }\n";
    fs::write(place.path("small.go"), source).unwrap();
    assert_eq!(plain(&place, &[&compiler, "-p", "main", "-o", "alone.o", "small.go"]).code(), 0);
    let run = injected(&place, &[], &[&compiler, "-p", "main", "-o", "hooked.o", "small.go"]);
    assert_eq!(run.code(), 0, "{}", run.stderr_text());
    assert_eq!(fs::read(place.path("alone.o")).unwrap(), fs::read(place.path("hooked.o")).unwrap());
}
