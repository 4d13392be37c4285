//! Tests that need more than one source file: exceptions across shared libraries, libraries that are loaded
//! and unloaded, other unwinders, and what the agent reports about its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::directives::Arc;
use gprofinject_tests::elf::Program;
use gprofinject_tests::tool::{self, Hooks};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, expect, gprofdata, run};

gprofinject_tests::trials! {
    together:
        exceptions_cross_libraries_that_come_and_go,
        libunwind_walks;
    alone:
        threads_leave_nothing_behind;
}

const LIMIT: Duration = Duration::from_secs(60);

fn compile(compiler: &str, folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let extension = if compiler == "gcc" { "c" } else { "cc" };
    let file = folder.join(format!("{name}.{extension}"));
    fs::write(&file, source).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-O2", "-w", "-pthread", "-I"]).arg(tool::folder().join("programs"));
    command.arg("-o").arg(folder.join(name)).arg(&file).args(flags);
    compile::compile(command).unwrap();
    folder.join(name)
}

/// Runs a program alone and with both kinds of hooks: the same output and status, and these arcs into the
/// functions that they name. A caller of `None` is `_start` with entry hooks.
fn the_same_with_hooks(folder: &Path, program: &Path, arcs: &[(&str, &str, u64, bool)]) {
    let mut alone = Command::new(program);
    alone.current_dir(folder);
    let alone = run::run(alone, None, LIMIT).unwrap();
    assert!(!alone.timed_out && alone.code() == 0, "{}{}", alone.stdout_text(), alone.stderr_text());
    for hooks in Hooks::ALL {
        let gmon = folder.join("gmon.out");
        let _ = fs::remove_file(&gmon);
        let mut command = tool::command(&["-q", hooks.option()], &gmon, program, &[]).unwrap();
        command.current_dir(folder);
        let outcome = run::run(command, None, LIMIT).unwrap();
        let what = format!("{hooks:?}: {}", outcome.stderr_text());
        assert_eq!((outcome.code(), outcome.stdout_text()), (0, alone.stdout_text()), "{what}");
        assert_eq!(outcome.stderr_text(), alone.stderr_text(), "{hooks:?}");
        let expected: Vec<Arc> = arcs
            .iter()
            .map(|&(caller, callee, count, called_back)| {
                let caller = if called_back && hooks == Hooks::Entry { "_start" } else { caller };
                Arc { caller: caller.into(), callee: callee.into(), count }
            })
            .collect();
        let profile = gprofdata::read(&gmon).unwrap();
        let differences = expect::compare(&expected, true, &profile, &Program::read(program).unwrap());
        assert!(differences.is_empty(), "{hooks:?}: {differences:#?}");
    }
}

/// An exception thrown by a library and caught in the program, and one thrown by the program through the
/// library's frames.
const THROWING_LIBRARY: &str = r#"
#include <stdexcept>
struct Guard { int *n; ~Guard() { ++*n; } };
extern "C" int lib_throw(int x) { if (x) throw std::runtime_error("lib"); return 0; }
extern "C" int lib_call(int (*f)(int), int x, int *cleaned) { Guard g{cleaned}; return f(x) + 1; }
extern "C" int lib_catch(int (*f)(int), int x) { try { return f(x); } catch (int y) { return -y; } }
"#;
const THROWING_PROGRAM: &str = r#"
#include "test.h"
#include <dlfcn.h>
#include <stdexcept>
#include <string.h>
static int (*lib_throw)(int), (*lib_call)(int (*)(int), int, int *), (*lib_catch)(int (*)(int), int);
static int cleaned;
extern "C" {
OPAQUE int caught(int x) { BARRIER(); return x; }
OPAQUE int throws(int x) { throw x; }
OPAQUE int passes(int x) { int r = lib_throw(x); BARRIER(); return r; }
OPAQUE int attempt() {
    try { lib_call(passes, 1, &cleaned); } catch (const std::exception &e) { return caught(strlen(e.what())); }
    return 0;
}
OPAQUE int attempt_own() { try { lib_call(throws, 7, &cleaned); } catch (int x) { return caught(x); } return 0; }
OPAQUE int theirs() { int r = lib_catch(throws, 5); BARRIER(); return r; }
}
int main() {
    for (int round = 0; round < 10; round++) {
        void *lib = dlopen("./lib.so", RTLD_NOW);
        CHECK(lib);
        *(void **)&lib_throw = dlsym(lib, "lib_throw");
        *(void **)&lib_call = dlsym(lib, "lib_call");
        *(void **)&lib_catch = dlsym(lib, "lib_catch");
        for (int i = 0; i < 10; i++) CHECK(attempt() == 3 && attempt_own() == 7 && theirs() == -5);
        dlclose(lib);
    }
    CHECK(cleaned == 200);
    printf("ok\n");
}
"#;

