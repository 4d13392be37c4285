//! Programs that were built for another profiler: gprofinject takes the place of that profiler, with all
//! calls, in one file.
//!
//! These tests include what glibc's own tests of gmon contain: counts of known functions in each kind of
//! program, a file by GMON_OUT_PREFIX, and more arcs than there is room for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_tests::elf::Program;
use gprofinject_tests::family::Subject;
use gprofinject_tests::place::{LIMIT, Place, finish};
use gprofinject_tests::run::{self, Outcome};
use gprofinject_tests::{compile, gprofdata, tool, view};

gprofinject_tests::trials! {
    together:
        known_counts_in_one_file,
        a_file_by_prefix,
        the_other_profiler_is_off,
        more_arcs_than_glibc_has_room_for,
        counts_of_eight_threads,
        what_the_program_says_to_the_other_profiler,
        counters_of_the_programs_own_are_called,
        hooks_of_somebodys_own_are_called,
        without_our_profile_there_is_theirs,
        static_programs_keep_their_profiler,
        libraries_with_counters,
        children_and_ends,
        the_counters_are_taken_out,
        each_function_has_room;
}

/// The ways to build a program for profiling.
const BUILDS: [&[&str]; 10] = [
    &["-pg"],
    &["-pg", "-fno-pie", "-no-pie"],
    &["-pg", "-static-libgcc", "-fno-plt"],
    &["-pg", "-mcmodel=large"],
    &["-pg", "-mfentry"],
    &["-pg", "-mfentry", "-fcf-protection", "-fno-pie", "-no-pie"],
    &["-pg", "-mfentry", "-mnop-mcount", "-fno-pie", "-no-pie"],
    &["-fpatchable-function-entry=5"],
    &["-finstrument-functions"],
    &["-finstrument-functions", "-pg"],
];

/// A program of `profilers/`, in a new folder that also contains an empty one.
struct Built {
    place: Place,
    program: PathBuf,
}

impl Built {
    fn new(sources: &[&str], flags: &[&str]) -> Built {
        let place = Place::new();
        fs::create_dir(place.path("elsewhere")).unwrap();
        let program = place.path("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-w", "-pthread", "-o"]).arg(&program);
        gcc.args(sources.iter().map(|name| source(name))).args(flags);
        compile::compile(gcc).unwrap();
        Built { place, program }
    }

    fn alone(&self, args: &[&str]) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.place.path("elsewhere")).env_remove("GMON_OUT_PREFIX");
        let outcome = run::run(command, None, LIMIT).unwrap();
        let _ = fs::remove_file(self.place.path("elsewhere/gmon.out"));
        outcome
    }

    fn profiled(&self, options: &[&str], args: &[&str]) -> Outcome {
        let _ = fs::remove_file(self.place.path("gmon.out"));
        self.place.run(&[options, &["./program"], args].concat())
    }

    /// Returns the calls by the names of caller and callee.
    fn calls(&self, file: &str) -> BTreeMap<(String, String), u64> {
        let profile = gprofdata::read(&self.place.path(file)).unwrap();
        let program = Program::read(&self.program).unwrap();
        let mut calls = BTreeMap::new();
        for ((from, callee), count) in &profile.arcs {
            let caller = program.owner(*from).map_or("nobody", |f| f.name()).to_owned();
            *calls.entry((caller, program.label(*callee))).or_default() += count;
        }
        calls
    }

    fn called(&self, file: &str, caller: &str, callee: &str) -> u64 {
        self.calls(file).get(&(caller.to_owned(), callee.to_owned())).copied().unwrap_or(0)
    }

    /// Returns the calls in a profile of glibc's, whose address of a function is the one after the call of
    /// the counter.
    fn called_by_glibc(&self, file: &str, callee: &str) -> u64 {
        let inside = format!("{callee}+");
        self.calls(file)
            .iter()
            .filter(|((_, name), _)| name.starts_with(&inside))
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns the names of the files with this prefix, in the folder and in the one in which the program
    /// runs.
    fn profiles(&self, prefix: &str) -> Vec<String> {
        let mut found = Vec::new();
        for folder in [".", "elsewhere"] {
            for entry in fs::read_dir(self.place.path(folder)).unwrap() {
                let name = entry.unwrap().file_name().to_string_lossy().into_owned();
                if name.starts_with(prefix) {
                    found.push(format!("{folder}/{name}"));
                }
            }
        }
        found
    }
}

fn source(name: &str) -> PathBuf {
    tool::folder().join("profilers").join(name)
}

