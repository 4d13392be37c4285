//! Profiles in progress of programs with libraries: paused and resumed, while libraries come and go.
//!
//! The program calls functions as often as it is told to, so the expected calls are known.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject;
use gprofinject_tests::place::{Place, finish};

use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        a_pause_reaches_libraries,
        libraries_of_a_running_process,
        libraries_of_another_users_process,
        the_c_library_of_a_running_process,
        libraries_of_a_run_that_was_killed;
    // On a busy machine, an attempt to attach may never meet a moment when no thread loads a library.
    alone:
        libraries_that_come_and_go_in_a_running_process;
}

const LIBRARY: &str = r"
static int sum;
__attribute__((noinline)) int leaf(int x) { return sum += x; }
int middle(int x) { int s = 0; for (int i = 0; i < 3; i++) s += leaf(x + i); return s; }
";
const LATE: &str = "static int sum; int late(int x) { return sum += x; }";
/// Reads lines with one letter and a number.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int middle(int);
__attribute__((noinline)) int own(int x) { return middle(x) + 1; }
int main(void) {
    char line[100];
    void *handle = NULL;
    int (*late)(int) = NULL;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int n = atoi(line + 1);
        switch (line[0]) {
        case 'c': for (int i = 0; i < n; i++) own(i); break;
        case 'o': handle = dlopen("./liblate.so", RTLD_NOW); late = (int (*)(int))dlsym(handle, "late"); break;
        case 'l': for (int i = 0; i < n; i++) late(i); break;
        case 's': dlclose(handle); break;
        }
        puts("done");
        fflush(stdout);
    }
    return 3;
}
"#;

/// Loads and unloads libraries in threads until there is a line of input.
const PLUGINS_IN_THREADS: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
static atomic_int over;
static void *work(void *name) {
    while (!over) {
        void *handle = dlopen(name, RTLD_NOW);
        if (!handle) { puts(dlerror()); exit(4); }
        int (*middle)(int) = (int (*)(int))dlsym(handle, "middle");
        for (int i = 0; i < 50; i++) middle(i);
        dlclose(handle);
    }
    return NULL;
}
int main(void) {
    char line[100], *names[] = {"./libplugin0.so", "./libplugin1.so", "./libplugin2.so"};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, names[i]);
    puts("ready");
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return 3;
}
"#;

/// Builds the program and its libraries.
pub(crate) fn built(compiler: &str) -> Place {
    let place = Place::new();
    let library = ["-g", "-O2", "-fPIC", "-shared"];
    place.compile(compiler, "libfirst.so", LIBRARY, &library).unwrap();
    place.compile(compiler, "liblate.so", LATE, &library).unwrap();
    let first = place.path("libfirst.so");
    let flags = ["-g", "-O2", first.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    place.compile(compiler, "prog", PROGRAM, &flags).unwrap();
    place
}

/// Makes the program carry out its commands.
pub(crate) fn tell(subject: &mut Subject, commands: &[&str]) {
    for command in commands {
        subject.tell(command);
        subject.hear("done\n");
    }
}

/// Returns the number of the process `prog` that a gprofinject has started.
pub(crate) fn profiled(gprofinject: &Subject) -> String {
    let children = format!("/proc/{0}/task/{0}/children", gprofinject.pid());
    let is_it =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "prog");
    let found = fs::read_to_string(children).unwrap();
    found.split_whitespace().find(is_it).unwrap().to_owned()
}

/// Asks the gprofinject that profiles a process for something.
pub(crate) fn ask(subject: &Subject, pid: &str, verb: &str) {
    let mut command = subject.place.command(&["--pid", pid, verb]);
    command.env("XDG_RUNTIME_DIR", subject.place.folder.path()).stdin(Stdio::null());
    let outcome = finish(command);
    assert_eq!(outcome.code(), 0, "{verb}: {}", outcome.stderr_text());
}

