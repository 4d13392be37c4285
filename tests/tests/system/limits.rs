//! The shell's limits (ulimit): the program keeps its own, and messages about those that affect gprofinject
//! name them.

use std::process::Command;

use gprofinject_tests::place::{BURN, HELLO, Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        a_soft_limit_of_file_sizes_is_the_programs_only,
        a_hard_limit_of_file_sizes_leaves_room_for_fewer_threads,
        a_low_limit_of_file_sizes_is_named_and_samples_are_taken,
        a_low_limit_of_files_is_named,
        a_low_limit_of_memory_is_named;
}

/// Runs `ulimit LIMIT; gprofinject ARGS`.
fn limited(place: &Place, limit: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).arg(tool::gprofinject().unwrap());
    command.args(args).current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    finish(command)
}

/// The region file is larger than all of these limits, and extending it beyond the last one causes SIGXFSZ.
fn a_soft_limit_of_file_sizes_is_the_programs_only() {
    let place = Place::new();
    let source = "#include <stdio.h>\n#include <sys/resource.h>\nint main(void) { struct rlimit r; \
                  getrlimit(RLIMIT_FSIZE, &r); printf(\"%lu\\n\", r.rlim_cur); return 7; }";
    place.c("limit", source, &[]);
    for blocks in [100u64, 1000, 400_000] {
        let outcome = limited(&place, &format!("-S -f {blocks}"), &["-q", "./limit"]);
        assert_eq!(outcome.code(), 7, "{}", outcome.stderr_text());
        assert_eq!(outcome.stdout_text(), format!("{}\n", blocks * 512));
        assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 0);
    }
}

/// A SIGXFSZ for the region file concerns gprofinject and not the program.
fn a_hard_limit_of_file_sizes_leaves_room_for_fewer_threads() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    let outcome = limited(&place, "-f 400000", &["-q", "./burn"]);
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{}", outcome.stderr_text());
    assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 2);
}

fn a_low_limit_of_file_sizes_is_named_and_samples_are_taken() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    let outcome = limited(&place, "-f 1000", &["./burn"]);
    let said = outcome.stderr_text();
    assert!(said.contains("no place for the counters: File too large (ulimit -f)"), "{said}");
    assert!(!said.contains("TMPDIR"), "{said}");
    // Without perf, no samples are possible.
    if outcome.code() != 125 {
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{said}");
        let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
        assert!(profile.samples() > 0 && profile.calls() == 0, "{said}");
    }
}

fn a_low_limit_of_files_is_named() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for files in [5, 6] {
        let outcome = limited(&place, &format!("-n {files}"), &["./hello"]);
        let said = outcome.stderr_text();
        assert_eq!(outcome.code(), 125, "{said}");
        assert!(said.contains("Too many open files (ulimit -n)") && !said.contains("TMPDIR"), "{said}");
    }
}

fn a_low_limit_of_memory_is_named() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = limited(&place, "-v 30000", &["./hello"]);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{said}");
    assert!(said.contains("nothing was hooked") && said.contains("ulimit -v"), "{said}");
}
