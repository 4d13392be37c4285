//! Libraries of processes in which it is hard to reach them: the address space is full, or the process cannot enter the run
//! folder any more.
//!
//! The program calls functions as often as it is told to, so the expected calls are known.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject;
use gprofinject_tests::place::{Place, complains};
use gprofinject_tests::{run, tool};

use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        attaching_where_nothing_is_free_below_the_libraries,
        attaching_where_nothing_is_free_near_the_libraries,
        a_library_that_is_loaded_far_from_the_others,
        libraries_after_the_process_has_become_another_users,
        libraries_about_which_nobody_can_be_asked,
        attaching_to_a_process_with_another_network;
}

const LIBRARY: &str = r"
static int sum;
__attribute__((noinline)) int leaf(int x) { return sum += x; }
int middle(int x) { int s = 0; for (int i = 0; i < 3; i++) s += leaf(x + i); return s; }
";
const LATE: &str = "static int sum; int late(int x) { return sum += x; }";

/// Builds the program and its libraries, for all users.
fn built() -> Place {
    let place = Place::new();
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = ["-g", "-O2", "-fPIC", "-shared"];
    place.c("libfirst.so", LIBRARY, &library);
    place.c("liblate.so", LATE, &library);
    let first = place.path("libfirst.so");
    let program = fs::read_to_string(tool::folder().join("processes/crowded.c")).unwrap();
    place.c("prog", &program, &["-g", "-O2", "-w", first.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    place
}

fn alone() -> Subject {
    let place = built();
    let mut command = Command::new(place.path("prog"));
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    Subject::start(place, command)
}

fn profiled(options: &[&str]) -> Subject {
    let place = built();
    let mut command = place.command(options);
    command.arg("./prog").env("XDG_RUNTIME_DIR", place.folder.path());
    Subject::start(place, command)
}

/// Makes the program carry out its commands.
fn tell(subject: &mut Subject, commands: &[&str]) {
    for command in commands {
        subject.tell(command);
        subject.hear("done\n");
    }
}

/// Whether the tests run as root. If they do not, that is reported.
fn is_root(test: &str) -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        skip::skipped(test, "only root can become another user");
    }
    is
}

/// Like a process with many threads, whose stacks are below the libraries.
fn attaching_where_nothing_is_free_below_the_libraries() {
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let mut subject = alone();
        tell(&mut subject, &["c 7", "b 2600"]);
        let before = subject.code();
        for _ in 0..2 {
            let attached = subject.attached(&["-v", hooks]);
            // The kernel places a library that is loaded now below all that.
            tell(&mut subject, &["c 10", "o 0", "l 9"]);
            let (code, said) = attached.end("-INT");
            assert_eq!(code, Some(0), "{said}");
            assert!(!said.contains("is not hooked"), "{said}");
            let expected = [("main", "own", 10), ("own", "middle", 10), ("middle", "leaf", 30), ("main", "late", 9)];
            has(&whole(&subject.place), &expected, &said);
            assert_eq!(subject.changed(&before), None, "{said}");
            assert!(subject.is_clean(), "{said}");
        }
        tell(&mut subject, &["c 5", "l 5"]);
        subject.finish();
    }
}

/// gprofinject says what is missing, and the process is as it was.
fn attaching_where_nothing_is_free_near_the_libraries() {
    let mut subject = alone();
    tell(&mut subject, &["a 2600"]);
    let before = subject.code();
    let outcome = subject.attach(&["--duration=0"]);
    complains(&outcome, 125, "no addresses are free within 2 GiB of the C library's code");
    assert_eq!(subject.changed(&before), None);
    assert!(subject.is_clean());
    tell(&mut subject, &["c 5", "o 0", "l 5"]);
    subject.finish();
}

/// The agent's reservation for arenas is too far from that library.
fn a_library_that_is_loaded_far_from_the_others() {
    for options in [&["-v", "--hooks=both"], &["-v", "--hooks=entry"], &["-v", "--times"]] {
        let mut subject = profiled(options);
        tell(&mut subject, &["c 7", "b 3300", "o 0", "l 9", "c 3"]);
        subject.finish();
        let expected = [("main", "own", 10), ("own", "middle", 10), ("middle", "leaf", 30), ("main", "late", 9)];
        has(&whole(&subject.place), &expected, options[1]);
    }
}

/// Such a process cannot enter the run folder, and asks over the socket without a place in a folder.
fn libraries_after_the_process_has_become_another_users() {
    if !is_root("crowded::libraries_after_the_process_has_become_another_users") {
        return;
    }
    for changes in [&["u 65534"][..], &["r 0"], &["r 0", "u 65534"]] {
        let mut subject = profiled(&["-v"]);
        tell(&mut subject, &["c 7"]);
        tell(&mut subject, changes);
        tell(&mut subject, &["o 0", "l 9", "c 3"]);
        subject.finish();
        let expected = [("own", "middle", 10), ("middle", "leaf", 30), ("main", "late", 9)];
        has(&whole(&subject.place), &expected, changes[0]);
    }
}

/// In another network, that socket cannot be reached either. The library is named, with the reason; the C library, which is left
/// out anyway, is not.
fn libraries_about_which_nobody_can_be_asked() {
    if !is_root("crowded::libraries_about_which_nobody_can_be_asked") {
        return;
    }
    let place = built();
    fs::write(place.path("commands"), "c 7\nr 0\nn 0\nu 65534\no 0\nl 9\n").unwrap();
    let mut command = place.command(&["-v", "--stats=stats", "./prog"]);
    command.env("XDG_RUNTIME_DIR", place.folder.path());
    let outcome = run::run(command, Some(&place.path("commands")), Duration::from_secs(60)).unwrap();
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().matches("done").count()), (3, 6), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("is not hooked")).collect();
    assert!(lines.len() == 1 && lines[0].contains("liblate.so is not hooked: the process could not ask"), "{said}");
    let stats = fs::read_to_string(place.path("stats")).unwrap();
    assert!(stats.contains("liblate.so") && stats.contains("could not ask gprofinject"), "{stats}");
    has(&whole(&place), &[("own", "middle", 7)], &said);
}

/// gprofinject makes that socket in the process's own network.
fn attaching_to_a_process_with_another_network() {
    if !is_root("crowded::attaching_to_a_process_with_another_network") {
        return;
    }
    let mut subject = alone();
    tell(&mut subject, &["r 0", "n 0", "u 65534"]);
    let before = subject.code();
    let attached = subject.attached(&["-v"]);
    tell(&mut subject, &["c 10", "o 0", "l 9"]);
    let (code, said) = attached.end("-INT");
    assert!(code == Some(0) && !said.contains("is not hooked"), "{said}");
    has(&whole(&subject.place), &[("own", "middle", 10), ("main", "late", 9)], &said);
    assert_eq!(subject.changed(&before), None, "{said}");
    assert!(subject.is_clean(), "{said}");
    subject.finish();
}
