//! Standalone programs with threads, children and executed programs; stripped ones; counts of lines; and installed programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::family::{Subject, WAYS_TO_EXECUTE, WAYS_TO_FORK};
use gprofinject_tests::place::{HELLO, LIMIT, Place, finish};
use gprofinject_tests::{compile, run, tool, view};

gprofinject_tests::trials! {
    together:
        each_way_to_fork,
        each_way_to_execute,
        many_children,
        into_static_programs_and_out_of_them,
        lines_are_counted,
        stripped_programs_that_unwind,
        seccomp_is_noticed,
        traced_programs_say_why_nothing_is_hooked,
        a_killed_injector_leaves_the_program_alone,
        installed_programs_do_what_they_do_alone;
}

/// The two ways to link statically.
const KINDS: [&str; 2] = ["-static", "-static-pie"];

fn each_way_to_fork() {
    for kind in KINDS {
        let forks = Subject::with("forks", &[kind]);
        for way in WAYS_TO_FORK {
            forks.check(&[way], &[[3, 7, 0], [5, 0, 0]]);
        }
        forks.check(&["vfork-exit"], &[[5, 7, 0]]);
        forks.check(&["clone-vm-vfork"], &[[8, 7, 0]]);
    }
}

fn each_way_to_execute() {
    for kind in KINDS {
        let execs = Subject::with("execs", &[kind]);
        let own = execs.name().to_owned();
        for way in WAYS_TO_EXECUTE {
            execs.check(&[way, &own, "again", "x"], &[[3, 0, 0], [0, 11, 0]]);
        }
        execs.check(&["bad-pointers", &own], &[[7, 0, 0]]);
    }
}

fn many_children() {
    let many = Subject::with("many", &["-static"]);
    let family = |children: u64| -> Vec<[u64; 3]> {
        [[1, 0, 0]].into_iter().chain((1..=children).map(|i| [i, 0, 0])).collect()
    };
    many.check(&["64", "64"], &family(64));
}

/// Returns the calls of a function, by gprof's flat profile.
fn calls(place: &Place, program: &str, profile: &str, function: &str) -> u64 {
    let mut gprof = Command::new("gprof");
    gprof.args(["-b", "-p", program, profile]).current_dir(place.folder.path());
    let text = run::run(gprof, None, LIMIT).unwrap().stdout_text();
    let row = text.lines().find(|line| line.split_whitespace().last() == Some(function));
    row.and_then(|row| row.split_whitespace().nth(3)?.parse().ok()).unwrap_or(0)
}

/// A shell, which is dynamic, executes a static program, which executes a shell, which executes it again.
fn into_static_programs_and_out_of_them() {
    const PROGRAM: &str = "#include <stdio.h>\n#include <stdlib.h>\n\
        __attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x + 1; }\n\
        int main(int argc, char **argv) { int t = 0; for (int i = 0; i < 100; i++) t = f(t); printf(\"%d\\n\", t); \
        fflush(stdout); if (argc > 1) return system(argv[1]); return 0; }\n";
    for kind in KINDS {
        let place = Place::new();
        place.c("inner", PROGRAM, &[kind]);
        let outcome = place.run(&["sh", "-c", "./inner ./inner; ./inner"]);
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n100\n100\n"), "{}", outcome.stderr_text());
        view::apart(place.folder.path()).unwrap();
        assert_eq!(calls(&place, "inner", "gmon.out.inner", "f"), 300, "{kind}: {}", outcome.stderr_text());
    }
}

fn lines_are_counted() {
    const PROGRAM: &str = "#include <pthread.h>\n\
        static int once(int x) { return x * 3; }\n\
        static void *run(void *p) {\n\
            long sum = 0;\n\
            for (int i = 0; i < 1000; i++)\n\
                sum += once(i);\n\
            return (void *)sum;\n\
        }\n\
        int main(void) {\n\
            pthread_t t[3];\n\
            for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, run, 0);\n\
            for (int i = 0; i < 3; i++) pthread_join(t[i], 0);\n\
            return 0;\n\
        }\n";
    let musl = if skip::have("musl-gcc") { &[("musl-gcc", "-static"), ("musl-gcc", "-pie")][..] } else { &[] };
    for &(compiler, kind) in KINDS.map(|kind| ("gcc", kind)).iter().chain(musl) {
        let place = Place::new();
        place.compile(compiler, "lines", PROGRAM, &[kind, "-g", "-O0", "-pthread"]).unwrap();
        let outcome = place.run(&["--count", "lines", "./lines"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let mut gmon = Command::new(tool::gmon().unwrap());
        gmon.args(["lines", "lines", "gmon.out"]).current_dir(place.folder.path());
        let text = run::run(gmon, None, LIMIT).unwrap().stdout_text();
        let row = text.lines().find(|line| line.contains("sum += once(i);"));
        assert_eq!(row.and_then(|row| row.split_whitespace().next()), Some("3000"), "{kind}: {text}");
    }
}

fn stripped_programs_that_unwind() {
    const PROGRAM: &str = "#include <stdio.h>\n\
        __attribute__((noinline)) int f(int n) { if (n == 0) throw 7; return f(n - 1) + 1; }\n\
        int main() { int caught = 0; for (int i = 0; i < 100; i++) try { f(i); } catch (int x) { caught += x; } \
        printf(\"%d\\n\", caught); }\n";
    if !skip::have("g++") {
        return skip::skipped("stripped_programs_that_unwind", "no g++");
    }
    for kind in KINDS {
        let place = Place::new();
        fs::write(place.path("unwinds.cc"), PROGRAM).unwrap();
        for (name, strip) in [("named", &[][..]), ("stripped", &["-s"])] {
            let mut command = Command::new("g++");
            command.args(["-O1", kind]).args(strip).arg("-o").arg(place.path(name)).arg(place.path("unwinds.cc"));
            compile::compile(command).unwrap();
            let outcome = place.run(&["--stats", "stats.json", &format!("./{name}")]);
            assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "700\n"), "{}", outcome.stderr_text());
            let stats: serde_json::Value = serde_json::from_slice(&fs::read(place.path("stats.json")).unwrap()).unwrap();
            let expected = if name == "named" { "both" } else { "entry" };
            assert_eq!(stats["hooks"], expected, "{kind}, {name}: {}", outcome.stderr_text());
            assert!(stats["calls"].as_u64().is_some_and(|calls| calls > 5000), "{kind}, {name}: {stats}");
        }
    }
}

