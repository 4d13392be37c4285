//! Attaching to static programs that already run, pausing and leaving them.
//!
//! What the loops of `attach.rs` require of dynamic programs, they require here of static ones, whose C library and
//! unwinder are hooked as well.
//!
//! No program here has threads that throw and threads that fork: a static unwinder takes a lock that fork() does not
//! know of, so a child that throws may wait for it for ever, without gprofinject as well.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::attached::{Subject, pauses};
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::{compile, tool};

use crate::attach::{self, cycles, under_load};

gprofinject_tests::trials! {
    together:
        counts_are_exact,
        threads_in_every_kind_of_call,
        no_thread_keeps_a_base_of_gs,
        a_program_that_uses_gs_itself,
        stripped_programs,
        children;
    busy:
        allocations_and_recursion,
        exceptions,
        new_threads_and_children,
        waiting_threads,
        signals_and_coroutines,
        everything_at_once,
        many_threads,
        pauses_under_load,
        gprofinject_is_killed,
        programs_with_musl,
        real_programs,
        handlers_on_new_stacks,
        coroutines_that_share_a_stack,
        coroutines_that_are_switched_by_code_of_their_own;
}

const STATIC: [&[&str]; 2] = [&["-static"], &["-static-pie"]];

/// Exactly the calls between attaching and leaving are counted, but for those during a pause.
fn counts_are_exact() {
    for flags in STATIC {
        let mut subject = Subject::new("", flags);
        let before = subject.code();
        subject.step(1000);
        for (n, signal) in [(1, "-INT"), (12_345, "-TERM")] {
            for hooks in ["--hooks=both", "--hooks=entry"] {
                let attached = subject.attached(&["-v", hooks]);
                subject.step(n);
                subject.ask("--pause");
                subject.step(777);
                subject.ask("--resume");
                subject.step(3);
                let (status, said) = attached.end(signal);
                let calls = u64::from(n) + 3;
                assert_eq!((status, subject.calls("step")), (Some(0), calls), "{flags:?} {hooks}: {said}");
                assert_eq!(pauses(&said).len(), 2, "{said}");
                subject.step(1000);
                assert!(subject.is_clean(), "{flags:?} {hooks}: {said}");
                assert_eq!(subject.changed(&before), None, "{flags:?} {hooks}: {said}");
            }
        }
        subject.finish();
    }
}

fn allocations_and_recursion() {
    under_load("aarr", STATIC[0], cycles(10));
    under_load("ar", STATIC[1], cycles(5));
}

fn exceptions() {
    under_load("xxxx", STATIC[0], cycles(10));
    under_load("xx", STATIC[1], cycles(10));
}

fn new_threads_and_children() {
    under_load("ttv", STATIC[0], cycles(10));
    under_load("affv", STATIC[0], cycles(10));
    under_load("tt", STATIC[1], cycles(5));
    under_load("af", STATIC[1], cycles(5));
}

fn waiting_threads() {
    under_load("bbhhw", STATIC[0], cycles(10));
}

fn signals_and_coroutines() {
    under_load("sscr", STATIC[0], cycles(10));
}

fn everything_at_once() {
    under_load("axtvbhscrw", STATIC[0], cycles(10));
    under_load("axtvbhscrw", STATIC[1], cycles(10));
}

fn many_threads() {
    under_load(&"w".repeat(300), STATIC[0], cycles(3));
    under_load("axaxaxaxaxaxaxax", STATIC[0], cycles(5));
}

/// Exceptions pass hooked frames, and threads and children are made, while hooks are paused and written again.
fn pauses_under_load() {
    for (kinds, hooks) in [("axtsr", "--hooks=both"), ("axtsr", "--hooks=entry"), ("affb", "--hooks=both")] {
        let mut subject = Subject::new(kinds, STATIC[0]);
        let before = subject.code();
        let attached = subject.attached(&["-v", hooks]);
        for _ in 0..cycles(15) {
            subject.ask("--pause");
            std::thread::sleep(Duration::from_millis(2));
            subject.ask("--resume");
        }
        subject.step(5);
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step") >= 5), (Some(0), true), "{hooks}: {said}");
        assert!(subject.is_clean(), "{hooks}: {said}");
        assert_eq!(subject.changed(&before), None, "{hooks}");
        subject.finish();
    }
}

/// What was counted so far is recovered, and the next gprofinject takes the agent out.
fn gprofinject_is_killed() {
    for flags in STATIC {
        attach::is_killed_while_it_is_attached(flags);
        attach::is_killed_again_and_again("axt", flags, cycles(10));
    }
}

/// Compiles a program of `processes/` and starts it.
pub(crate) fn subject(file: &str, compiler: &str, flags: &[&str], arguments: &[&str]) -> Subject {
    let place = Place::new();
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(place.path("subject")).arg(tool::folder().join("processes").join(file));
    compile::compile(command).unwrap();
    let mut command = Command::new(place.path("subject"));
    command.args(arguments).current_dir(place.folder.path());
    Subject::start(place, command)
}