fn known_counts_in_one_file() {
    for flags in BUILDS {
        let built = Built::new(&["known.c"], flags);
        for hooks in ["both", "entry"] {
            for way in ["return", "_exit", "kill", "segv"] {
                let what = format!("{flags:?} {hooks} {way}");
                let alone = built.alone(&[way]);
                let outcome = built.profiled(&["-q", "--hooks", hooks], &[way]);
                assert_eq!(outcome.status.signal(), alone.status.signal(), "{what}");
                assert_eq!((outcome.code(), &outcome.stderr), (alone.code(), &alone.stderr), "{what}");
                assert_eq!(built.profiles("gmon.out"), ["./gmon.out"], "{what}");
                let called = |caller, callee| built.called("gmon.out", caller, callee);
                assert_eq!(called("main", "once"), 1000, "{what}");
                assert_eq!(called("once", "twice"), 2000, "{what}");
                let caller = if hooks == "both" { "main" } else { "_start" };
                assert_eq!(called(caller, "descending"), 1, "{what}: {:?}", built.calls("gmon.out"));
                let last = u64::from(way == "return");
                assert_eq!(called("at_exit", "last") + called("_start", "last"), last, "{what}");
            }
        }
    }
}

fn a_file_by_prefix() {
    for flags in [&["-pg"][..], &["-pg", "-mfentry"]] {
        let built = Built::new(&["known.c"], flags);
        let mut command = built.place.command(&["-q", "./program"]);
        command.env("GMON_OUT_PREFIX", "prefix");
        assert_eq!(finish(command).code(), 0);
        let mut files = built.profiles("prefix");
        files.retain(|file| !file.ends_with(".pb.gz"));
        assert_eq!((files.len(), built.profiles("gmon.out").len()), (1, 0), "{files:?}");
        assert_eq!(built.called(&files[0], "once", "twice"), 2000);
    }
}

/// Whatever is hooked, neither the other profiler's timer nor its handler is there, and gprofinject's timers
/// do not use SIGPROF.
fn the_other_profiler_is_off() {
    let built = Built::new(&["known.c"], &["-pg"]);
    assert_eq!(built.alone(&["return", "says"]).code(), 1, "chdir");
    for options in [
        &["--hooks=both"][..],
        &["--hooks=entry", "--sampler=timer"],
        &["--hooks=none"],
        &["--hooks=none", "--no-follow"],
        &["--hooks=none", "--no-follow", "--rate=0"],
        &["-X", "*"],
    ] {
        let outcome = built.profiled(options, &["return", "says"]);
        assert_eq!(outcome.stdout_text(), "a timer 0, a handler 0\n", "{options:?}");
        assert_eq!((outcome.code(), built.profiles("gmon.out").len()), (0, 1), "{options:?}");
        let counts = options[0].starts_with("--hooks") && options[0] != "--hooks=none";
        assert_eq!(built.called("gmon.out", "once", "twice"), if counts { 2000 } else { 0 }, "{options:?}");
    }
    // Without gprofinject they are there.
    let mut command = Command::new("../program");
    command.args(["_exit", "says"]).current_dir(built.place.path("elsewhere"));
    fs::create_dir(built.place.path("elsewhere/elsewhere")).unwrap();
    let alone = run::run(command, None, LIMIT).unwrap();
    assert_eq!(alone.stdout_text(), "a timer 1, a handler 1\n");
}

/// glibc's room for arcs is a part of the program's size, or what its tunables say.
fn more_arcs_than_glibc_has_room_for() {
    const FUNCTIONS: usize = 3000;
    let mut text = String::from("int x;\n#define OPAQUE __attribute__((noinline, noclone))\n");
    for i in 0..FUNCTIONS {
        let _ = writeln!(text, "OPAQUE int f{i}(int a) {{ __asm__ volatile(\"\"); return a + x + {i}; }}");
    }
    text += "int main(void) { int s = 0;\n";
    for i in 0..FUNCTIONS {
        let _ = writeln!(text, "s += f{i}(s); s += f0(s);");
    }
    text += "return 0; }\n";
    let place = Place::new();
    let program = place.c("program", &text, &["-pg"]);
    let built = Built { place, program };
    for room in ["", "glibc.gmon.minarcs=50:glibc.gmon.maxarcs=50"] {
        let mut command = built.place.command(&["-q", "./program"]);
        let outcome = finish({
            command.env("GLIBC_TUNABLES", room);
            command
        });
        assert_eq!((outcome.code(), outcome.stderr_text().as_str()), (0, ""));
        let profile = gprofdata::read(&built.place.path("gmon.out")).unwrap();
        let main = Program::read(&built.program).unwrap();
        let main = main.named("main").unwrap().clone();
        let from_main = |from: u64| (main.address..main.address + main.size).contains(&from);
        let arcs = profile.arcs.iter().filter(|((from, _), _)| from_main(*from));
        assert_eq!(arcs.map(|(_, count)| *count).collect::<Vec<_>>(), vec![1; 2 * FUNCTIONS]);
    }
    // The feature exists: alone the program leaves no profile.
    let _ = fs::remove_file(built.place.path("gmon.out"));
    let mut command = Command::new(&built.program);
    command.current_dir(built.place.folder.path()).env("GLIBC_TUNABLES", "glibc.gmon.maxarcs=50");
    let alone = run::run(command, None, LIMIT).unwrap();
    assert!(alone.stderr_text().contains("mcount: call graph buffer size limit exceeded"));
    assert!(!built.place.path("gmon.out").exists());
}