/// In strict mode, the kernel kills a process for any other system call than read, write and exit.
fn seccomp_is_noticed() {
    const PROGRAM: &str = "#include <sys/prctl.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        __attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x + 1; }\n\
        __attribute__((noinline)) int g(int x) { asm volatile(\"\"); return x + 2; }\n\
        int main(void) { int t = f(0); prctl(22, 1); for (int i = 0; i < 1000; i++) t = g(f(t)); \
        write(1, \"done\\n\", 5); syscall(SYS_exit, t == 3001 ? 4 : 5); }\n";
    for kind in KINDS {
        let place = Place::new();
        place.c("strict", PROGRAM, &[kind]);
        let outcome = place.run(&["./strict"]);
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (4, "done\n"), "{kind}: {}", outcome.stderr_text());
        assert_eq!(calls(&place, "strict", "gmon.out", "f"), 1001, "{kind}");
    }
}

/// A process has one tracer at most.
fn traced_programs_say_why_nothing_is_hooked() {
    if !skip::have("strace") {
        return skip::skipped("traced_programs_say_why_nothing_is_hooked", "no strace");
    }
    let place = Place::new();
    place.c("static", HELLO, &["-static"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null"]).arg(tool::gprofinject().unwrap()).args(["--no-cache", "./static"]);
    command.current_dir(place.folder.path());
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{}", outcome.stderr_text());
    assert!(outcome.stderr_text().contains("cannot be traced"), "{}", outcome.stderr_text());
}

/// Whenever gprofinject is killed, the program runs to its end. Its output comes after gprofinject's end.
fn a_killed_injector_leaves_the_program_alone() {
    const PROGRAM: &str = "#include <fcntl.h>\n#include <unistd.h>\n\
        __attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x + 1; }\n\
        int main(void) { int t = 0; for (int i = 0; i < 100; i++) t = f(t); \
        if (t == 100) close(open(\"ran\", O_CREAT | O_WRONLY, 0600)); return 0; }\n";
    let place = Place::new();
    place.c("runs", PROGRAM, &["-static"]);
    let (mut started, mut ran) = (0, 0);
    // Up to half a second, because a busy machine needs long to plan.
    for delay in (0..45_u64).map(|n| n * n * 250) {
        let _ = fs::remove_file(place.path("ran"));
        let mut command = place.command(&["-q", "./runs"]);
        // The run folders stay, as after each kill.
        command.env("XDG_RUNTIME_DIR", place.folder.path());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(delay));
        let _ = child.kill();
        let was_killed = child.wait().unwrap().code().is_none();
        // The child that was to execute the program may never have been told to. Whatever has begun must end well.
        std::thread::sleep(std::time::Duration::from_millis(150));
        started += 1;
        ran += u32::from(place.path("ran").exists());
        assert!(was_killed || place.path("ran").exists(), "gprofinject has ended by itself, and the program has not run");
    }
    assert!(ran > 0 && started == 45, "{ran} of {started}");
}

/// Shells and tools of Debian's, which are stripped: each script prints and returns the same with hooks.
fn installed_programs_do_what_they_do_alone() {
    const SCRIPT: &str = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); x=$(echo $i | sed s/1/2/); done; echo $x; \
        (exit 3); echo $?; echo a b c | { read a b; echo $b; }; kill -9 $$";
    let mut found = 0;
    for (program, arguments) in
        [("/bin/busybox", &["sh", "-c", SCRIPT][..]), ("/bin/bash-static", &["--norc", "-c", SCRIPT]), ("/sbin/ldconfig", &["-p"])]
    {
        if !Path::new(program).exists() {
            skip::skipped("installed_programs_do_what_they_do_alone", &format!("no {program}"));
            continue;
        }
        found += 1;
        let mut alone = Command::new(program);
        alone.args(arguments);
        let alone = run::run(alone, None, LIMIT).unwrap();
        for hooks in ["--hooks=both", "--hooks=entry", "--count=blocks"] {
            let place = Place::new();
            let mut command = place.command(&["--stats", "stats.json", hooks, program]);
            command.args(arguments);
            let outcome = finish(command);
            let said = outcome.stderr_text();
            assert_eq!((outcome.code(), outcome.stdout_text()), (alone.code(), alone.stdout_text()), "{program} {hooks}: {said}");
            let stats: serde_json::Value = serde_json::from_slice(&fs::read(place.path("stats.json")).unwrap()).unwrap();
            assert!(stats["calls"].as_u64().is_some_and(|calls| calls > 1000), "{program} {hooks}: {said}");
        }
    }
    if found == 0 {
        skip::skipped("installed_programs_do_what_they_do_alone", "no static program is installed");
    }
}
