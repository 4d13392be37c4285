//! Signals that arrive while gprofinject attaches, pauses, resumes and leaves: the process receives each of
//! them as it would alone, and gets no EINTR for signals that it ignores.
//!
//! `GPROFINJECT_ATTACH_CYCLES` is the number of times that each test attaches.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::attached::Subject;
use gprofinject_tests::extent;
use gprofinject_tests::place::{self, Place};

gprofinject_tests::trials! {
    busy:
        ignored_signals_interrupt_nothing,
        ignored_signals_interrupt_nothing_where_the_main_thread_stops_late,
        ignored_signals_interrupt_no_thread_that_is_let_run,
        one_thread_is_stopped,
        many_threads_are_stopped,
        handled_signals_come_once_and_in_order;
}

fn cycles() -> usize {
    extent::times("GPROFINJECT_ATTACH_CYCLES", 20, 200) as usize
}

fn subject(source: &str, arguments: &[&str]) -> Subject {
    let place = Place::new();
    let program = place.c("signals", source, &["-pthread", "-w"]);
    started(place, program, arguments)
}

fn started(place: Place, program: PathBuf, arguments: &[&str]) -> Subject {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    Subject::start(place, command)
}

/// Attaches and leaves, and pauses and resumes once.
fn attach(subject: &Subject, n: usize) {
    let hooks = ["--hooks=both", "--hooks=entry"][n % 2];
    if n.is_multiple_of(4) {
        // Without `-q`, because a message shows that gprofinject is attached.
        let attached = subject.attached(&[hooks]);
        for order in ["--pause", "--resume", "--dump"] {
            let mut command = subject.place.command(&["--pid", &subject.pid().to_string(), order]);
            command.env("XDG_RUNTIME_DIR", subject.place.folder.path());
            let outcome = place::finish(command);
            assert_eq!(outcome.code(), 0, "{order}: {}", outcome.stderr_text());
        }
        let (status, said) = attached.end("-INT");
        assert_eq!(status, Some(0), "{said}");
    } else {
        let outcome = subject.attach(&["-q", hooks, "--duration", "0.01"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    }
}

/// The kernel drops an ignored signal, unless it is sent to a traced thread; then it ends system calls.
fn ignored_signals_interrupt_nothing() {
    let mut subject = subject(include_str!("../../processes/interrupted.c"), &[]);
    std::thread::sleep(Duration::from_secs(1));
    subject.tell("count");
    // gprofinject has not attached yet: the program alone gets no EINTR either.
    subject.hear("interrupted:\n");
    for n in 0..cycles() {
        attach(&subject, n);
    }
    subject.tell("count");
    subject.hear("interrupted:\n");
    assert!(subject.is_clean());
}

/// The main thread and another one often cannot be stopped in time, so that the others have to run while the
/// main thread is traced.
fn ignored_signals_interrupt_nothing_where_the_main_thread_stops_late() {
    let mut subject = subject(include_str!("../../processes/interrupted.c"), &["late"]);
    std::thread::sleep(Duration::from_secs(1));
    subject.tell("count");
    subject.hear("interrupted:\n");
    for n in 0..cycles() {
        let hooks = ["--hooks=both", "--hooks=entry"][n % 2];
        let outcome = subject.attach(&["-q", hooks, "--duration", "0.01"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    }
    subject.tell("count");
    subject.hear("interrupted:\n");
    assert!(subject.is_clean());
}

/// Some threads have to run, several at a time, before gprofinject can leave the process. One of them is
/// woken by a signal that another one takes.
fn ignored_signals_interrupt_no_thread_that_is_let_run() {
    const NONE: &str = "interrupted: epoll_wait 0, semtimedop 0\n";
    let place = Place::new();
    let source = include_str!("../../processes/cleanup.cc");
    let program = place.compile("g++", "cleanup", source, &["-pthread"]).unwrap();
    let mut subject = started(place, program, &[]);
    subject.tell("count");
    subject.hear(NONE);
    for _ in 0..3 * cycles() {
        let outcome = subject.attach(&["-q", "--hooks=both", "--duration", "0.01"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    }
    subject.tell("count");
    subject.hear(NONE);
    assert!(subject.is_clean());
}

/// Each SIGSTOP stops the process, and each SIGCONT continues it, whatever its threads are doing for
/// gprofinject.
fn stops(threads: &str) {
    let mut subject = subject(include_str!("../../processes/interrupted.c"), &[threads]);
    let mut attached = 0;
    for n in 0..2 * cycles() {
        let hooks = ["--hooks=both", "--hooks=entry"][n % 2];
        let outcome = subject.attach(&["-q", hooks, "--duration", "0.01"]);
        let said = outcome.stderr_text();
        // A process that is already stopped is refused, and may be left with the agent's memory.
        assert!(outcome.code() == 0 || said.contains("is stopped"), "the {n}th time: {said}");
        attached += usize::from(outcome.code() == 0);
    }
    assert!(attached > 0, "{threads}: it was always stopped");
    subject.tell("count");
    subject.hear("not stopped 0, not continued 0\n");
}

fn one_thread_is_stopped() {
    stops("0");
}

fn many_threads_are_stopped() {
    stops("1");
}

/// Signals with a handler are received once and in order by one thread, with the data sent along: queued
/// signals, those of the thread's own faults, and those of a timer.
fn handled_signals_come_once_and_in_order() {
    for threads in ["0", "3"] {
        let mut subject = subject(include_str!("../../processes/queued.c"), &[threads]);
        for n in 0..cycles() {
            attach(&subject, n);
        }
        subject.tell("count");
        subject.hear("all in order\n");
        assert!(subject.is_clean());
    }
}