/// Attaches and leaves, with both kinds of hooks. The counts are exact, and nothing stays in the process.
pub(crate) fn over_and_over(mut subject: Subject, options: &[&str], what: &str) {
    let before = subject.code();
    for n in 0..6_u32 {
        let hooks = ["--hooks=both", "--hooks=entry"][n as usize % 2];
        let attached = subject.attached(&[&["-v", hooks], options].concat());
        subject.step(n + 1);
        std::thread::sleep(Duration::from_millis(5));
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step")), (Some(0), u64::from(n) + 1), "{what}, {n}: {said}");
        assert!(subject.is_clean(), "{what}, {n}: {said}");
    }
    assert_eq!(subject.changed(&before), None, "{what}");
    subject.finish();
}

/// Threads begin all the time whose stacks were mapped just before, and stand in signal handlers that have interrupted the first
/// instructions of a function.
fn handlers_on_new_stacks() {
    let flags = ["-O2", "-w", "-pthread"];
    over_and_over(subject("fresh.c", "gcc", &flags, &[]), &[], "gcc");
    over_and_over(subject("fresh.c", "gcc", &[&flags[..], &["-static"]].concat(), &[]), &[], "gcc -static");
    if skip::have("musl-gcc") {
        over_and_over(subject("fresh.c", "musl-gcc", &flags, &[]), &[], "musl-gcc");
    } else {
        skip::skipped("handlers_on_new_stacks with musl", "no musl-gcc");
    }
}

/// A thread copies parts of its stack away and back all the time, also while hooks are paused.
fn coroutines_that_share_a_stack() {
    for flags in [&["-O0"][..], &["-O2", "-static"]] {
        let flags = [&["-w", "-pthread"], flags].concat();
        over_and_over(subject("stack-copies.c", "gcc", &flags, &[]), &[], &flags.join(" "));
        let mut subject = subject("stack-copies.c", "gcc", &flags, &[]);
        let attached = subject.attached(&["--hooks=both"]);
        for _ in 0..8 {
            subject.ask("--pause");
            std::thread::sleep(Duration::from_millis(3));
            subject.ask("--resume");
            subject.step(1);
        }
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step")), (Some(0), 8), "{flags:?}: {said}");
        subject.finish();
    }
}

/// The same, where gprofinject does not know the code that copies. If frames with labels are copied away when it leaves, or such bytes
/// are in memory that was freed, the agent's memory stays in the process, which goes on.
fn coroutines_that_are_switched_by_code_of_their_own() {
    for flags in [&["-O0"][..], &["-O2", "-static"]] {
        let flags = [&["-w", "-pthread"], flags].concat();
        for n in 1..=3 {
            let mut subject = subject("shared-stack.c", "gcc", &flags, &[]);
            let attached = subject.attached(&["-v", "--hooks=both"]);
            subject.step(n);
            std::thread::sleep(Duration::from_millis(5));
            let (status, said) = attached.end("-INT");
            assert_eq!((status, subject.calls("step")), (Some(0), u64::from(n)), "{flags:?}, {n}: {said}");
            assert!(subject.is_clean() || said.contains("memory stays"), "{flags:?}, {n}: {said}");
            std::thread::sleep(Duration::from_millis(20));
            subject.step(1000);
            subject.finish();
        }
        // Their frames are copied back after gprofinject has left, for certain.
        let mut subject = subject("shared-stack.c", "gcc", &flags, &["slowly"]);
        let attached = subject.attached(&["-v", "--hooks=both"]);
        subject.step(1);
        std::thread::sleep(Duration::from_millis(50));
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step")), (Some(0), 1), "{flags:?}: {said}");
        assert!(said.contains("memory stays"), "{flags:?}: {said}");
        subject.step(1000);
        subject.finish();
    }
}

fn programs_with_musl() {
    if !skip::have("musl-gcc") {
        return skip::skipped("programs_with_musl", "no musl-gcc");
    }
    for (file, level) in [
        ("steps.c", "-O0"),
        ("steps.c", "-O2"),
        ("faults.c", "-O0"),
        ("faults.c", "-O2"),
        ("sockets.c", "-O2"),
    ] {
        over_and_over(subject(file, "musl-gcc", &[level, "-w", "-pthread", "-static"], &[]), &[], file);
    }
}

/// Threads wait in system calls that lead to the agent, some of them for ever, when gprofinject attaches and leaves.
/// Timed calls take their time, and no call ends early.
fn threads_in_every_kind_of_call() {
    for (compiler, flags) in [("gcc", &["-static"][..]), ("gcc", &["-static-pie"]), ("musl-gcc", &["-static"])] {
        if !skip::have(compiler) {
            skip::skipped("threads_in_every_kind_of_call", "no musl-gcc");
            continue;
        }
        let flags = [&["-O2", "-w", "-pthread"], flags].concat();
        for way in ["calls", "alone", "handler"] {
            over_and_over(subject("waiting.c", compiler, &flags, &[way]), &[], &format!("{compiler} {flags:?} {way}"));
        }
    }
}