/// Pauses and resumes a profiled program, which has been told nothing yet.
pub(crate) fn controlled(subject: &mut Subject, pid: &str) {
    tell(subject, &["c 100"]);
    ask(subject, pid, "--pause");
    // One library is loaded during the pause and another time stays loaded over its end.
    tell(subject, &["c 1000", "o 0", "l 5000"]);
    ask(subject, pid, "--resume");
    tell(subject, &["c 10", "l 3"]);
    ask(subject, pid, "--pause");
    // It is unloaded, and loaded once more.
    tell(subject, &["s 0", "o 0", "l 500"]);
    ask(subject, pid, "--resume");
    tell(subject, &["l 2", "s 0", "o 0", "l 1"]);
    ask(subject, pid, "--dump");
}

fn counted(place: &Place, what: &str) {
    let expected =
        [("main", "own", 110), ("own", "middle", 110), ("middle", "leaf", 330), ("main", "late", 6)];
    has(&whole(place), &expected, what);
}

/// Starts the program alone.
pub(crate) fn alone(compiler: &str) -> Subject {
    let place = built(compiler);
    let mut command = Command::new(place.path("prog"));
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    Subject::start(place, command)
}

fn a_pause_reaches_libraries() {
    for options in [&["--hooks=both"], &["--hooks=entry"]] {
        let place = built("gcc");
        let mut command = place.command(options);
        command.arg("./prog").env("XDG_RUNTIME_DIR", place.folder.path());
        let mut subject = Subject::start(place, command);
        let pid = profiled(&subject);
        controlled(&mut subject, &pid);
        counted(&subject.place, options[0]);
        subject.finish();
    }
}

/// gprofinject attaches twice, and leaves the process as it was each time.
fn libraries_of_a_running_process() {
    libraries_come_and_go("gcc");
}

/// The same, for a program of any compiler.
pub(crate) fn libraries_come_and_go(compiler: &str) {
    for options in [&["--hooks=both"], &["--hooks=entry"]] {
        let mut subject = alone(compiler);
        tell(&mut subject, &["c 7", "o 0", "l 9", "s 0"]);
        let before = subject.code();
        for _ in 0..2 {
            let attached = subject.attached(options);
            let pid = subject.pid().to_string();
            controlled(&mut subject, &pid);
            counted(&subject.place, options[0]);
            tell(&mut subject, &["c 5", "s 0"]);
            let (code, said) = attached.end("-INT");
            assert_eq!(code, Some(0), "{said}");
            let calls = [("own", "middle", 115), ("middle", "leaf", 345), ("main", "late", 6)];
            has(&whole(&subject.place), &calls, &said);
            assert_eq!(subject.changed(&before), None, "{said}");
            assert!(subject.is_clean(), "{said}");
        }
        tell(&mut subject, &["c 5", "o 0", "l 5"]);
        subject.finish();
    }
}

/// A process of another user cannot enter root's run folder. It asks over a socket without a place in a folder, which takes
/// none of its descriptors.
fn libraries_of_another_users_process() {
    if !rustix::process::geteuid().is_root() {
        skip::skipped("library_control::libraries_of_another_users_process", "only root can attach to it");
        return;
    }
    libraries_of_another_user("gcc");
}

pub(crate) fn libraries_of_another_user(compiler: &str) {
    const USER: u32 = 65534;
    for options in [&["--hooks=both"], &["--hooks=entry"]] {
        let place = built(compiler);
        fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(place.path("prog"));
        command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX").uid(USER).gid(USER);
        let mut subject = Subject::start(place, command);
        let before = subject.code();
        let open = |subject: &Subject| fs::read_dir(format!("/proc/{}/fd", subject.pid())).unwrap().count();
        let descriptors = open(&subject);
        let attached = subject.attached(options);
        tell(&mut subject, &["c 7", "o 0", "l 9", "s 0", "o 0", "l 2", "c 3"]);
        assert_eq!(open(&subject), descriptors);
        let (code, said) = attached.end("-INT");
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("not hooked"), "{said}");
        has(&whole(&subject.place), &[("own", "middle", 10), ("middle", "leaf", 30), ("main", "late", 11)], &said);
        tell(&mut subject, &["s 0"]);
        assert_eq!(subject.changed(&before), None, "{said}");
        assert!(subject.is_clean(), "{said}");
        tell(&mut subject, &["c 5", "o 0", "l 5"]);
        subject.finish();
    }
}

