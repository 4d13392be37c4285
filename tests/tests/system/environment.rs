//! What a program finds in its environment: what the user has put there, in the same order, in the array as in /proc/self/environ,
//! whatever gprofinject needs to get in.

use std::fs;
use std::process::Command;

use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        the_environment_is_as_alone,
        a_full_environment_is_no_obstacle;
}

const MODES: [&str; 3] = ["--hooks=both", "--hooks=entry", "--times"];

/// Prints its environment in three ways, and executes itself with others.
const SHOW: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
__attribute__((noinline)) int work(int x) { __asm__ volatile(""); return x + 1; }
static void show(const char *what) {
    static char bytes[1 << 20];
    printf("%s:\n", what);
    for (char **entry = environ; *entry; entry++) printf("[%.200s]\n", *entry);
    int file = open("/proc/self/environ", O_RDONLY), n = read(file, bytes, sizeof bytes);
    close(file);
    for (int i = 0; i < n; i++) putchar(bytes[i] ? bytes[i] : '|');
    char *preload = getenv("LD_PRELOAD"), *run = getenv("GPROFINJECT_RUN");
    printf("\n%d %s %s\n", n, preload ? preload : "-", run ? run : "-");
    fflush(stdout);
}
static void execute(char *self, char *name, char **environment) {
    if (!fork()) {
        execve(self, (char *[]){self, name, 0}, environment);
        perror("execve");
        _exit(9);
    }
    wait(0);
}
int main(int count, char **arguments) {
    for (int i = 0; i < 7; i++) work(i);
    show(arguments[1]);
    if (count > 3) {
        /* The kernel takes 128 KiB of arguments and environment at least; the program finds out what fits. */
        static char a[100000], b[40000];
        memset(a, 'a', sizeof a - 1);
        setrlimit(RLIMIT_STACK, &(struct rlimit){256 << 10, 256 << 10});
        for (int n = 31200; n > 30000; n -= 16) {
            memset(b, 'b', n);
            b[n] = 0;
            execve(*arguments, (char *[]){*arguments, "full", 0}, (char *[]){a, b, 0});
        }
        return 9;
    }
    if (count > 2) {
        if (!fork()) { show("child"); return 0; }
        wait(0);
        execute(*arguments, "empty", (char *[]){0});
        execute(*arguments, "odd", (char *[]){"X=1", "LD_PRELOAD=", "GPROFINJECT_RUN=/a/b", "LD_PRELOAD=libm.so.6", "Y", 0});
        execute(*arguments, "same", environ);
        if (!fork()) { execl("/bin/sh", "sh", "-c", "exec \"$0\" shell", *arguments, (char *)0); _exit(9); }
        wait(0);
    }
    return 5;
}
"#;

/// Checks that the program prints what it prints alone, and that this many calls were counted in its processes.
fn is_as_alone(place: &Place, environment: &[(&str, &str)], arguments: &[&str], work: u64) {
    let program = place.path("show");
    let prepared = |mut command: Command| {
        command.env_clear().envs(environment.iter().copied()).current_dir(place.folder.path());
        command
    };
    let mut alone = Command::new(&program);
    alone.args(arguments);
    let alone = finish(prepared(alone));
    assert_eq!(alone.code(), 5, "{}", alone.stderr_text());
    for mode in MODES {
        let profile = place.path("gmon.out");
        let _ = fs::remove_file(&profile);
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let ours = finish(prepared(tool::command(&["-q", mode], &profile, &program, &arguments).unwrap()));
        let what = format!("{mode} {:?} {}", environment.first(), ours.stderr_text());
        assert_eq!((ours.code(), ours.stdout_text()), (5, alone.stdout_text()), "{what}");
        let functions = Program::read(&program).unwrap();
        let calls = gprofdata::read(&profile).unwrap().arcs;
        let calls = calls.iter().filter(|((_, callee), _)| functions.label(*callee) == "work");
        assert_eq!(calls.map(|(_, count)| count).sum::<u64>(), work, "{what}");
    }
}

fn the_environment_is_as_alone() {
    let place = Place::new();
    place.c("show", SHOW, &[]);
    let environments: [&[(&str, &str)]; 4] = [
        &[],
        &[("A", "1"), ("PATH", "/usr/bin:/bin")],
        &[("A", "1"), ("GPROFINJECT_RUN", "x"), ("GPROFINJECT_LD_PRELOAD", "libm.so.6"), ("LD_PRELOAD", "libm.so.6"), ("Z", "")],
        &[("GPROFINJECT_RUN", "/tmp/x/0"), ("LD_PRELOAD", "")],
    ];
    for environment in environments {
        is_as_alone(&place, environment, &["first", "more"], 5 * 7);
    }
}

/// Neither gprofinject nor a followed process finds room for its own variables: the program runs without a profile.
fn a_full_environment_is_no_obstacle() {
    const LONGEST: usize = 32 * 4096 - 1;
    let place = Place::new();
    let program = place.c("show", SHOW, &[]);
    is_as_alone(&place, &[("A", "1")], &["first", "more", "most"], 7);
    // The kernel takes no longer string, and ours would have this one inside.
    let long = "x".repeat(LONGEST - "LD_PRELOAD=".len());
    for first in [&program, std::path::Path::new("/usr/bin/env")] {
        let mut command = Command::new(tool::gprofinject().unwrap());
        let profile = place.path("gmon.out");
        command.args(["-q", "--no-cache", "-o"]).arg(&profile).arg(first);
        if first != program {
            command.arg(format!("LD_PRELOAD={long}")).arg(&program);
        } else {
            command.env("LD_PRELOAD", &long);
        }
        let outcome = finish({
            command.arg("first");
            command
        });
        assert_eq!(outcome.code(), 5, "{}", outcome.stderr_text());
        assert!(outcome.stdout_text().starts_with("first:"), "{}", outcome.stdout_text());
    }
}
