//! Attaching to programs that already run, and leaving them, again and again.
//!
//! `GPROFINJECT_ATTACH_CYCLES` is the number of times that each loop attaches.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_tests::attached::{Attached, Subject, pauses};
use gprofinject_tests::extent;
use gprofinject_tests::place::Place;

gprofinject_tests::trials! {
    together:
        counts_are_exact,
        a_thread_that_waits_in_the_kernel,
        a_thread_that_waits_in_the_kernel_for_too_long;
    busy:
        allocations_and_recursion,
        exceptions,
        new_threads_and_children,
        waiting_threads,
        signals_and_coroutines,
        everything_at_once,
        the_program_ends_while_it_is_profiled,
        the_program_ends_at_any_moment,
        gprofinject_is_killed_while_it_is_attached,
        gprofinject_is_killed_at_any_moment,
        gprofinject_is_killed_again_and_again,
        many_threads;
    alone:
        a_large_program_stands_still_for_a_short_time;
}

/// Returns how often a loop attaches: `few` times in an ordinary run, fifty times as often in a full one.
pub(crate) fn cycles(few: u64) -> usize {
    extent::times("GPROFINJECT_ATTACH_CYCLES", few, 50 * few) as usize
}

const FLAGS: [&[&str]; 5] = [
    &["-O0"],
    &["-O2"],
    &["-O2", "-fno-pie", "-no-pie"],
    &["-O2", "-static-libgcc", "-static-libstdc++"],
    &["-O2", "-pg"],
];

/// Exactly the calls between attaching and leaving are counted, while frames of the program wait on the
/// stack.
fn counts_are_exact() {
    for flags in FLAGS {
        let mut subject = Subject::new("", flags);
        let before = subject.code();
        subject.step(1000);
        for (n, signal) in [(1, "-INT"), (100, "-TERM"), (12_345, "-HUP")] {
            for hooks in ["--hooks=both", "--hooks=entry"] {
                let attached = subject.attached(&["-v", hooks]);
                subject.step(n);
                let (status, said) = attached.end(signal);
                assert_eq!((status, subject.calls("step")), (Some(0), n.into()), "{flags:?} {hooks}: {said}");
                assert_eq!(pauses(&said).len(), 2, "{said}");
                subject.step(1000);
                assert!(subject.is_clean(), "{flags:?} {hooks}: {said}");
                assert_eq!(subject.changed(&before), None, "{flags:?} {hooks}: {said}");
            }
        }
        subject.finish();
    }
}

/// Attaches again and again to threads that are busy. The program behaves as without gprofinject, and the
/// counts agree with its own, except for calls that are in progress.
pub(crate) fn under_load(kinds: &str, flags: &[&str], times: usize) {
    again_and_again(Subject::new(kinds, flags), kinds, &[], times);
}

/// The same with a program that runs already, and more options.
pub(crate) fn again_and_again(mut subject: Subject, kinds: &str, options: &[&str], times: usize) {
    let before = subject.code();
    // The calls in progress: of each thread, of threads that it creates, of frames that wait for a coroutine
    // or below a signal handler.
    let slack = 8 * kinds.len() as u64;
    let mut longest: f64 = 0.0;
    for n in 0..times {
        let hooks = ["--hooks=both", "--hooks=entry"][n % 2];
        let first = subject.counters();
        let attached = subject.attached(&[&["-v", hooks], options].concat());
        let second = subject.counters();
        std::thread::sleep(Duration::from_millis([0, 3, 11][n % 3]));
        let third = subject.counters();
        let (status, said) = attached.end("-INT");
        let fourth = subject.counters();
        assert_eq!(status, Some(0), "{kinds}, the {n}th time: {said}");
        for (name, of) in [("outer", 0), ("inner", 1), ("thrower", 2)] {
            let [first, second, third, fourth] =
                [first, second, third, fourth].map(|c| [c.outer, c.inner, c.thrower][of]);
            let calls = subject.calls(name);
            let (least, most) = ((third - second).saturating_sub(slack), fourth - first + slack);
            assert!((least..=most).contains(&calls), "{kinds} {name}: {calls}, not {least}..{most}; {said}");
        }
        let (outer, inner) = (subject.calls("outer"), subject.calls("inner"));
        assert!(inner.abs_diff(3 * outer) <= 3 * slack, "{kinds}: {inner} of {outer}; {said}");
        longest = pauses(&said).into_iter().fold(longest, f64::max);
        assert!(subject.is_clean(), "{kinds}, the {n}th time: {said}");
    }
    assert_eq!(subject.changed(&before), None, "{kinds}");
    subject.finish();
    println!("{kinds}: threads stood still for up to {longest} ms");
}

