//! Processes to which gprofinject cannot attach: it says why for each, and the process continues.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gprofinject_tests::place::{Place, complains};
use gprofinject_skip as skip;

gprofinject_tests::trials! {
    together:
        each_is_refused_with_a_reason_and_goes_on,
        a_stopped_process,
        programs_that_the_agent_cannot_be_put_into,
        what_is_no_process,
        another_users;
}

/// A program that does what its argument says, prints a line, and then counts lines until its input ends.
const SUBJECT: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
static void *wait_here(void *p) { printf("%ld\n", syscall(SYS_gettid)); for (;;) pause(); }
int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    int number = getpid();
    setlinebuf(stdout);
    if (!strcmp(way, "thread")) {
        pthread_t t;
        pthread_create(&t, 0, wait_here, 0);
    } else if (!strcmp(way, "zombie")) {
        if (!(number = fork())) _exit(0);
        siginfo_t info;
        waitid(P_PID, number, &info, WEXITED | WNOWAIT);
        printf("%d\n", number);
    } else {
        if (!strcmp(way, "traced")) {
            int parent = getpid(), ready[2];
            char c;
            pipe(ready);
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            if (!fork()) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (ptrace(PTRACE_SEIZE, parent, 0, 0)) _exit(1);
                write(ready[1], "", 1);
                for (;;) pause();
            }
            close(ready[1]);
            if (read(ready[0], &c, 1) != 1) return 98;
        }
        printf("%d\n", number);
    }
    if (!strcmp(way, "stopped")) raise(SIGSTOP);
    char line[16];
    int lines = 0;
    while (fgets(line, sizeof line, stdin)) { step(); lines++; }
    printf("%d lines\n", lines);
    exit(lines);
}
"#;

struct Subject {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    /// The process number as the program prints it.
    number: String,
}

impl Subject {
    fn new(place: &Place, way: &str) -> Subject {
        let mut child = Command::new(place.path("subject"))
            .arg(way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut number = String::new();
        stdout.read_line(&mut number).unwrap();
        Subject { child, stdout, number: number.trim().to_owned() }
    }

    /// Checks that the program still responds to its input.
    fn goes_on(mut self) {
        self.child.stdin.take().unwrap().write_all(b"a\nb\nc\n").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!((line.as_str(), self.child.wait().unwrap().code()), ("3 lines\n", Some(3)));
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(place: &Place, number: &str, about: &[&str]) {
    let outcome = place.run(&["--pid", number, "--duration", "0", "-o", "profile"]);
    for about in about {
        complains(&outcome, 125, about);
    }
    assert!(!place.path("profile").exists());
}

fn each_is_refused_with_a_reason_and_goes_on() {
    for (way, about) in [
        ("thread", &["is a thread of process", "attach to that"][..]),
        ("zombie", &["has ended (a zombie"]),
        ("traced", &["is traced already, by subject", "end that first"]),
    ] {
        let place = Place::new();
        place.c("subject", SUBJECT, &["-pthread"]);
        let subject = Subject::new(&place, way);
        refused(&place, &subject.number, about);
        subject.goes_on();
    }
}

fn a_stopped_process() {
    let place = Place::new();
    place.c("subject", SUBJECT, &["-pthread"]);
    let subject = Subject::new(&place, "stopped");
    let status = format!("/proc/{}/status", subject.number);
    while !fs::read_to_string(&status).unwrap().contains("State:\tT") {
        std::thread::sleep(Duration::from_millis(1));
    }
    refused(&place, &subject.number, &["is stopped", &format!("kill -CONT {}", subject.number)]);
    assert!(Command::new("kill").args(["-CONT", &subject.number]).status().unwrap().success());
    subject.goes_on();
}

fn programs_that_the_agent_cannot_be_put_into() {
    let place = Place::new();
    place.c("subject", SUBJECT, &["-pthread", "-static", "-pg"]);
    let subject = Subject::new(&place, "");
    refused(&place, &subject.number, &["static program with a profiler of its own"]);
    subject.goes_on();
    let narrow = ["-m32", "-pthread"];
    if skip::can_compile_for("programs_that_the_agent_cannot_be_put_into", "gcc", &narrow) {
        let place = Place::new();
        place.c("subject", SUBJECT, &narrow);
        let subject = Subject::new(&place, "");
        refused(&place, &subject.number, &["32-bit"]);
        subject.goes_on();
    }
}

fn what_is_no_process() {
    let place = Place::new();
    refused(&place, "4194305", &["there is no process 4194305"]);
    // The kernel's first thread, if it is visible.
    if !fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        return skip::skipped("what_is_no_process", "the kernel's threads are not seen in this container");
    }
    refused(&place, "2", &["2 is a process of the kernel"]);
}

/// A process of another user, as root and as other users see it.
fn another_users() {
    let place = Place::new();
    place.c("subject", SUBJECT, &["-pthread"]);
    if !skip::have("setpriv") || !Command::new("id").arg("-u").output().unwrap().stdout.starts_with(b"0\n") {
        return skip::skipped("another_users", "only root can try");
    }
    let subject = Subject::new(&place, "");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(gprofinject_tests::tool::gprofinject().unwrap()).args([
        "--pid",
        &subject.number,
        "--duration",
        "0",
    ]);
    command.current_dir("/");
    let outcome = gprofinject_tests::place::finish(command);
    if outcome.code() == 126 || outcome.code() == 127 || outcome.stderr_text().contains("setpriv") {
        return skip::skipped("another_users", "gprofinject's folder is closed to others");
    }
    complains(&outcome, 125, "is another user's (0)");
    subject.goes_on();
}
