//! Attaching to programs that musl's dynamic linker has loaded and that run already, pausing and leaving them. It is their C
//! library as well, so it is hooked in any case: without that, new threads would share the data of others.

use std::fs;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::attached::{Subject, pauses};
use gprofinject_tests::place::Place;

use crate::attach::{self, again_and_again, cycles};
use crate::attach_static::{bases_of_gs, over_and_over, subject};
use crate::libraries::{has, whole};
use crate::library_control::{libraries_come_and_go, libraries_of_another_user};
use crate::standalone::musl::{PAUSED_CALLS, available, built_to_pause, paused_with_frames, ways_to_leave};

gprofinject_tests::trials! {
    together:
        counts_are_exact,
        threads_in_every_kind_of_call,
        libraries,
        frames_in_pauses,
        no_thread_keeps_a_base_of_gs,
        a_library_that_was_replaced;
    busy:
        threads_of_each_kind,
        all_functions_of_musl,
        everything_at_once,
        many_threads,
        pauses_under_load,
        gprofinject_is_killed;
}

const ALL: [&str; 3] = ["-O2", "-w", "-pthread"];

/// Starts `processes/load.c` with a thread for each letter.
fn load(kinds: &str, flags: &[&str]) -> Subject {
    subject("load.c", "musl-gcc", &[&ALL[1..], flags].concat(), &[kinds])
}

/// Exactly the calls between attaching and leaving are counted, but for those during a pause.
fn counts_are_exact() {
    if !available("attach_musl::counts_are_exact") {
        return;
    }
    for flags in [&["-O0"][..], &["-O2"], &["-O2", "-fno-pie", "-no-pie"]] {
        let mut subject = load("", flags);
        let before = subject.code();
        subject.step(1000);
        for (n, libs) in [(1, "--libs=auto"), (12_345, "--libs=all"), (7, "--libs=none")] {
            for hooks in ["--hooks=both", "--hooks=entry"] {
                let attached = subject.attached(&["-v", hooks, libs]);
                subject.step(n);
                subject.ask("--pause");
                subject.step(777);
                subject.ask("--resume");
                subject.step(3);
                let (status, said) = attached.end("-INT");
                let calls = u64::from(n) + 3;
                assert_eq!((status, subject.calls("step")), (Some(0), calls), "{flags:?} {hooks} {libs}: {said}");
                assert_eq!(pauses(&said).len(), 2, "{said}");
                subject.step(1000);
                assert!(subject.is_clean(), "{flags:?} {hooks} {libs}: {said}");
                assert_eq!(subject.changed(&before), None, "{flags:?} {hooks} {libs}: {said}");
            }
        }
        subject.finish();
    }
}

fn threads_of_each_kind() {
    if !available("attach_musl::threads_of_each_kind") {
        return;
    }
    for kinds in ["a", "jjjj", "tt", "ff", "vv", "bbbb", "ss", "r", "kk"] {
        again_and_again(load(kinds, &["-O2"]), kinds, &[], cycles(4));
    }
}

fn all_functions_of_musl() {
    if !available("attach_musl::all_functions_of_musl") {
        return;
    }
    for kinds in ["aa", "jj", "t", "f", "bb", "s", "k", "ajtfvbsrki"] {
        again_and_again(load(kinds, &["-O2"]), kinds, &["--libs=all"], cycles(4));
    }
}

fn everything_at_once() {
    if !available("attach_musl::everything_at_once") {
        return;
    }
    again_and_again(load("ajtfvbsrki", &["-O0"]), "ajtfvbsrki", &[], cycles(10));
    again_and_again(load("ajtfvbsrki", &["-O2"]), "ajtfvbsrki", &["--libs=all"], cycles(10));
}

fn many_threads() {
    if !available("attach_musl::many_threads") {
        return;
    }
    for kinds in ["ajajajajajajajaj".to_owned(), "i".repeat(300)] {
        again_and_again(load(&kinds, &["-O2"]), &kinds, &[], cycles(3));
    }
}

/// Threads wait in system calls that lead to the agent, some of them for ever, when gprofinject attaches and leaves.
fn threads_in_every_kind_of_call() {
    if !available("attach_musl::threads_in_every_kind_of_call") {
        return;
    }
    for way in ["calls", "alone", "handler"] {
        for libs in ["--libs=auto", "--libs=all"] {
            over_and_over(subject("waiting.c", "musl-gcc", &ALL, &[way]), &[libs], &format!("{way} {libs}"));
        }
    }
    for file in ["steps.c", "faults.c", "sockets.c"] {
        for libs in ["--libs=auto", "--libs=all"] {
            over_and_over(subject(file, "musl-gcc", &ALL, &[]), &[libs], &format!("{file} {libs}"));
        }
    }
}