fn allocations_and_recursion() {
    under_load("aarr", &[], cycles(20));
    under_load("ar", &["-O0"], cycles(10));
}

fn exceptions() {
    under_load("xxxx", &[], cycles(20));
    under_load("xx", &["-static-libgcc", "-static-libstdc++"], cycles(10));
}

fn new_threads_and_children() {
    under_load("ttfv", &[], cycles(20));
    under_load("tf", &["-fno-pie", "-no-pie"], cycles(10));
}

fn waiting_threads() {
    under_load("bbhhw", &[], cycles(20));
}

fn signals_and_coroutines() {
    under_load("sscr", &[], cycles(20));
}

fn everything_at_once() {
    under_load("axtfvbhscrw", &[], cycles(20));
}

/// However the program ends meanwhile, its profile is written, and it ends as it would alone.
fn the_program_ends_while_it_is_profiled() {
    for (way, status) in [("exit", Some(5)), ("exec", Some(0)), ("-KILL", None), ("-TERM", None)] {
        let mut subject = Subject::new("axt", &[]);
        let mut attached = subject.attached(&["-v"]);
        subject.step(10);
        match way.strip_prefix('-') {
            Some(_) => subject.signal(way),
            None => subject.tell(way),
        }
        let ended = subject.child.wait().unwrap().code();
        let (said_status, said) = attached.wait();
        assert_eq!((ended, said_status), (status, Some(0)), "{way}: {said}");
        assert_eq!(subject.calls("step"), 10, "{way}: {said}");
    }
}

/// The program ends while gprofinject attaches to it or leaves it.
fn the_program_ends_at_any_moment() {
    for n in 0..cycles(20) {
        let mut subject = Subject::new("axtf", &[]);
        let mut command = subject.command(&["-q", "--duration", "0.002"]);
        command.stderr(Stdio::piped());
        let gprofinject = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * n as u64 % 60));
        if n % 2 == 0 {
            subject.signal("-KILL")
        } else {
            subject.tell("exit")
        }
        assert_eq!(subject.child.wait().unwrap().code(), (n % 2 == 1).then_some(5));
        let outcome = gprofinject.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&outcome.stderr);
        let is_clean = match outcome.status.code() {
            Some(0) => said.is_empty(),
            Some(125) => {
                let is_why = said.contains("has ended") || said.contains("there is no process");
                is_why && said.lines().count() == 1
            }
            _ => false,
        };
        assert!(is_clean, "{:?} after {} ms: {said}", outcome.status, 2 * n % 60);
    }
}

fn folders(subject: &Subject) -> Vec<PathBuf> {
    let entries = fs::read_dir(subject.place.folder.path()).unwrap().map(|entry| entry.unwrap());
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("gprofinject-"));
    ours.map(|entry| entry.path()).collect()
}

/// What was counted so far is recovered, and the next gprofinject that attaches takes the hooks out.
fn gprofinject_is_killed_while_it_is_attached() {
    is_killed_while_it_is_attached(&[]);
}

/// The same for a program that was compiled with these flags.
pub(crate) fn is_killed_while_it_is_attached(flags: &[&str]) {
    is_killed_while_attached_to(Subject::new("axt", flags));
}