fn exceptions_cross_libraries_that_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::rename(compile("g++", folder, "lib", THROWING_LIBRARY, &["-shared", "-fPIC"]), folder.join("lib.so"))
        .unwrap();
    let arcs = [
        ("main", "attempt", 100, false),
        ("main", "attempt_own", 100, false),
        ("main", "theirs", 100, false),
        ("attempt", "passes", 100, true),
        ("attempt", "caught", 100, false),
        ("attempt_own", "caught", 100, false),
    ];
    for (name, flags) in [("dynamic", &[][..]), ("static-libgcc", &["-static-libgcc"])] {
        let program = compile("g++", folder, name, THROWING_PROGRAM, &[flags, &["-ldl"]].concat());
        the_same_with_hooks(folder, &program, &arcs);
    }
}

/// libunwind's own backtraces, which contain thunks with exit hooks (see docs/internals/conformance.md), and also all
/// frames.
const LIBUNWIND: &str = r#"
#define UNW_LOCAL_ONLY
#include "test.h"
#include <libunwind.h>
#include <signal.h>
#include <sys/time.h>
static volatile int walks;
OPAQUE int walk(void) {
    void *frames[100];
    unw_context_t here;
    unw_cursor_t cursor;
    int n = 0;
    unw_getcontext(&here);
    unw_init_local(&cursor, &here);
    do n++; while (n < 100 && unw_step(&cursor) > 0);
    walks++;
    return n + unw_backtrace(frames, 100);
}
OPAQUE void tick(int s) { walk(); }
OPAQUE int down(int n) { int r = n ? down(n - 1) : walk(); BARRIER(); return r; }
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE long two(long x) { long r = one(x); BARRIER(); return r; }
int main(void) {
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    long r = 0;
    CHECK(down(20) >= 2 * 22);
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 3000000; i++) r = two(r);
    setitimer(ITIMER_REAL, &never, 0);
    CHECK(r == 3000000 && walks > 1);
    printf("ok\n");
    return 0;
}
"#;

fn libunwind_walks() {
    let places = ["/usr/include/libunwind.h", "/usr/include/x86_64-linux-gnu/libunwind.h"];
    if !places.iter().any(|place| Path::new(place).is_file()) {
        return skip::skipped("libunwind_walks", "no libunwind.h");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("gcc", folder.path(), "walks", LIBUNWIND, &["-fexceptions", "-lunwind"]);
    let arcs = [("down", "down", 20, false), ("main", "down", 1, false), ("main", "two", 3_000_000, false)];
    the_same_with_hooks(folder.path(), &program, &arcs);
}

/// A thousand threads, one after the other and in groups, whose memory is used again.
const SHORT_THREADS: &str = r#"
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
OPAQUE long one(long x) { BARRIER(); return x + 1; }
OPAQUE void *worker(void *x) { long r = one((long)x); BARRIER(); return (void *)r; }
int main(int argc, char **argv) {
    for (int i = 0; i < atoi(argv[1]); i++) {
        pthread_t t[4];
        for (long n = 0; n < 4; n++) CHECK(!pthread_create(&t[n], 0, worker, (void *)n));
        for (long n = 0; n < 4; n++) CHECK(!pthread_join(t[n], 0));
    }
    return 0;
}
"#;

fn threads_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let program = compile("gcc", folder, "threads", SHORT_THREADS, &[]);
    for hooks in Hooks::ALL {
        let used = |waves: u64| {
            let (gmon, stats) = (folder.join("gmon.out"), folder.join("stats.json"));
            let name = stats.display().to_string();
            let options = ["-q", hooks.option(), "--stats", &name];
            let command = tool::command(&options, &gmon, &program, &[waves.to_string()]).unwrap();
            let outcome = run::run(command, None, LIMIT).unwrap();
            assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
            let expected = Arc { caller: "worker".into(), callee: "one".into(), count: 4 * waves };
            let profile = gprofdata::read(&gmon).unwrap();
            let differences = expect::compare(&[expected], true, &profile, &Program::read(&program).unwrap());
            assert!(differences.is_empty(), "{hooks:?}: {differences:#?}");
            let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
            assert_eq!(stats["lost"]["calls"], 0, "{stats}");
            assert_eq!(stats["threads"], 4 * waves + 1, "{stats}");
            stats["memory"]["region_bytes"].as_u64().unwrap()
        };
        // A joined thread may still be ending in the kernel, so sometimes another thread's counters cannot be
        // used again. On a busy machine that happens more often in one run than in another.
        let few = used(250);
        let many = (0..3).map(|_| used(1000)).min().unwrap();
        assert!(many <= 2 * few, "{hooks:?}: {few} bytes for 1000 threads, {many} for 4000");
    }
}
