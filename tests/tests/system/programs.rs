//! One profile for each program: processes that run the same program are summed, and where a wrapper was started, the last
//! line names the program that did the work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::{BURN, Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{measured, tool, view};

gprofinject_tests::trials! {
    together:
        a_server_that_forks,
        make_with_many_jobs,
        programs_of_the_same_name,
        wrappers,
        a_child_that_only_executes_a_library;
}

/// Returns the names of the profiles: that in the folder, and those that are made of the recording.
fn profiles(place: &Place) -> BTreeSet<String> {
    view::apart(place.folder.path()).unwrap();
    let names = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    { names }.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("gmon.out")).collect()
}

/// Removes what a run has written.
fn clean(place: &Place) {
    for entry in fs::read_dir(place.folder.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("gmon.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Returns how often a function of a program was called.
fn calls(place: &Place, program: &str, profile: &str, function: &str) -> u64 {
    let function = Program::read(&place.path(program)).unwrap().named(function).unwrap().address;
    let arcs = gprofdata::read(&place.path(profile)).unwrap().arcs;
    arcs.iter().filter(|((_, to), _)| *to == function).map(|(_, count)| count).sum()
}

fn one_of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn a_server_that_forks() {
    const SERVER: &str = r#"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) int handle(int x) { __asm__ volatile(""); return x + 1; }
int main(void) {
    int status, all = 0;
    for (int child = 1; child <= 30; child++) {
        if (fork() == 0) {
            int s = 0;
            for (int i = 0; i < child; i++) s = handle(s);
            // Some of them end like this, with the rest of their calls in a child of their own.
            if (child % 3 == 0 && fork() == 0) handle(handle(s));
            else while (wait(0) > 0);
            _exit(s);
        }
    }
    while (wait(&status) > 0) all += WEXITSTATUS(status);
    printf("%d\n", all + handle(1));
    return 0;
}
"#;
    let place = Place::new();
    place.c("server", SERVER, &["-g"]);
    for options in [&["--hooks=both"][..], &["--hooks=entry"], &["--sampler=timer"]] {
        clean(&place);
        let outcome = place.run(&[options, &["./server"]].concat());
        let said = outcome.stderr_text();
        assert!(said.lines().count() <= 4, "a line for each process: {said}");
        assert_eq!(outcome.stdout_text(), "467\n", "{said}");
        assert_eq!(profiles(&place), one_of(&["gmon.out"]), "{options:?}: {said}");
        assert_eq!(calls(&place, "server", "gmon.out", "handle"), 465 + 20 + 1, "{options:?}: {said}");
        assert!(said.contains(", 41 processes"), "{options:?}: {said}");
        clean(&place);
        let outcome = place.run(&[options, &["--per-process", "./server"]].concat());
        let said = outcome.stderr_text();
        let files = profiles(&place);
        assert_eq!(files.len(), 41, "{options:?}: {files:?}, {said}");
        let each = files.iter().map(|file| calls(&place, "server", file, "handle"));
        let mut each: Vec<u64> = each.collect();
        each.sort_unstable();
        let mut expected: Vec<u64> = (1..=30).chain([1]).chain([2; 10]).collect();
        expected.sort_unstable();
        assert_eq!(each, expected, "{options:?}: {said}");
    }
}

/// Each of these processes calls `compile` once and `line` as often as its file has lines.
const COMPILER: &str = r#"
#include <stdio.h>
__attribute__((noinline)) int line(const char *text) { __asm__ volatile(""); return text[0] != '\n'; }
__attribute__((noinline)) int compile(FILE *from, FILE *to) {
    char text[100];
    int lines = 0;
    while (fgets(text, sizeof text, from)) lines += line(text);
    return fprintf(to, "%d\n", lines) > 0;
}
int main(int argc, char **argv) {
    FILE *from = fopen(argv[1], "r"), *to = fopen(argv[2], "w");
    return compile(from, to) && fclose(to) == 0 ? 0 : 1;
}
"#;

fn make_with_many_jobs() {
    const FILES: u64 = 50;
    if !skip::have("make") {
        skip::skipped("programs::make_with_many_jobs", "no make");
        return;
    }
    let place = Place::new();
    place.c("compiler", COMPILER, &["-g"]);
    for file in 0..FILES {
        fs::write(place.path(&format!("{file}.txt")), "a line\n".repeat(file as usize)).unwrap();
    }
    let objects: Vec<String> = (0..FILES).map(|file| format!("{file}.o")).collect();
    // Half of the commands need a shell, and half of them make executes itself.
    let makefile = format!(
        "all: {}\n%.o: %.txt\n\t@./compiler $< $@\n\t@test -s $@ && ./compiler $@ $@.again\n",
        objects.join(" ")
    );
    fs::write(place.path("Makefile"), makefile).unwrap();
    let outcome = place.run(&["-v", "make", "-s", "-j8"]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    let files = profiles(&place);
    // Which shell there is, and whether it needs a process for `test`, depends on the system.
    let of_programs: BTreeSet<&str> = files.iter().filter_map(|file| file.strip_prefix("gmon.out.")).collect();
    assert!(files.contains("gmon.out") && of_programs.contains("compiler"), "{files:?}: {said}");
    assert!(of_programs.len() <= 3, "{files:?}: {said}");
    assert!(said.contains(&format!("compiler ({} processes): ", 2 * FILES)), "{said}");
    let of = |function: &str| calls(&place, "compiler", "gmon.out.compiler", function);
    assert_eq!((of("compile"), of("line")), (2 * FILES, FILES * (FILES - 1) / 2 + FILES), "{said}");
}

/// Programs are told apart by their files, not by their names.
fn programs_of_the_same_name() {
    let place = Place::new();
    fs::write(place.path("text"), "a\nb\nc\n").unwrap();
    for (folder, flag) in [("one", "-O1"), ("two", "-O0")] {
        fs::create_dir(place.path(folder)).unwrap();
        place.c(&format!("{folder}/tool"), COMPILER, &["-g", flag]);
    }
    // A link is the same file by another name.
    std::os::unix::fs::symlink("tool", place.path("two/link")).unwrap();
    let line = "one/tool text o; two/tool text o; two/link text o; one/tool text o; two/tool text o; true";
    let outcome = place.run(&["sh", "-c", line]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    let files = profiles(&place);
    assert!(files.contains("gmon.out.tool") && files.contains("gmon.out.tool.2"), "{files:?}: {said}");
    let counts: BTreeMap<&str, u64> = [("one/tool", "gmon.out.tool"), ("two/tool", "gmon.out.tool.2")]
        .map(|(program, profile)| (program, calls(&place, program, profile, "line")))
        .into();
    assert_eq!(counts, BTreeMap::from([("one/tool", 6), ("two/tool", 9)]), "{said}");
}

/// Returns what the command prints that the last line names.
fn next(place: &Place, outcome: &Outcome) -> String {
    let said = outcome.stderr_text();
    let next = said.trim_end().rsplit_once("next: ").unwrap_or_else(|| panic!("{said}")).1.to_owned();
    let report = tool::shell(&next).unwrap().current_dir(place.folder.path()).output().unwrap();
    assert!(report.status.success(), "{next}: {}", String::from_utf8_lossy(&report.stderr));
    String::from_utf8_lossy(&report.stdout).into_owned()
}

/// The last line leads to the program that did the work.
fn wrappers() {
    const SHIM: &str = "#!/bin/sh\n\
        for n in 1 2 3 4 5 6 7 8 9 10; do where=$(dirname \"$(printf %s \"$0\")\"); done\n\
        exec \"$where/../burn\" \"$@\"\n";
    let place = Place::new();
    place.c("burn", BURN, &["-g"]);
    fs::create_dir(place.path("shims")).unwrap();
    let shim = place.path("shims/burn");
    fs::write(&shim, SHIM).unwrap();
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [
        &["env", "A=b", "./burn"][..],
        &["nice", "./burn"],
        &["sh", "-c", "./burn; exit $?"],
        &["env", "nice", "sh", "-c", "exec ./burn"],
        &["shims/burn"],
    ] {
        clean(&place);
        let mut command = place.command(&[&["-v"], arguments].concat());
        command.env("LANG", "C");
        let outcome = finish(command);
        let said = outcome.stderr_text();
        if said.contains("no samples are taken") {
            skip::skipped("programs::wrappers", "no samples");
            return;
        }
        assert_eq!((outcome.stdout_text().as_str(), outcome.code()), ("burnt\n", 3), "{arguments:?}: {said}");
        let report = next(&place, &outcome);
        let first = report.lines().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        assert!(first.is_some_and(|line| line.contains(" heavy")), "{arguments:?}: {said}{report}");
        // The program itself comes first in the list of the others, too.
        let listed = said.lines().find(|line| line.contains(" samples (") && line.contains("; gmon flat --program ")).unwrap();
        assert!(listed.starts_with("gprofinject: burn: "), "{arguments:?}: {said}");
    }
    // Whoever does the work itself is named, whatever it starts.
    fs::write(place.path("text"), "a\n").unwrap();
    place.c("tool", COMPILER, &["-g"]);
    place.c("both", &BURN.replace("puts(", "system(\"./tool text o\"); puts("), &["-g"]);
    let outcome = place.run(&["./both"]);
    assert!(next(&place, &outcome).contains(" heavy"), "{}", outcome.stderr_text());
    assert!(profiles(&place).contains("gmon.out.tool"), "{}", outcome.stderr_text());
}

/// A program whose work is done in a library, as an interpreter's often is, executes itself. Nothing is hooked, so it has samples only.
fn a_child_that_only_executes_a_library() {
    let place = Place::new();
    let busy = "#include <time.h>\nvoid busy(void) { clock_t end = clock() + CLOCKS_PER_SEC / 3; while (clock() < end) for (volatile int i = 0; i < 10000; i++) ; }";
    let library = place.c("libbusy.so", busy, &["-shared", "-fPIC"]);
    let main = "#include <sys/wait.h>\n#include <unistd.h>\nvoid busy(void);\n\
        int main(int n, char **v) {\n\
            if (n > 1) { busy(); return 0; }\n\
            if (!fork()) { execl(v[0], v[0], \"child\", (char *)0); _exit(1); }\n\
            int status; wait(&status); return status != 0;\n\
        }";
    place.c("prog", main, &["-Wl,--no-as-needed", library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let outcome = place.run(&["--hooks", "none", "-o", "profile", "./prog"]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    let recording = measured::read(&place.path("profile.pb.gz")).unwrap();
    let child = recording.processes.iter().max_by_key(|process| process.samples).unwrap();
    assert!(child.samples > 50 && recording.processes.len() == 2, "{:?}\n{said}", recording.processes);
    let inside = |hits: &&gmon_run::Hits| {
        let function = &recording.functions[hits.function as usize];
        recording.modules[function.module as usize].name().starts_with("libbusy")
    };
    assert!(recording.hits.iter().filter(inside).map(|hits| hits.samples).sum::<u64>() > 0, "{said}");
}