pub(crate) fn is_killed_while_attached_to(mut subject: Subject) {
    let before = subject.code();
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let attached = subject.attached(&[hooks]);
        subject.step(100);
        attached.end("-KILL");
        subject.step(11);
        assert!(subject.lives());
        let [folder] = &folders(&subject)[..] else { panic!("{:?}", folders(&subject)) };
        let recover = || subject.place.run(&["--recover", folder.to_str().unwrap()]);
        let outcome = recover();
        assert_eq!((outcome.code(), subject.calls("step")), (0, 111), "{}", outcome.stderr_text());
        assert!(folder.exists(), "{}", outcome.stderr_text());
        let outcome = subject.attach(&["--duration", "0"]);
        let said = outcome.stderr_text();
        assert!(outcome.code() == 0 && said.contains("took out what a gprofinject left"), "{said}");
        assert!(subject.is_clean(), "{said}");
        assert_eq!(subject.changed(&before), None, "{said}");
        // What was counted before is still there.
        subject.step(1000);
        let outcome = subject.place.run(&["--recover", folder.to_str().unwrap()]);
        assert_eq!((outcome.code(), subject.calls("step")), (0, 111), "{}", outcome.stderr_text());
        assert!(!folder.exists(), "{}", outcome.stderr_text());
    }
    subject.finish();
}