fn counts_of_eight_threads() {
    for flags in BUILDS {
        let place = Place::new();
        let program = place.path("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-pthread", "-o"]).arg(&program).arg(tool::folder().join("data/threads.c"));
        compile::compile({
            gcc.args(flags);
            gcc
        })
        .unwrap();
        let built = Built { place, program };
        for hooks in ["--hooks=both", "--hooks=entry"] {
            let outcome = built.place.run(&["-q", hooks, "./program", "8", "2"]);
            assert_eq!((outcome.code(), outcome.stderr_text().as_str()), (0, ""), "{flags:?} {hooks}");
            assert_eq!(built.called("gmon.out", "worker", "leaf"), 16_000_000, "{flags:?} {hooks}");
            assert_eq!(built.called("gmon.out", "_start", "worker"), 8, "{flags:?} {hooks}");
        }
    }
}

fn what_the_program_says_to_the_other_profiler() {
    let built = Built::new(&["control.c"], &["-pg"]);
    assert_eq!(built.alone(&[]).stdout_text(), "20\n");
    let outcome = built.profiled(&[], &[]);
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "20\n"));
    let said = outcome.stderr_text();
    assert!(said.contains("calls moncontrol or monstartup, which has no effect"), "{said}");
    assert_eq!(built.called("gmon.out", "main", "work"), 20);
    assert_eq!(built.profiles("gmon.out"), ["./gmon.out"]);
}

/// A function of the program with a counter's name is an ordinary function.
fn counters_of_the_programs_own_are_called() {
    for flags in [&["-pg"][..], &["-pg", "-mfentry"], &["-pg", "-no-pie", "-fno-pie"]] {
        let built = Built::new(&["mcount.c"], flags);
        let alone = built.alone(&[]).stdout_text();
        assert!(alone.starts_with("10 ") && alone != "10 0\n", "{alone}");
        for hooks in ["--hooks=both", "--hooks=entry"] {
            let outcome = built.profiled(&["-q", hooks], &[]);
            assert_eq!(outcome.stdout_text(), alone, "{flags:?} {hooks}");
            assert_eq!(built.called("gmon.out", "main", "work"), 10, "{flags:?} {hooks}");
        }
    }
}