/// gdb shows that each thread has the base of gs that it had before.
fn no_thread_keeps_a_base_of_gs() {
    if !skip::have("gdb") {
        return skip::skipped("no_thread_keeps_a_base_of_gs", "no gdb");
    }
    bases_of_gs(&Subject::new("bbbbtt", STATIC[0]));
}

pub(crate) fn bases_of_gs(subject: &Subject) {
    let bases = |subject: &Subject| -> BTreeSet<String> {
        let mut command = Command::new("gdb");
        command.args(["-batch", "-nx", "-ex", "thread apply all print $gs_base", "-p"]).arg(subject.pid().to_string());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = said.lines().filter_map(|line| line.split_once(" = ").filter(|(n, _)| n.starts_with('$')));
        values.map(|(_, value)| value.to_owned()).collect()
    };
    let none = BTreeSet::from(["0".to_owned()]);
    assert_eq!(bases(subject), none);
    let attached = subject.attached(&[]);
    // Each thread has its own.
    assert!(bases(subject).len() > 4 && !bases(subject).contains("0"), "{:?}", bases(subject));
    let (status, said) = attached.end("-INT");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(bases(subject), none, "{said}");
    // The program is not asked for its results: gdb has interrupted its system calls.
}

/// The program continues as if nothing had happened.
fn a_program_that_uses_gs_itself() {
    let mut subject = subject("waiting.c", "gcc", &["-O2", "-w", "-pthread", "-static", "-DGS"], &["gs"]);
    let before = subject.code();
    let outcome = subject.attach(&["--duration", "0"]);
    let said = outcome.stderr_text();
    assert!(outcome.code() == 0 && said.contains("uses the register gs"), "{said}");
    assert!(subject.is_clean(), "{said}");
    assert_eq!(subject.changed(&before), None, "{said}");
    subject.step(3);
    subject.finish();
}

/// Without names, the unwinder cannot be told of hooked frames, so only entries are hooked.
fn stripped_programs() {
    let mut subject = Subject::new("xx", &["-static", "-s"]);
    let before = subject.code();
    let outcome = subject.attach(&["--hooks=both", "--duration", "0.05"]);
    let said = outcome.stderr_text();
    assert!(outcome.code() == 0 && said.contains("only entries are hooked"), "{said}");
    assert!(subject.is_clean(), "{said}");
    assert_eq!(subject.changed(&before), None, "{said}");
    subject.finish();
}

/// What a child has inherited from its parent counts nowhere, and is taken out of the child separately.
fn children() {
    let mut subject = subject("parent.c", "gcc", &["-O2", "-w", "-static"], &[]);
    let before = subject.code();
    let attached = subject.attached(&[]);
    subject.step(5);
    subject.tell("fork");
    subject.hear("done\n");
    let child = fs::read_to_string(subject.place.path("child")).unwrap();
    let mut command = subject.place.command(&["--rate", "0", "-q", "--pid", &child, "--duration", "0.05"]);
    command.args(["-o", "child.out"]).env("XDG_RUNTIME_DIR", subject.place.folder.path());
    let outcome = finish(command);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(subject.place.path("child.out").exists());
    assert_eq!(subject.changed_in(&child, &before), None);
    subject.step(6);
    let (status, said) = attached.end("-INT");
    assert_eq!((status, subject.calls("step")), (Some(0), 11), "{said}");
    assert!(subject.is_clean(), "{said}");
    subject.finish();
}

/// Distributions' static programs, which have no symbols: they print what they print alone, however often gprofinject
/// attaches meanwhile.
fn real_programs() {
    let counts_to =
        |n: u32| format!("i=0; while [ $i -lt {n} ]; do i=$((i+1)); case $i in *0000) (echo $i);; esac; done; echo $i");
    let (few, many) = (counts_to(300_000), counts_to(1_500_000));
    for (program, arguments) in [("/bin/busybox", &["sh", "-c", &many][..]), ("/bin/bash-static", &["-c", &few])] {
        if !Path::new(program).exists() {
            skip::skipped("real_programs", &format!("no {program}"));
            continue;
        }
        let alone = Command::new(program).args(arguments).output().unwrap();
        let place = Place::new();
        let mut attached = 0;
        for hooks in ["--hooks=both", "--hooks=entry"] {
            let mut child =
                Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
            let pid = child.id().to_string();
            while child.try_wait().unwrap().is_none() {
                let mut command = place.command(&["-q", hooks, "--pid", &pid, "--duration", "0.01"]);
                command.env("XDG_RUNTIME_DIR", place.folder.path());
                let outcome = finish(command);
                assert!(matches!(outcome.code(), 0 | 125), "{}", outcome.stderr_text());
                attached += usize::from(outcome.code() == 0);
            }
            let output = child.wait_with_output().unwrap();
            assert_eq!((output.status, &output.stdout), (alone.status, &alone.stdout), "{program} {hooks}");
        }
        assert!(attached > 0, "{program}");
    }
}