/// gprofinject is killed while it attaches, is attached, or leaves. What it has begun is finished, and the
/// next gprofinject takes the agent out.
fn gprofinject_is_killed_at_any_moment() {
    let mut subject = Subject::new("axtf", &[]);
    let before = subject.code();
    let maps = |subject: &Subject| fs::read_to_string(format!("/proc/{}/maps", subject.pid())).unwrap();
    let (mut early, mut late) = (0, 0);
    let once = |_| {
        let start = Instant::now();
        let outcome = subject.attach(&["-q", "--duration", "0.005"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        start.elapsed()
    };
    let whole = (0..4).map(once).min().unwrap();
    let times = cycles(40);
    for n in 0..times {
        let mut command = subject.command(&["-q", "--duration", "0.005"]);
        let mut gprofinject = command.stderr(Stdio::null()).spawn().unwrap();
        // The kill comes at a different time of the run in each round; the run begins with planning.
        std::thread::sleep(whole.mul_f64(0.2 + 0.8 * (n as f64 * 0.618).fract()));
        gprofinject.kill().unwrap();
        let _ = gprofinject.wait().unwrap();
        subject.step(1);
        for folder in folders(&subject) {
            if maps(&subject).contains(folder.to_str().unwrap()) {
                early += 1;
                let outcome = subject.place.run(&["--recover", folder.to_str().unwrap()]);
                assert_eq!(outcome.code(), 0, "the {n}th time: {}", outcome.stderr_text());
            } else {
                late += 1;
            }
        }
        assert!(subject.lives(), "the {n}th time");
        if n % 3 == 0 {
            let outcome = subject.attach(&["--duration", "0.001"]);
            assert_eq!(outcome.code(), 0, "the {n}th time: {}", outcome.stderr_text());
            for folder in folders(&subject) {
                fs::remove_dir_all(folder).unwrap();
            }
            assert!(subject.is_clean(), "the {n}th time: {}", outcome.stderr_text());
        }
    }
    let outcome = subject.attach(&["--duration", "0.001"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert_eq!(subject.changed(&before), None, "{}", outcome.stderr_text());
    println!(
        "killed {times} times: {early} with the agent in the process, {late} without, but with a folder"
    );
    subject.finish();
}

fn gprofinject_is_killed_again_and_again() {
    is_killed_again_and_again("axtf", &[], cycles(20));
}

/// The same for a program with these threads that was compiled with these flags.
pub(crate) fn is_killed_again_and_again(kinds: &str, flags: &[&str], times: usize) {
    is_killed_often(Subject::new(kinds, flags), times);
}

pub(crate) fn is_killed_often(mut subject: Subject, times: usize) {
    let before = subject.code();
    for n in 0..times {
        let attached = subject.attached(&[]);
        std::thread::sleep(Duration::from_micros(1700 * n as u64 % 20_000));
        attached.end("-KILL");
        std::thread::sleep(Duration::from_millis(2));
        assert!(subject.lives(), "the {n}th time");
        let outcome = subject.attach(&["--duration", "0.001"]);
        assert_eq!(outcome.code(), 0, "the {n}th time: {}", outcome.stderr_text());
        for folder in folders(&subject) {
            fs::remove_dir_all(folder).unwrap();
        }
    }
    assert_eq!(subject.changed(&before), None);
    subject.finish();
}

/// One thread waits in the kernel and cannot be stopped when gprofinject wants to leave.
fn waiting_for_its_child() -> (Subject, Attached) {
    let mut subject = Subject::new("a", &[]);
    let attached = subject.attached(&["-v"]);
    subject.step(10);
    subject.tell("vfork");
    while !subject.place.path("vforked").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    (subject, attached)
}

/// It takes some seconds until the thread can be stopped, which is no reason to give up.
fn a_thread_that_waits_in_the_kernel() {
    let (mut subject, attached) = waiting_for_its_child();
    let go = subject.place.path("go");
    let child = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        fs::write(go, "").unwrap();
    });
    let (status, said) = attached.end("-INT");
    child.join().unwrap();
    assert_eq!((status, subject.calls("step")), (Some(0), 10), "{said}");
    assert!(subject.is_clean(), "{said}");
    subject.hear("done\n");
    subject.finish();
}

/// The thread waits for longer than gprofinject does. The profile is written, and the next gprofinject that
/// attaches takes everything out.
fn a_thread_that_waits_in_the_kernel_for_too_long() {
    let (mut subject, attached) = waiting_for_its_child();
    let (status, said) = attached.end("-INT");
    assert_eq!((status, subject.calls("step")), (Some(125), 10), "{said}");
    assert!(said.contains("could not be stopped") && said.contains("tries once more"), "{said}");
    fs::write(subject.place.path("go"), "").unwrap();
    subject.hear("done\n");
    let again = subject.attach(&["--duration", "0"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(subject.is_clean(), "{again:?}");
    subject.finish();
}

/// The program waits, then calls each of ten thousand functions.
fn a_large_program_stands_still_for_a_short_time() {
    const FUNCTIONS: usize = 10_000;
    let place = Place::new();
    let mut source =
        String::from("#include <stdio.h>\n#include <pthread.h>\n#include <unistd.h>\nint sink;\n");
    for n in 0..FUNCTIONS {
        source += &format!("__attribute__((noipa)) int f{n}(int x) {{ sink += x; return x + {n}; }}\n");
    }
    source += "int (*const all[])(int) = {";
    source += &(0..FUNCTIONS).map(|n| format!("f{n},")).collect::<String>();
    source += "};\nstatic void *busy(void *p) { for (;;) for (int n = 0; n < 9000; n++) all[n](n); }\n\
        int main(void) { char line[9]; pthread_t t; for (int n = 0; n < 3; n++) pthread_create(&t, 0, busy, 0);\n\
        puts(\"ready\"); fflush(stdout); while (fgets(line, 9, stdin)) { \
        for (int n = 9000; n < 10000; n++) all[n](n); puts(\"done\"); fflush(stdout); } return 0; }\n";
    let program = place.c("attached", &source, &["-pthread"]);
    let mut subject = Subject::start(place, Command::new(program));
    let before = subject.code();
    let mut times = Vec::new();
    for hooks in ["--hooks=both", "--hooks=entry", "--hooks=both", "--hooks=entry"] {
        let attached = subject.attached(&["-v", hooks]);
        subject.step(1);
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("f9000"), subject.calls("f9999")), (Some(0), 1, 1), "{said}");
        times.push(pauses(&said));
        assert_eq!(subject.changed(&before), None, "{said}");
    }
    println!("{FUNCTIONS} functions: threads stood still for {times:?} ms");
    // Once, the machine may have been busy with other work.
    assert!(times.iter().any(|times| times.iter().all(|time| *time < 50.0)), "{times:?}");
}

/// Many threads, most of which wait.
fn many_threads() {
    under_load(&"w".repeat(200), &[], cycles(5));
}
