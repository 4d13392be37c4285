//! Programs that cannot be hooked: they run as they would alone, and are sampled where the kernel permits it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use gprofinject_tests::place::{BURN, HELLO, LIMIT, Place, complains, finish};
use gprofinject_tests::run::{self, Outcome};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, gprofdata, tool};

gprofinject_tests::trials! {
    together:
        static_programs_run,
        musl_programs_run,
        stripped_programs_run,
        scripts_run_as_their_interpreter,
        library_as_program,
        thirty_two_bit_programs_are_sampled,
        stripped_thirty_two_bit_programs_run,
        programs_that_change_their_user_are_sampled,
        programs_that_become_root_run,
        ones_own_set_user_id_program_is_hooked,
        foreign_programs_are_refused,
        foreign_programs_run_by_an_emulator;
}

/// Checks that a program that cannot be hooked runs with its own output and status, and that gprofinject says
/// why.
fn still_runs(place: &Place, name: &str) {
    let path = place.path(name);
    let alone = run::run(Command::new(&path), None, LIMIT).unwrap();
    let outcome = place.run(&[path.to_str().unwrap()]);
    assert_eq!(outcome.code(), alone.code(), "{name}: {}", outcome.stderr_text());
    assert_eq!(outcome.stdout_text(), alone.stdout_text(), "{name}");
    assert!(!outcome.stderr.is_empty(), "{name}: not a word");
}

fn static_programs_run() {
    let place = Place::new();
    place.c("static", HELLO, &["-static"]);
    still_runs(&place, "static");
    place.c("static-pie", HELLO, &["-static-pie"]);
    still_runs(&place, "static-pie");
}

fn musl_programs_run() {
    let place = Place::new();
    if !skip::have("musl-gcc") {
        return skip::skipped("musl_programs_run", "no musl-gcc");
    }
    place.compile("musl-gcc", "musl", HELLO, &["-static"]).unwrap();
    still_runs(&place, "musl");
    // The dynamic program runs only if musl's loader is installed.
    let dynamic = place.compile("musl-gcc", "musl-dynamic", HELLO, &[]).unwrap();
    match run::run(Command::new(dynamic), None, LIMIT) {
        Ok(_) => still_runs(&place, "musl-dynamic"),
        Err(error) => skip::skipped("musl_programs_run, dynamic", &format!("{error:#}")),
    }
}

fn stripped_programs_run() {
    let place = Place::new();
    place.c("stripped", HELLO, &["-s"]);
    still_runs(&place, "stripped");
}

fn scripts_run_as_their_interpreter() {
    let place = Place::new();
    fs::write(place.path("script"), "#!/bin/sh\necho out of a script $#\nexit 4\n").unwrap();
    fs::set_permissions(place.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = place.run(&["./script", "a", "b"]);
    assert_eq!(
        (outcome.code(), outcome.stdout_text()),
        (4, "out of a script 2\n".to_string()),
        "{}",
        outcome.stderr_text()
    );
    assert!(outcome.stderr_text().contains("sh"), "says what is profiled: {}", outcome.stderr_text());
}

fn library_as_program() {
    let place = Place::new();
    place.c("lib.so", "int f(void) { return 1; }", &["-shared", "-fPIC"]);
    // It has no entry point and crashes alone; gprofinject must not crash.
    let outcome = place.run(&["./lib.so"]);
    assert!(outcome.code() != 0);
}

/// A user who owns nothing.
const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the share of each function in the profile, as gprof reads it.
fn shares(place: &Place, program: &str) -> Vec<(String, f64)> {
    let mut gprof = Command::new("gprof");
    gprof.args(["-b", "-p", program, "gmon.out"]).current_dir(place.folder.path());
    let outcome = run::run(gprof, None, LIMIT).unwrap();
    assert!(outcome.status.success(), "{}", outcome.stderr_text());
    let text = outcome.stdout_text();
    let rows = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        Some(((*words.last()?).to_owned(), words.first()?.parse().ok()?))
    });
    rows.collect()
}

/// Checks that `BURN` ran as it does alone, and that gprof finds its time where it was spent.
fn is_sampled(test: &str, place: &Place, program: &str, outcome: &Outcome) {
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{said}");
    if said.contains("no samples are taken") {
        return skip::skipped(test, "perf is not permitted here");
    }
    assert!(said.contains("it is only sampled"), "{said}");
    let shares = shares(place, program);
    let share = shares.iter().find(|(name, _)| name == "heavy").map_or(0.0, |(_, share)| *share);
    assert!(share > 60.0, "{share} % in heavy: {shares:?}");
}

fn thirty_two_bit_programs_are_sampled() {
    const TEST: &str = "thirty_two_bit_programs_are_sampled";
    let place = Place::new();
    for (name, flags) in [("pie", &["-m32"][..]), ("fixed", &["-m32", "-static", "-no-pie"])] {
        if !skip::can_compile_for(TEST, "gcc", flags) {
            return;
        }
        place.c(name, BURN, flags);
        if run::run(Command::new(place.path(name)), None, LIMIT).is_err() {
            return skip::skipped(TEST, "this kernel runs no such programs");
        }
        let outcome = place.run(&[&format!("./{name}")]);
        is_sampled(TEST, &place, name, &outcome);
        still_runs(&place, name);
    }
}

