//! However a program ends, its status is its own, and its profile is written.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_tests::family::Subject;
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        each_way_to_end,
        an_exec_ends_a_program,
        killed_in_the_middle_of_counting,
        keys_of_a_terminal;
}

fn each_way_to_end() {
    let ends = Subject::new("ends");
    for way in ["exit", "return", "_exit", "syscall", "abort", "trap", "segv", "pipe", "pthread_exit-alone"] {
        ends.check(&[way], &[[10, 0, 0]]);
    }
    for signal in ["1", "2", "6", "9", "11", "13", "14", "15"] {
        ends.check(&[signal], &[[10, 0, 0]]);
    }
    ends.check(&["atexit"], &[[10, 2, 0]]);
    ends.check(&["quick_exit"], &[[10, 2, 0]]);
    ends.check(&["pthread_exit"], &[[15, 0, 0]]);
}

/// The executed program has a profile of its own if it can be followed.
fn an_exec_ends_a_program() {
    let ends = Subject::new("ends");
    for way in ["exec", "exec-thread"] {
        for mode in ["--hooks=both", "--hooks=entry", "--sampler=timer", "--no-follow"] {
            let run = ends.same_as_alone(&["-q", mode], &[way], &[]);
            assert_eq!(run.calls(&run.path("gmon.out")), [10, 0, 0], "{way} {mode}");
        }
    }
}

fn killed_in_the_middle_of_counting() {
    let ends = Subject::new("ends");
    for mode in ["--hooks=both", "--hooks=entry"] {
        let run = ends.same_as_alone(&["-q", mode], &["oom"], &[]);
        assert_eq!(run.calls(&run.path("gmon.out"))[..2], [10, 0], "{mode}");
    }
}

/// The keys of a terminal reach the program and its children, and the profiles are written.
fn keys_of_a_terminal() {
    let source = "#include <stdio.h>\n#include <unistd.h>\n#include <signal.h>\n#include <sys/wait.h>\n\
        __attribute__((noinline)) void work(void) { asm volatile(\"\"); }\n\
        volatile int got; void on(int s) { got = s; }\n\
        int main(void) { signal(SIGINT, on); for (int i = 0; i < 3; i++) if (!fork()) { work(); pause(); _exit(got); } \
        work(); work(); usleep(100000); puts(\"ready\"); fflush(stdout); while (!got) pause(); \
        int n = 0, s; while (wait(&s) > 0) n += WEXITSTATUS(s); printf(\"%d %d\\n\", got, n); return 5; }";
    let place = gprofinject_tests::place::Place::new();
    place.c("keys", source, &[]);
    let (controller, terminal) = terminal();
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.args(["-q", "--per-process", "./keys"]).current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    let copy = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command.stdin(copy(&terminal)).stdout(copy(&terminal)).stderr(copy(&terminal));
    controlling(&mut command);
    let mut child = command.spawn().unwrap();
    drop(terminal);
    let mut controller = fs::File::from(controller);
    let mut seen = String::new();
    let mut read = |controller: &mut fs::File, until: &str| {
        let mut byte = [0];
        let start = Instant::now();
        while !seen.contains(until) && start.elapsed() < Duration::from_secs(30) {
            match controller.read(&mut byte) {
                Ok(1) => seen.push(char::from(byte[0])),
                _ => break,
            }
        }
        assert!(seen.contains(until), "{seen}");
    };
    read(&mut controller, "ready");
    controller.write_all(b"\x03").unwrap();
    read(&mut controller, "2 6");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    gprofinject_tests::view::apart(place.folder.path()).unwrap();
    let profiles = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let profiles: Vec<_> = profiles.filter(|path| path.to_string_lossy().contains("gmon.out")).collect();
    assert_eq!(profiles.len(), 4, "{profiles:?}");
    assert!(profiles.iter().all(|path| gprofdata::read(path).unwrap().calls() >= 1));
}

/// Returns both ends of a new terminal.
#[allow(unsafe_code, reason = "one library call with out-pointers to locals")]
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut controller, mut terminal) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: both out-pointers are valid; the descriptors are new and have no other owner.
    unsafe {
        assert_eq!(libc::openpty(&mut controller, &mut terminal, null, null.cast(), null.cast()), 0);
        libc::fcntl(controller, libc::F_SETFD, libc::FD_CLOEXEC);
        (OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal))
    }
}

/// Makes the command's standard input the terminal of a new session.
#[allow(unsafe_code, reason = "two system calls between fork and exec")]
fn controlling(command: &mut Command) {
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        })
    };
}
