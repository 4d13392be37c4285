//! `--disable` and `--enable`: functions that are switched while the program runs. What is expected is what the program's own
//! callers have counted in the phases in which a function was on.

use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::switched::{Counts, Subject, compiled_by, counts};
use gprofinject_tests::{tool, view};

gprofinject_tests::trials! {
    together:
        phases_are_exact,
        static_programs_and_musl,
        libraries_that_are_loaded_later_obey,
        children_have_their_own,
        what_cannot_be_switched;
    busy:
        under_load,
        paused_under_load;
}

/// Different tactics for the short functions: jumps, caves in the dead bytes of others, a sled.
const FLAGS: [&[&str]; 3] =
    [&["-O0"], &["-O2"], &["-Os", "-falign-functions=1", "-fno-asynchronous-unwind-tables"]];

const OFF: [&str; 7] = ["leaf", "small", "empty", "tail", "recursive", "zeroes", "compare"];

/// What was called in phases from `from` to `to`.
fn difference(from: &Counts, to: &Counts) -> Counts {
    to.iter().map(|(name, count)| (name.clone(), count - from.get(name).unwrap_or(&0))).collect()
}

fn check(expected: &Counts, calls: &Counts, what: &str) {
    for (name, count) in expected.iter().filter(|(name, _)| *name != "plugged") {
        assert_eq!(calls.get(name).unwrap_or(&0), count, "{name}, {what}");
    }
}

fn phases_are_exact() {
    for flags in FLAGS {
        for (options, attach) in [(&["--hooks=both"][..], false), (&["--hooks=entry"], true), (&["--times"], false), (&[], true)] {
            let what = format!("{flags:?} {options:?} {attach}");
            let mut subject = Subject::new(flags, options, attach);
            let first = counts(&subject.tell("run 300"));
            let said = subject.ask(&["--disable", &format!("{{{}}}", OFF.join(","))]);
            assert!(said.contains("7 functions of 1 module off"), "{said}");
            let second = counts(&subject.tell("run 200"));
            let said = subject.ask(&["--enable", "switched!*"]);
            assert!(said.contains("of 1 module on, ") && said.contains("already before"), "{said}");
            let third = counts(&subject.tell("run 100"));
            let (rest, calls) = subject.finish();
            // The sum that the program prints without gprofinject as well.
            assert_eq!(rest.trim(), checksum(flags, "run 300\nrun 200\nrun 100\n"), "{what}");
            let mut expected = third.clone();
            for name in OFF {
                expected.insert(name.to_owned(), first[name] + third[name] - second[name]);
            }
            check(&expected, &calls, &what);
        }
    }
}

/// The same where the agent comes in without glibc's dynamic linker, at the start and later.
fn static_programs_and_musl() {
    let compilers: [(&str, &[&str]); 4] = [
        ("gcc", &["-O2", "-static"]),
        ("gcc", &["-O2", "-static-pie"]),
        ("musl-gcc", &["-O2", "-static"]),
        ("musl-gcc", &["-O2"]),
    ];
    for (compiler, flags) in compilers {
        if !skip::have(compiler) {
            skip::skipped("static_programs_and_musl", "no musl-gcc");
            continue;
        }
        for attach in [false, true] {
            let what = format!("{compiler} {flags:?} {attach}");
            let mut subject = Subject::of(compiled_by(compiler, flags), &[], attach);
            let first = counts(&subject.tell("run 300"));
            let said = subject.ask(&["--disable", &format!("{{{}}}", OFF.join(","))]);
            assert!(said.contains("7 functions of 1 module off"), "{what}: {said}");
            let second = counts(&subject.tell("run 200"));
            subject.ask(&["--enable", "switched!*"]);
            let third = counts(&subject.tell("run 100"));
            let (rest, calls) = subject.finish();
            assert!(rest.starts_with("checksum"), "{what}: {rest}");
            let mut expected = third.clone();
            for name in OFF {
                expected.insert(name.to_owned(), first[name] + third[name] - second[name]);
            }
            check(&expected, &calls, &what);
            // Threads run in the functions while these are switched.
            let patterns = ["*", "{leaf,small,empty}", "{tail,hop}"];
            let subject = Subject::of(compiled_by(compiler, flags), &[], attach);
            spins(subject, &patterns, 9, &what);
        }
    }
}

/// Returns the last line of the program alone.
fn checksum(flags: &[&str], commands: &str) -> String {
    let place = gprofinject_tests::switched::compiled(flags);
    std::fs::write(place.path("commands"), commands).unwrap();
    let input = std::fs::File::open(place.path("commands")).unwrap();
    let output = Command::new(place.path("switched")).stdin(input).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned()
}

/// Four threads call the functions in a loop, and check each thousand rounds against the rounds before.
fn under_load() {
    let patterns = ["*", "{leaf,small,empty}", "{tail,hop}", "{zeroes,first}", "{compare,sorts}"];
    for (flags, attach) in FLAGS.into_iter().zip([true, false, true]) {
        spins(Subject::new(flags, &[], attach), &patterns, 14, &format!("{flags:?}"));
    }
}

