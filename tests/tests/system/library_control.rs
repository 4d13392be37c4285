//! Profiles in progress of programs with libraries: paused and resumed, while libraries come and go.
//!
//! The program calls functions as often as it is told to, so the expected calls are known.

use std::fs;
use std::process::Stdio;

use gprofinject_tests::attached::Subject;
use gprofinject_tests::place::{Place, finish};

use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        a_pause_reaches_libraries;
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

/// Builds the program and its libraries.
fn built() -> Place {
    let place = Place::new();
    let library = ["-g", "-O2", "-fPIC", "-shared"];
    place.c("libfirst.so", LIBRARY, &library);
    place.c("liblate.so", LATE, &library);
    let first = place.path("libfirst.so");
    place.c("prog", PROGRAM, &["-g", "-O2", first.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    place
}

/// Makes the program carry out its commands.
fn tell(subject: &mut Subject, commands: &[&str]) {
    for command in commands {
        subject.tell(command);
        subject.hear("done\n");
    }
}

/// Asks the gprofinject that profiles a process for something.
fn ask(subject: &Subject, pid: &str, verb: &str) {
    let mut command = subject.place.command(&["--pid", pid, verb]);
    command.env("XDG_RUNTIME_DIR", subject.place.folder.path()).stdin(Stdio::null());
    let outcome = finish(command);
    assert_eq!(outcome.code(), 0, "{verb}: {}", outcome.stderr_text());
}

/// Pauses and resumes a profiled program, which has been told nothing yet.
fn controlled(subject: &mut Subject, pid: &str) {
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

fn a_pause_reaches_libraries() {
    for options in [&["--hooks=both"], &["--hooks=entry"]] {
        let place = built();
        let mut command = place.command(options);
        command.arg("./prog").env("XDG_RUNTIME_DIR", place.folder.path());
        let mut subject = Subject::start(place, command);
        let children = format!("/proc/{0}/task/{0}/children", subject.pid());
        let is_it = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "prog")
        };
        let found = fs::read_to_string(children).unwrap();
        let pid = found.split_whitespace().find(is_it).unwrap().to_owned();
        controlled(&mut subject, &pid);
        counted(&subject.place, options[0]);
        subject.finish();
    }
}