/// With `--libs all`, the functions are hooked in which the agent itself has changed instructions.
fn the_c_library_of_a_running_process() {
    let mut subject = alone("gcc");
    tell(&mut subject, &["c 7"]);
    let before = subject.code();
    let attached = subject.attached(&["--libs=all", "--hooks=both"]);
    tell(&mut subject, &["c 100", "o 0", "l 3"]);
    let (code, said) = attached.end("-INT");
    assert_eq!(code, Some(0), "{said}");
    let calls = whole(&subject.place);
    has(&calls, &[("own", "middle", 100), ("main", "late", 3)], &said);
    // The program prints after each of three commands.
    let printed: u64 = calls.iter().filter(|((_, to), _)| to == "puts" || to == "_IO_puts").map(|(_, count)| count).sum();
    assert_eq!(printed, 3, "{said}: {calls:#?}");
    for (file, bytes) in before {
        assert_eq!(subject.code().get(&file), Some(&bytes), "{file}: {said}");
    }
    assert!(subject.is_clean(), "{said}");
    tell(&mut subject, &["c 5", "l 5", "s 0"]);
    subject.finish();
}

/// Another gprofinject, which has not planned the libraries, takes their hooks out.
fn libraries_of_a_run_that_was_killed() {
    let mut subject = alone("gcc");
    tell(&mut subject, &["c 7"]);
    let before = subject.code();
    let attached = subject.attached(&["--hooks=both"]);
    tell(&mut subject, &["c 10", "o 0", "l 3"]);
    let (_, said) = attached.end("-KILL");
    tell(&mut subject, &["c 10", "l 3", "s 0"]);
    let outcome = subject.attach(&["--duration=0", "--hooks=none"]);
    assert_eq!(outcome.code(), 0, "{said}{}", outcome.stderr_text());
    assert_eq!(subject.changed(&before), None, "{}", outcome.stderr_text());
    tell(&mut subject, &["c 10", "o 0", "l 3"]);
    subject.finish();
}

/// Threads load and unload libraries all the time while gprofinject attaches and leaves again and again.
fn libraries_that_come_and_go_in_a_running_process() {
    const PLUGINS: usize = 3;
    let place = Place::new();
    for n in 0..PLUGINS {
        place.c(&format!("libplugin{n}.so"), LIBRARY, &["-g", "-O2", "-fPIC", "-shared"]);
    }
    place.c("prog", PLUGINS_IN_THREADS, &["-g", "-O2", "-pthread"]);
    let mut command = Command::new(place.path("prog"));
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    let mut subject = Subject::start(place, command);
    let mut counted = 0;
    for round in 0..8 {
        let hooks = ["--hooks=both", "--hooks=entry"][round % 2];
        let libs = ["--libs=auto", "--libs=all"][round / 2 % 2];
        let outcome = subject.attach(&[hooks, libs, "--duration=0.2"]);
        assert_eq!(outcome.code(), 0, "{hooks} {libs}: {}", outcome.stderr_text());
        assert!(subject.is_clean(), "{hooks} {libs}: {}", outcome.stderr_text());
        let calls = whole(&subject.place);
        let inner: u64 = calls.iter().filter(|((_, to), _)| to == "leaf").map(|(_, count)| count).sum();
        let outer: u64 = calls.iter().filter(|((_, to), _)| to == "middle").map(|(_, count)| count).sum();
        // Each thread may have been in the middle of one call when the hooks were written and when they were removed.
        assert!(inner.abs_diff(3 * outer) <= 12 * PLUGINS as u64, "{inner} {outer}");
        counted += inner;
    }
    // On a busy machine, no plugin may be loaded again within the time of a round.
    assert!(counted > 0);
    subject.tell("end");
    subject.finish();
}