/// Libraries that the process has loaded are hooked, and those that it loads later, also during a pause.
fn libraries() {
    if available("attach_musl::libraries") {
        libraries_come_and_go("musl-gcc");
        if rustix::process::geteuid().is_root() {
            libraries_of_another_user("musl-gcc");
        }
    }
}

/// As `standalone::musl::pauses`, but in a process that runs already.
fn frames_in_pauses() {
    if !available("attach_musl::frames_in_pauses") {
        return;
    }
    for options in [["--hooks=both", "--libs=auto"], ["--hooks=both", "--libs=all"], ["--hooks=entry", "--libs=all"]] {
        let place = Place::new();
        built_to_pause(&place);
        let ways = ways_to_leave(&place);
        let mut command = Command::new(place.path("prog"));
        command.current_dir(place.folder.path());
        let mut subject = Subject::start(place, command);
        let before = subject.code();
        for _ in 0..2 {
            let attached = subject.attached(&options);
            let pid = subject.pid().to_string();
            paused_with_frames(&mut subject, &pid, &ways);
            let (status, said) = attached.end("-INT");
            assert_eq!(status, Some(0), "{said}");
            has(&whole(&subject.place), &PAUSED_CALLS, &format!("{options:?}: {said}"));
            assert!(subject.is_clean(), "{said}");
            assert_eq!(subject.changed(&before), None, "{said}");
        }
        subject.finish();
    }
}

/// Threads and children are made, and frames are left, while hooks are paused and written again.
fn pauses_under_load() {
    if !available("attach_musl::pauses_under_load") {
        return;
    }
    for (kinds, options) in [
        ("ajtsr", &["--hooks=both", "--libs=all"]),
        ("ajtsr", &["--hooks=entry", "--libs=all"]),
        ("affbk", &["--hooks=both", "--libs=auto"]),
    ] {
        let mut subject = load(kinds, &["-O2"]);
        let before = subject.code();
        let attached = subject.attached(&[&["-v"], &options[..]].concat());
        for _ in 0..cycles(10) {
            subject.ask("--pause");
            std::thread::sleep(std::time::Duration::from_millis(2));
            subject.ask("--resume");
        }
        subject.step(5);
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step") >= 5), (Some(0), true), "{options:?}: {said}");
        assert!(subject.is_clean(), "{options:?}: {said}");
        assert_eq!(subject.changed(&before), None, "{options:?}");
        subject.finish();
    }
}

fn gprofinject_is_killed() {
    if available("attach_musl::gprofinject_is_killed") {
        attach::is_killed_while_attached_to(load("ajt", &["-O2"]));
        attach::is_killed_often(load("ajtb", &["-O2"]), cycles(10));
    }
}

fn no_thread_keeps_a_base_of_gs() {
    if !available("attach_musl::no_thread_keeps_a_base_of_gs") {
        return;
    }
    match skip::have("gdb") {
        true => bases_of_gs(&load("bbbbtt", &["-O2"])),
        false => skip::skipped("attach_musl::no_thread_keeps_a_base_of_gs", "no gdb"),
    }
}

/// Nothing is known of a library whose file is another one now, which may make threads by itself.
fn a_library_that_was_replaced() {
    if !available("attach_musl::a_library_that_was_replaced") {
        return;
    }
    let place = Place::new();
    built_to_pause(&place);
    let mut command = Command::new(place.path("prog"));
    command.current_dir(place.folder.path());
    let mut subject = Subject::start(place, command);
    let before = subject.code();
    let library = subject.place.path("libfind.so");
    let bytes = fs::read(&library).unwrap();
    fs::remove_file(&library).unwrap();
    fs::write(&library, bytes).unwrap();
    let outcome = subject.attach(&["--duration=0"]);
    let said = outcome.stderr_text();
    // Root can open the file that the process has mapped.
    if !rustix::process::geteuid().is_root() {
        assert!(outcome.code() == 125 && said.contains("libfind.so"), "{said}");
    }
    assert!(subject.is_clean(), "{said}");
    for (file, code) in subject.code() {
        assert!(file.contains("deleted") || before.get(&file) == Some(&code), "{file}: {said}");
    }
    subject.tell("c 3");
    subject.hear("done\n");
    subject.finish();
}
