//! Executed programs whose names are valid only for the process that executes them, or that have no name.

use std::fs;

use gprofinject_tests::family::{MODES, NO_FOLLOW, Run, Subject};
use gprofinject_tests::place::Place;
use gprofinject_tests::tool;
use gprofinject_skip as skip;

gprofinject_tests::trials! {
    together:
        the_summary_names_the_program,
        in_another_mount_namespace,
        what_is_not_followed_is_said,
        the_first_program_is_gone_at_the_end;
}

/// Returns what the command prints that the summary's line about another process names.
fn table_of_the_other(run: &Run) -> String {
    let line = run.said.lines().find(|line| line.contains(": process ") && line.contains("; gmon flat --program "));
    let line = line.unwrap_or_else(|| panic!("no other process: {}", run.said));
    let command = line.rsplit_once("; ").unwrap().1;
    let done = tool::shell(command).unwrap().current_dir(run.path("")).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn has_11_calls_of_other(report: &str) -> bool {
    report.lines().any(|line| line.split_whitespace().any(|word| word == "other") && line.split_whitespace().any(|word| word == "11"))
}

/// The recording has the names of functions, whether the program has a name or not.
fn the_summary_names_the_program() {
    let execs = Subject::new("execs");
    let own = execs.name().to_owned();
    for way in [
        "execv",
        "self",
        "thread-self",
        "self-fd",
        "dev-fd",
        "empty-path",
        "memfd",
        "memfd-path",
        "deleted",
        "tmpfile",
    ] {
        let run = execs.profiled(&["-v"], &[way, &own, "again", "x"], &[]);
        if run.outcome.code() == 99 {
            skip::skipped("the_summary_names_the_program", &format!("{way} does not work here"));
            continue;
        }
        assert_eq!(run.outcome.code(), 8, "{way}: {}", run.said);
        run.made(&[[3, 0, 0], [0, 11, 0]], way);
        let report = table_of_the_other(&run);
        assert!(has_11_calls_of_other(&report), "{way}: {}\n{report}", run.said);
    }
}

/// In the mounts of the process, the path means another file; so does that of a script's interpreter.
fn in_another_mount_namespace() {
    let execs = Subject::new("execs");
    let folder = execs.place().path("covered");
    fs::create_dir(&folder).unwrap();
    execs.place().c("covered/program", "int main(void) { return 77; }", &[]);
    let at: &str = folder.to_str().unwrap();
    for way in ["mounts", "mounts-script"] {
        for mode in MODES {
            let run = execs.profiled(&["-v", mode], &[way, at, at], &[]);
            if run.outcome.code() == 99 {
                return skip::skipped("in_another_mount_namespace", "not permitted here");
            }
            assert_eq!(run.outcome.code(), 8, "{way} {mode}: {}", run.said);
            if mode == NO_FOLLOW {
                continue;
            }
            run.made(&[[3, 0, 0], [0, 11, 0]], &format!("{way} {mode}: {}", run.said));
            assert!(has_11_calls_of_other(&table_of_the_other(&run)), "{way} {mode}: {}", run.said);
        }
    }
}

/// Without `-v`, gprofinject reports which executed programs have no profile.
fn what_is_not_followed_is_said() {
    let execs = Subject::new("execs");
    let place = execs.place();
    if !skip::can_compile_for("what_is_not_followed_is_said", "gcc", &["-m32", "-static"]) {
        return;
    }
    let program = place.c("narrow", "int main(void) { return 0; }", &["-m32", "-static"]);
    let run = execs.profiled(&[], &["execv", program.to_str().unwrap()], &[]);
    let said = format!("{} was not followed: it is a 32-bit program", program.display());
    assert!(run.said.contains(&said), "{}", run.said);
}

/// A program that removes itself can still be read.
fn the_first_program_is_gone_at_the_end() {
    let place = Place::new();
    let source = "#include <stdio.h>\n__attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x; }\n\
        int main(int c, char **v) { f(1); return remove(v[0]); }";
    place.c("brief", source, &[]);
    let outcome = place.run(&["-v", "--rate", "0", "./brief"]);
    let said = outcome.stderr_text();
    assert!(outcome.code() == 0 && !place.path("brief").exists(), "{said}");
    assert!(said.contains("./brief is gone, or another file here: gmon.out.program is a copy"), "{said}");
    let next = said.lines().find_map(|line| line.strip_prefix("gprofinject: gprof ")).unwrap();
    let next = format!("gprof {next}");
    let done = tool::shell(&next).unwrap().current_dir(place.folder.path()).output().unwrap();
    let report = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && report.lines().any(|line| line.ends_with(" f")), "{said}\n{report}");
}