/// Hooks that are defined by the program, by a library with which it is linked, or by one that is preloaded.
fn hooks_of_somebodys_own_are_called() {
    let flags = &["-finstrument-functions"];
    let own = Built::new(&["known.c", "hooks.c"], flags);
    let library = own.place.path("libhooks.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source("library-hooks.c"));
    compile::compile(gcc).unwrap();
    let linked = Built::new(&["known.c"], &["-finstrument-functions", library.to_str().unwrap()]);
    let preloaded = Built::new(&["known.c"], flags);
    for (built, preload) in [(&own, None), (&linked, None), (&preloaded, Some(&library))] {
        let mut command = Command::new(&built.program);
        command.current_dir(built.place.folder.path()).envs(preload.map(|path| ("LD_PRELOAD", path)));
        let alone = run::run(command, None, LIMIT).unwrap();
        assert!(alone.stdout_text().contains(" in, "), "{}", alone.stderr_text());
        for hooks in ["--hooks=both", "--hooks=entry", "--hooks=none"] {
            let mut command = built.place.command(&["-q", hooks, "./program"]);
            command.envs(preload.map(|path| ("LD_PRELOAD", path)));
            let outcome = finish(command);
            let what = format!("{hooks}, preloaded: {preload:?}");
            assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{what}: {}", outcome.stderr_text());
            let count = if hooks == "--hooks=none" { 0 } else { 2000 };
            assert_eq!(built.called("gmon.out", "once", "twice"), count, "{what}");
        }
    }
    // The parent preloads the library after the program has been planned: no profile is better than no hooks.
    let path = library.display();
    let script = format!("LD_PRELOAD= ./program; LD_PRELOAD={path} ./program");
    let shell = |prefix: &Path| {
        let mut command = Command::new(prefix);
        if prefix.ends_with("gprofinject") {
            command.args(["-v", "sh"]);
        }
        command.args(["-c", &script]).current_dir(preloaded.place.folder.path());
        finish(command)
    };
    let profiled = shell(tool::gprofinject().unwrap());
    assert_eq!(profiled.stdout_text(), shell(Path::new("sh")).stdout_text());
    view::apart(preloaded.place.folder.path()).unwrap();
    let files = preloaded.profiles("gmon.out.");
    let counts: Vec<u64> = files.iter().map(|file| preloaded.called(file, "once", "twice")).collect();
    assert_eq!(counts.iter().filter(|&&count| count == 2000).count(), 1, "{files:?} {counts:?}");
}

/// If nothing can be hooked, the other profiler works as it would without gprofinject.
fn without_our_profile_there_is_theirs() {
    let built = Built::new(&["known.c"], &["-pg"]);
    let mut command = Command::new("sh");
    let limited = "ulimit -v 30000; exec \"$@\"";
    command.args(["-c", limited, "sh"]).arg(tool::gprofinject().unwrap());
    command.args(["-o", "ours", "./program"]).current_dir(built.place.folder.path());
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert!(said.contains("nothing was hooked"), "{said}");
    assert_eq!(built.profiles("gmon.out"), ["elsewhere/gmon.out"], "{said}");
    assert_eq!(built.called_by_glibc("elsewhere/gmon.out", "twice"), 2000, "{said}");
}

fn static_programs_keep_their_profiler() {
    let built = Built::new(&["known.c"], &["-pg", "-static"]);
    let outcome = built.profiled(&["-o", "ours"], &[]);
    let said = outcome.stderr_text();
    assert!(said.contains("was built with -pg: libc writes its own gmon.out"), "{said}");
    assert_eq!(outcome.code(), 0);
    assert_eq!(built.called_by_glibc("elsewhere/gmon.out", "twice"), 2000);
}

fn libraries_with_counters() {
    for flags in [&["-pg"][..], &["-pg", "-mfentry"], &["-finstrument-functions"]] {
        let place = Place::new();
        let library = place.path("liblibrary.so");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source("library.c")).args(flags);
        compile::compile(gcc).unwrap();
        let path = library.display().to_string();
        for program in [&[][..], flags] {
            let built = Built::new(&["uses-library.c"], &[&[path.as_str()], program].concat());
            let alone = built.alone(&[]);
            for hooks in ["--hooks=both", "--hooks=entry"] {
                let outcome = built.profiled(&["-q", hooks], &[]);
                assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{flags:?} {program:?}");
                let caller = if hooks == "--hooks=both" { "thread" } else { "_start" };
                let count = built.called("gmon.out", caller, "callee");
                assert_eq!(count, 200_000, "{flags:?} {program:?} {hooks}: {:?}", built.calls("gmon.out"));
            }
        }
    }
}

/// Children, and the various ways to end a program.
fn children_and_ends() {
    for flags in [&["-pg"][..], &["-pg", "-mfentry"], &["-finstrument-functions"]] {
        let forks = Subject::with("forks", flags);
        for way in ["fork", "return", "thread", "signal"] {
            forks.check(&[way], &[[3, 7, 0], [5, 0, 0]]);
        }
        let ends = Subject::with("ends", flags);
        for way in ["return", "_exit", "abort", "9", "pthread_exit-alone"] {
            ends.check(&[way], &[[10, 0, 0]]);
        }
    }
    // glibc's timer would outlive the program and kill the next one.
    let ends = Subject::with("ends", &["-pg"]);
    let run = ends.profiled(&["-q"], &["exec"], &[]);
    assert_eq!((run.outcome.code(), run.calls(&run.path("gmon.out"))), (0, [10, 0, 0]), "{}", run.said);
}

/// No call of a counter is left, whether or not its function is hooked.
fn the_counters_are_taken_out() {
    for (flags, least) in
        [(&["-pg"][..], 6), (&["-pg", "-mfentry"], 6), (&["-finstrument-functions"], 18), (&[], 0)]
    {
        let built = Built::new(&["known.c"], flags);
        for hooks in ["--hooks=both", "--hooks=none"] {
            built.profiled(&["-q", hooks, "--stats=stats"], &[]);
            let stats = fs::read_to_string(built.place.path("stats")).unwrap();
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            let removed = stats.pointer("/functions/instructions_removed").and_then(|v| v.as_u64()).unwrap();
            assert!(if least == 0 { removed == 0 } else { removed >= least }, "{flags:?} {hooks}: {removed}");
        }
    }
}

/// A call or nops at the entry are room enough for every function, however small it is.
fn each_function_has_room() {
    for flags in BUILDS {
        let built = Built::new(&["known.c"], flags);
        let listed = built.place.run(&["--list", "./program"]).stdout_text();
        for name in ["twice", "once", "descending", "last", "at_exit", "main"] {
            let line = listed.lines().find(|line| line.split_whitespace().nth(2) == Some(name)).unwrap();
            assert_eq!(line.split_whitespace().nth(3), Some("jump"), "{flags:?}: {line}");
        }
    }
}
