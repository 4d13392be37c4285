//! Attaching to programs that run already, and leaving them, over and over.
//!
//! `GPROFINJECT_ATTACH_CYCLES`: how often each loop attaches.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use gprofinject_tests::attached::{Subject, pauses};
use gprofinject_tests::place::complains;

fn cycles(few: usize) -> usize {
    std::env::var("GPROFINJECT_ATTACH_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

const FLAGS: [&[&str]; 5] = [
    &["-O0"],
    &["-O2"],
    &["-O2", "-fno-pie", "-no-pie"],
    &["-O2", "-static-libgcc", "-static-libstdc++"],
    &["-O2", "-pg"],
];

/// Exactly what is done between attaching and leaving, with frames of the program waiting on the stack meanwhile.
#[test]
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
        assert_eq!(subject.finish(), (Some(0), "the end, 0 calls interrupted\n".to_owned()), "{flags:?}");
    }
}

/// Attaches again and again to threads that are busy: the program does as undisturbed, and the counts are its own,
/// up to calls that are under way.
fn under_load(kinds: &str, flags: &[&str], times: usize) {
    let mut subject = Subject::new(kinds, flags);
    let before = subject.code();
    // Calls under way: of each thread, of those it makes, of frames that wait for a coroutine or behind a signal.
    let slack = 8 * kinds.len() as u64;
    let mut longest: f64 = 0.0;
    for n in 0..times {
        let hooks = ["--hooks=both", "--hooks=entry"][n % 2];
        let first = subject.counters();
        let attached = subject.attached(&["-v", hooks]);
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
        assert!(inner.abs_diff(3 * outer) <= 3 * slack, "{kinds}: {inner} of {outer}");
        longest = pauses(&said).into_iter().fold(longest, f64::max);
        assert!(subject.is_clean(), "{kinds}, the {n}th time: {said}");
    }
    assert_eq!(subject.changed(&before), None, "{kinds}");
    assert_eq!(subject.finish(), (Some(0), "the end, 0 calls interrupted\n".to_owned()), "{kinds}");
    println!("{kinds}: threads stood still for up to {longest} ms");
}

#[test]
fn allocations_and_recursion() {
    under_load("aarr", &[], cycles(40));
    under_load("ar", &["-O0"], cycles(10));
}

#[test]
fn exceptions() {
    under_load("xxxx", &[], cycles(40));
    under_load("xx", &["-static-libgcc", "-static-libstdc++"], cycles(10));
}

#[test]
fn new_threads_and_children() {
    under_load("ttfv", &[], cycles(40));
    under_load("tf", &["-fno-pie", "-no-pie"], cycles(10));
}

#[test]
fn waiting_threads() {
    under_load("bbhhw", &[], cycles(40));
}

#[test]
fn signals_and_coroutines() {
    under_load("sscr", &[], cycles(40));
}

#[test]
fn everything_at_once() {
    under_load("axtfvbhscrw", &[], cycles(30));
}