/// Switches functions off and on while threads run in them, in turn for each of the patterns.
fn spins(mut subject: Subject, patterns: &[&str], turns: usize, what: &str) {
    assert_eq!(subject.tell("spin"), "spins", "{what}");
    for pattern in patterns.iter().cycle().take(turns) {
        subject.ask(&["--disable", pattern]);
        subject.ask(&["--enable", pattern]);
    }
    // A turn that went wrong would be said before the counts.
    let before = counts(&subject.tell("stop"));
    subject.ask(&["--reset"]);
    let after = counts(&subject.tell("run 100"));
    let (_, calls) = subject.finish();
    check(&difference(&before, &after), &calls, what);
}

/// The same for all hooks at once. Threads are behind patches, in sleds, and between the words of a sled.
fn paused_under_load() {
    let mut subject = Subject::new(FLAGS[2], &[], false);
    assert_eq!(subject.tell("spin"), "spins");
    for _ in 0..40 {
        subject.ask(&["--pause"]);
        subject.ask(&["--resume"]);
    }
    let before = counts(&subject.tell("stop"));
    subject.ask(&["--reset"]);
    let after = counts(&subject.tell("run 100"));
    let (_, calls) = subject.finish();
    check(&difference(&before, &after), &calls, "paused");
}

fn libraries_that_are_loaded_later_obey() {
    for attach in [false, true] {
        let mut subject = Subject::new(FLAGS[1], &["--libs=all"], attach);
        subject.ask(&["--disable", "{plugged,tail}"]);
        let library = subject.place.path("libplug.so");
        assert_eq!(subject.tell(&format!("load {}", library.display())), "loaded");
        let first = counts(&subject.tell("run 100"));
        let said = subject.ask(&["--enable", "libplug.so!plug*"]);
        assert!(said.contains("1 function of 1 module on"), "{said}");
        let second = counts(&subject.tell("run 50"));
        subject.ask(&["--disable", "libplug.so!"]);
        subject.tell("run 70");
        let place = subject.place.folder.path().to_owned();
        subject.ask(&["--dump"]);
        let mut gprof = Command::new(tool::gmon().unwrap());
        let output = gprof.args(["gprof", "gmon.pb.gz", "-b", "-p"]).current_dir(&place).output().unwrap();
        let flat = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = flat.lines().find(|line| line.ends_with(" plugged")).unwrap_or_else(|| panic!("{flat}"));
        let expected = (second["plugged"] - first["plugged"]).to_string();
        assert!(line.split_whitespace().any(|word| word == expected), "{expected}: {line}");
        let (_, calls) = subject.finish();
        assert_eq!(calls.get("tail"), None);
    }
}

fn children_have_their_own() {
    let mut subject = Subject::new(FLAGS[1], &["--per-process"], false);
    subject.ask(&["--disable", "leaf"]);
    let said = subject.tell("fork 100");
    let child: u32 = said.strip_prefix("child ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    // The child begins as its parent was. What is asked of it is not the parent's.
    let on = subject.asked_of(child, &["--enable", "leaf"]);
    assert!(on.status.success(), "{}", String::from_utf8_lossy(&on.stderr));
    let off = subject.asked_of(child, &["--disable", "tail"]);
    assert!(off.status.success(), "{}", String::from_utf8_lossy(&off.stderr));
    let of_child = counts(&subject.tell("go"));
    let before = counts(&subject.tell("run 1"));
    subject.ask(&["--enable", "*"]);
    let after = counts(&subject.tell("run 20"));
    let folder = subject.place.folder.path().to_owned();
    let profile = format!("gmon.out.{child}");
    drop(subject.child.stdin.take());
    let mut rest = String::new();
    while !rest.starts_with("checksum") {
        rest = subject.line();
    }
    subject.child.wait().unwrap();
    view::apart(&folder).unwrap();
    let calls = subject.calls(&profile, "switched");
    assert_eq!((calls["leaf"], calls.get("tail")), (of_child["leaf"], None));
    let calls = subject.calls("gmon.out", "switched");
    assert_eq!((calls["leaf"], calls["tail"]), (after["leaf"] - before["leaf"], after["tail"]));
}

fn what_cannot_be_switched() {
    let subject = Subject::new(FLAGS[1], &["-X", "hop"], false);
    let refused = |arguments: &[&str], why: &str| {
        let output = subject.asked_of(subject.pid, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&["--disable", "no_such_*"], "no hooked function of process");
    refused(&["--disable", "hop"], "hop is not hooked (not-selected");
    refused(&["--disable", "libno*!x"], "matches 'libno*!x'");
    refused(&["--enable", "a["], "is not a pattern");
    refused(&["--enable", &"x".repeat(3000)], "too long");
    refused(&["--enable", "x", "--disable", "y"], "cannot be used with");
    let said = subject.ask(&["--disable", "leaf"]);
    assert!(said.contains("1 function of 1 module off"), "{said}");
    let said = subject.ask(&["--disable", "leaf"]);
    assert!(said.contains("1 of them already before"), "{said}");
    subject.finish();
    let counted = Subject::new(FLAGS[1], &["--count=blocks"], false);
    let output = counted.asked_of(counted.pid, &["--disable", "leaf"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("counts its blocks"));
}
