//! The calls with which the trace of a forked child begins: those that were open at the fork, whatever the parent has done until the child
//! has begun.

use std::collections::BTreeMap;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::traced::{Line, lines, shown};

gprofinject_tests::trials! {
    together:
        a_childs_calls_are_those_at_the_fork,
        also_in_static_programs,
        handlers_that_come_before_the_agents;
}

/// The number of children.
const CHILDREN: usize = 20;

/// Forks by a way that its argument names. The parent goes on at once, within other calls and at other depths than those within which
/// it has forked.
const FORKING: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define F __attribute__((noinline)) static
pid_t _Fork(void);
F int leaf(int n) { __asm__ volatile("" : "+r"(n)); return n; }
F int busy(int n) { int s = n > 0 ? busy(n - 1) : leaf(n); __asm__ volatile("" : "+r"(s)); return s; }
F void own(void) { leaf(1); }
static int child(void *arg) { own(); _exit(arg != NULL); }
static const char *how;
F void born(void) {
    static char stack[1 << 18];
    pid_t pid = -1;
    if (!strcmp(how, "fork")) pid = fork();
    if (!strcmp(how, "_Fork")) pid = _Fork();
    if (!strcmp(how, "syscall")) pid = syscall(SYS_fork);
    if (!strcmp(how, "clone")) pid = clone(child, stack + sizeof stack, SIGCHLD, NULL);
    if (pid < 0) abort();
    if (pid == 0) child(NULL);
}
F void inner(int n) { leaf(n); born(); leaf(n); }
F void outer(int n) { if (n > 0) outer(n - 1); else inner(n); leaf(n); }
int main(int argc, char **argv) {
    how = argv[1];
    for (int i = 0; i < CHILDREN; i++) {
        outer(i % 5);
        for (int j = 0; j < 200; j++) busy(j % 30);
        int status;
        if (wait(&status) < 0 || status != 0) return 1;
    }
    return 0;
}
"#;

/// The program's functions within which it forks. In a static one, those of the C library are hooked too.
const AROUND: [&str; 5] = ["main", "outer", "inner", "born", "busy"];

/// Asserts that each child begins within the calls of its source, and has made its own.
fn check(place: &Place, what: &str) {
    let text = shown(place, "trace", &["--fields", "tid"]);
    let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for Line { tid, text, .. } in lines(&text).into_iter().filter(|line| !line.text.starts_with('}')) {
        all.entry(tid).or_default().push(text);
    }
    // Children come in the order of their births, but their numbers may begin anew.
    let mut depths: Vec<usize> = Vec::new();
    for calls in all.values() {
        let begun = |text: &String| text.split('(').next().unwrap().to_owned();
        let (inherited, own): (Vec<&String>, Vec<&String>) =
            calls.iter().partition(|text| text.contains("open since before the fork"));
        if inherited.is_empty() {
            // The parent.
            continue;
        }
        let inherited: Vec<String> =
            inherited.into_iter().map(begun).filter(|name| AROUND.contains(&name.as_str())).collect();
        let outer = inherited.iter().filter(|name| *name == "outer").count();
        let mut expected = vec!["main"];
        expected.extend(vec!["outer"; outer]);
        expected.extend(["inner", "born"]);
        assert_eq!(inherited, expected, "{what}");
        let own: Vec<String> = own.into_iter().map(begun).filter(|name| name == "own" || name == "leaf").collect();
        assert_eq!(own, ["own", "leaf"], "{what}");
        depths.push(outer);
    }
    depths.sort_unstable();
    let expected: Vec<usize> = (1..=5).flat_map(|depth| vec![depth; CHILDREN / 5]).collect();
    assert_eq!(depths, expected, "{what}");
}

fn compile(place: &Place, flags: &[&str]) {
    let number = format!("-DCHILDREN={CHILDREN}");
    place.c("prog", FORKING, &[&["-O1", "-fno-optimize-sibling-calls", &number], flags].concat());
}

fn run(place: &Place, how: &str) {
    let outcome = place.run(&["-q", "--rate=0", "--libs=none", "--trace=trace", "./prog", how]);
    assert_eq!(outcome.code(), 0, "{how}: {}", outcome.stderr_text());
    check(place, how);
}

fn a_childs_calls_are_those_at_the_fork() {
    let place = Place::new();
    compile(&place, &[]);
    for how in ["fork", "_Fork", "syscall", "clone"] {
        run(&place, how);
    }
}

fn also_in_static_programs() {
    if !skip::can_compile_for("traced: forks of static programs", "gcc", &["-static"]) {
        return;
    }
    let place = Place::new();
    compile(&place, &["-static"]);
    for how in ["fork", "syscall", "clone"] {
        run(&place, how);
    }
}

/// The constructors of libraries run before that of the agent, so that their fork handlers run before the agent's.
const HANDLER: &str = r#"
#include <pthread.h>
__attribute__((noinline)) void handled(int n) { __asm__ volatile("" : "+r"(n)); }
static void in_child(void) { for (int i = 0; i < 7; i++) handled(i); }
__attribute__((constructor)) static void registers(void) { pthread_atfork(NULL, NULL, in_child); }
"#;

const FORKS: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
void handled(int n);
int main(void) {
    handled(0);
    for (int i = 0; i < 5; i++) {
        int status;
        if (fork() == 0) _exit(0);
        if (wait(&status) < 0 || status != 0) return 1;
    }
    return 0;
}
"#;

fn handlers_that_come_before_the_agents() {
    let place = Place::new();
    let library = place.c("libhandler.so", HANDLER, &["-O1", "-shared", "-fPIC"]);
    place.c("prog", FORKS, &["-O1", library.to_str().unwrap()]);
    let outcome = place.run(&["--rate=0", "--trace=trace", "./prog"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(!outcome.stderr_text().contains("not in the trace"), "{}", outcome.stderr_text());
    let text = shown(&place, "trace", &["--fields", "tid"]);
    let mut calls: BTreeMap<u32, usize> = BTreeMap::new();
    for Line { tid, .. } in lines(&text).into_iter().filter(|line| line.text.starts_with("handled(")) {
        *calls.entry(tid).or_default() += 1;
    }
    let mut calls: Vec<usize> = calls.into_values().collect();
    calls.sort_unstable();
    assert_eq!(calls, [1, 7, 7, 7, 7, 7]);
}