fn stripped_thirty_two_bit_programs_run() {
    const TEST: &str = "stripped_thirty_two_bit_programs_run";
    if !skip::can_compile_for(TEST, "gcc", &["-m32"]) {
        return;
    }
    let place = Place::new();
    place.c("small", HELLO, &["-m32", "-s"]);
    match run::run(Command::new(place.path("small")), None, LIMIT) {
        Ok(_) => still_runs(&place, "small"),
        Err(_) => skip::skipped(TEST, "this kernel runs no such programs"),
    }
    assert!(place.run(&["--list", "./small"]).stderr_text().contains("is stripped"));
}

/// The kernel ends the events of a process whose ids change, and the dynamic linker ignores LD_PRELOAD.
fn programs_that_change_their_user_are_sampled() {
    const TEST: &str = "programs_that_change_their_user_are_sampled";
    let place = Place::new();
    let path = place.c("burn", BURN, &[]);
    if chown(&path, Some(NOBODY), Some(NOBODY)).is_err() {
        return skip::skipped(TEST, "not root, cannot make one of another user");
    }
    set_mode(place.folder.path(), 0o755);
    for (mode, about) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID"), (0o6755, "set-user-ID")] {
        set_mode(&path, mode);
        let outcome = place.run(&["./burn"]);
        assert!(outcome.stderr_text().contains(about), "{}", outcome.stderr_text());
        is_sampled(TEST, &place, "burn", &outcome);
    }
}

/// An unprivileged user may run root's programs, but not sample them.
fn programs_that_become_root_run() {
    const TEST: &str = "programs_that_become_root_run";
    let place = Place::new();
    let path = place.c("burn", BURN, &[]);
    // The owner is changed before the mode, because that removes the bit.
    if !skip::have("setpriv") || chown(&path, Some(0), Some(0)).is_err() {
        return skip::skipped(TEST, "not root, or no setpriv");
    }
    set_mode(&path, 0o4755);
    set_mode(place.folder.path(), 0o777);
    compile::copy(tool::gprofinject().unwrap(), &place.path("gprofinject")).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./gprofinject", "./burn"]);
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{said}");
    assert!(said.contains("set-user-ID program of user 0"), "{said}");
    // This is permitted if kernel.perf_event_paranoid is 0 or less.
    if said.contains("no samples are taken") {
        assert!(said.contains("it runs without a profile") && !place.path("gmon.out").exists(), "{said}");
    } else {
        assert!(place.path("gmon.out").is_file(), "{said}");
    }
}

/// What matters is not the file's mode but whether ids change.
fn ones_own_set_user_id_program_is_hooked() {
    let place = Place::new();
    let path = place.c("hello", HELLO, &[]);
    set_mode(&path, 0o6755);
    let outcome = place.run(&["./hello"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() >= 101, "{}", outcome.stderr_text());
}

/// Writes a program for AArch64, of which only the header is valid.
fn foreign(place: &Place) {
    let path = place.c("foreign", HELLO, &[]);
    let mut data = fs::read(&path).unwrap();
    data[18] = 0xb7;
    fs::write(&path, data).unwrap();
}

fn foreign_programs_are_refused() {
    let place = Place::new();
    foreign(&place);
    complains(&place.run(&["./foreign"]), 126, "AArch64");
    complains(
        &place.run(&["-q", "./foreign"]),
        126,
        "Exec format error (this kernel does not run such programs)",
    );
    assert!(!place.path("gmon.out").exists());
}

/// If the kernel knows an emulator for the program, it runs.
fn foreign_programs_run_by_an_emulator() {
    const TEST: &str = "foreign_programs_run_by_an_emulator";
    let place = Place::new();
    foreign(&place);
    place.c("emulator", "#include <stdio.h>\nint main(void) { puts(\"emulated\"); return 9; }", &[]);
    fs::create_dir(place.path("misc")).unwrap();
    // Since Linux 6.7 a user namespace has its own list of emulators, so no other process sees this one.
    let script = "mount -t binfmt_misc none misc && echo \":f:M:18:\\xb7\\x00::$PWD/emulator:\" >misc/register \
                  || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", script, "sh"]).arg(tool::gprofinject().unwrap()).arg("./foreign");
    command.current_dir(place.folder.path());
    let outcome = run::run(command, None, LIMIT);
    let Ok(outcome) =
        outcome.map_err(drop).and_then(|o| if matches!(o.code(), 1 | 77) { Err(()) } else { Ok(o) })
    else {
        return skip::skipped(TEST, "no binfmt_misc in a user namespace");
    };
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (9, "emulated\n"), "{said}");
    assert!(said.contains("no profile of ./foreign"), "{said}");
}
