//! What processes do is told apart by the label that their environment gives them.
//!
//! The program calls a function as often as it is told, so that the scripts say what each label has.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::tool;
use serde_json::Value;

gprofinject_tests::trials! {
    together:
        each_process_has_that_of_its_environment,
        forked_children_and_executed_programs,
        hostile_labels,
        a_budget_and_a_comparison_by_label,
        tests_of_ctest,
        a_process_that_runs_already,
        runs_without_labels;
}

/// Calls `work` as often as the first argument says. Then, as the second one says, a child that was forked does the same, or a thread of
/// commands goes on with the rest.
const WORK: &str = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n#include <sys/wait.h>\n\
    __attribute__((noinline)) int work(int n) { asm volatile(\"\"); return n + 1; }\n\
    int main(int c, char **v) { int t = 0; for (int i = 0; i < atoi(v[1]); i++) t = work(t); \
    if (c > 2 && !strcmp(v[2], \"fork\")) { setenv(\"GPROFINJECT_LABEL\", \"later\", 1); \
      if (!fork()) { for (int i = 0; i < atoi(v[1]); i++) t = work(t); _exit(0); } wait(0); \
      if (c > 3) execv(v[3], v + 3); } \
    if (c > 2 && !strcmp(v[2], \"wait\")) for (;;) { t = work(t); usleep(1000); } \
    return 0; }\n";

fn gmon(place: &Place, args: &[&str]) -> Output {
    let mut gmon = Command::new(tool::gmon().unwrap());
    gmon.args(args).current_dir(place.folder.path()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Returns the calls of `work` that processes with a label have made, or with none.
fn calls(place: &Place, label: &str) -> u64 {
    let printed = gmon(place, &["flat", "--json", "--label", label, "-f", "work"]);
    assert!(printed.status.success(), "{label}: {}", text(&printed));
    let json: Value = serde_json::from_slice(&printed.stdout).unwrap();
    json["rows"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).sum()
}

/// Returns all calls by label.
fn by_label(place: &Place) -> BTreeMap<String, u64> {
    let printed = gmon(place, &["flat", "--json", "--by", "label"]);
    assert!(printed.status.success(), "{}", text(&printed));
    let json: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let row = |row: &Value| {
        (row["label"].as_str().unwrap_or_default().to_owned(), row["calls"].as_u64().unwrap())
    };
    json["rows"].as_array().unwrap().iter().map(row).collect()
}

fn each_process_has_that_of_its_environment() {
    let place = Place::new();
    place.c("work", WORK, &[]);
    let still = if skip::can_compile_for("labels::static", "gcc", &["-static"]) { "still" } else { "work" };
    if still == "still" {
        place.c("still", WORK, &["-static"]);
    }
    let script = format!(
        "./work 1; GPROFINJECT_LABEL=one ./work 20; GPROFINJECT_LABEL=two ./{still} 300; \
         GPROFINJECT_LABEL=one sh -c './work 4000; ./work 4; GPROFINJECT_LABEL= ./work 2'; exit 0"
    );
    for mode in [&[][..], &["--per-process"], &["--sampler=timer"], &["--times"]] {
        let outcome = place.run(&[mode, &["sh", "-c", &script]].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let found = ["", "one", "two", "t*", "*"].map(|label| calls(&place, label));
        assert_eq!(found, [3, 4024, 300, 300, 4327], "{mode:?}");
        let all = by_label(&place);
        assert_eq!(all.keys().collect::<Vec<_>>(), ["", "one", "two"], "{mode:?}");
        let total: u64 = all.values().sum();
        let printed = gmon(&place, &["flat", "--json"]);
        let json: Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!(json["total"]["calls"].as_u64(), Some(total), "{mode:?}");
    }
    // The sum of two runs has the same labels.
    for output in ["a.out", "b.out"] {
        let outcome = place.run(&["-o", output, "sh", "-c", &script]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    }
    let merged = gmon(&place, &["merge", "-o", "gmon.pb.gz", "a.pb.gz", "b.pb.gz"]);
    assert!(merged.status.success(), "{}", text(&merged));
    assert_eq!(["", "one", "two"].map(|label| calls(&place, label)), [6, 8048, 600]);
    let wrong = text(&gmon(&place, &["flat", "--label", "three"]));
    assert!(wrong.contains("no process has the label three; there are one, two"), "{wrong}");
    let programs = text(&gmon(&place, &["flat", "--by", "program"]));
    assert!(programs.contains("work, one (") && programs.contains(&format!("{still}, two (")), "{programs}");
}

/// The label is that of the environment with which a program begins: a process cannot change its own, and its children have that one
/// until they execute a program.
fn forked_children_and_executed_programs() {
    let place = Place::new();
    place.c("work", WORK, &[]);
    let mut command = place.command(&["./work", "10", "fork", "./work", "700"]);
    command.env("GPROFINJECT_LABEL", "first");
    let outcome = gprofinject_tests::place::finish(command);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert_eq!(["first", "later"].map(|label| calls(&place, label)), [20, 700]);
}

fn hostile_labels() {
    let place = Place::new();
    place.c("work", WORK, &[]);
    let long = "x".repeat(100_000);
    let script = "import os, subprocess\n\
        for n, label in enumerate([b'\\x1b[2J\\x1b]0;owned\\x07', b'\\xff\\xfe', b'%s%n{}', b'a\\nb', b'" .to_owned()
        + &long
        + "', b'" + &long + "y', b'--program', b'[1-2]']):\n\
        \x20   subprocess.run(['./work', str(10 ** n)], env={b'GPROFINJECT_LABEL': label}, check=True)\n";
    if !skip::have_for("hostile_labels", &["/usr/bin/python3"]) {
        return;
    }
    std::fs::write(place.path("labels.py"), script).unwrap();
    let outcome = place.run(&["/usr/bin/python3", "labels.py"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let all = by_label(&place);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let long = &long[..200];
    for (label, wanted) in [
        ("\\u{1b}[2J\\u{1b}]0;owned\\u{7}", 1),
        ("\u{fffd}\u{fffd}", 10),
        ("%s%n{}", 100),
        ("a\\nb", 1000),
        // They are told apart up to this length.
        (long, 110_000),
        ("--program", 1_000_000),
        ("[1-2]", 10_000_000),
    ] {
        assert!(names.contains(&label), "{label}: {names:?}");
        let printed = gmon(&place, &["flat", "--json", &format!("--label={label}"), "-f", "work"]);
        let json: Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!(json["total"]["calls"].as_u64(), Some(wanted), "{label}");
    }
    for report in [&["flat", "--by", "label"][..], &["flat", "--by", "program"], &["flat", "--by", "process"]] {
        let printed = gmon(&place, report);
        assert!(printed.status.success(), "{}", text(&printed));
        assert!(!printed.stdout.contains(&0x1b), "{}", text(&printed));
    }
}

fn a_budget_and_a_comparison_by_label() {
    let place = Place::new();
    place.c("work", WORK, &[]);
    for (file, two) in [("base.out", 300), ("new.out", 330)] {
        let script = format!("GPROFINJECT_LABEL=one ./work 20; GPROFINJECT_LABEL=two ./work {two}; exit 0");
        let outcome = place.run(&["-o", file, "sh", "-c", &script]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    }
    for (label, status) in [("one", 0), ("two", 1), ("*", 1)] {
        let printed = gmon(&place, &["diff", "--label", label, "base.pb.gz", "new.pb.gz"]);
        assert_eq!(printed.status.code(), Some(status), "{label}: {}", text(&printed));
        let is_same = text(&printed).contains("calls: none has changed");
        assert_eq!(is_same, status == 0, "{label}: {}", text(&printed));
    }
    let check = |budget: &str| {
        std::fs::write(place.path("budget.toml"), budget).unwrap();
        let printed = gmon(&place, &["check", "--budget", "budget.toml", "new.pb.gz"]);
        (printed.status.code(), text(&printed))
    };
    let of = |label: &str, most: u64| format!("[[budget]]\nfunction = \"work\"\nlabel = \"{label}\"\ncalls = {most}\n");
    assert_eq!(check(&(of("one", 20) + &of("two", 330) + &of("*", 350))), (Some(0), "3 budgets hold\n".to_owned()));
    let exceeded = check(&(of("one", 19) + &of("two", 330)));
    assert_eq!(exceeded, (Some(1), "budget.toml:4: work of one: calls 20, allowed 19\n".to_owned()));
    let (status, said) = check(&of("three", 1));
    assert!(status == Some(2) && said.contains("budget.toml:2: no process has the label three"), "{said}");
    assert_eq!(check(&(of("three", 1) + "optional = true\n")).0, Some(0));
    let (status, said) = check("[[budget]]\nfunction = \"work\"\nlabel = 1\ncalls = 1\n");
    assert!(status == Some(2) && said.contains("budget.toml:3: label: expected the label"), "{said}");
}

/// ctest sets variables of each test.
fn tests_of_ctest() {
    if !skip::have_for("labels::tests_of_ctest", &["ctest"]) {
        return;
    }
    let place = Place::new();
    place.c("work", WORK, &[]);
    let work = place.path("work").display().to_string();
    let tests = ["alpha", "beta"].map(|test| {
        let calls = if test == "alpha" { 50 } else { 700 };
        format!(
            "add_test({test} \"{work}\" \"{calls}\")\nset_tests_properties({test} PROPERTIES ENVIRONMENT \
             \"GPROFINJECT_LABEL={test}\")\n"
        )
    });
    std::fs::write(place.path("CTestTestfile.cmake"), tests.concat()).unwrap();
    let outcome = place.run(&["ctest", "-j2"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert_eq!(["alpha", "beta"].map(|label| calls(&place, label)), [50, 700]);
}

fn a_process_that_runs_already() {
    let place = Place::new();
    let work = place.c("work", WORK, &[]);
    let mut running = Command::new(work).args(["0", "wait"]).env("GPROFINJECT_LABEL", "served").spawn().unwrap();
    let outcome = place.run(&["--pid", &running.id().to_string(), "--duration", "0.3"]);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(calls(&place, "served") > 0);
}

fn runs_without_labels() {
    let place = Place::new();
    place.c("work", WORK, &[]);
    assert_eq!(place.run(&["./work", "3"]).code(), 0);
    for args in [&["flat", "--label", "one"][..], &["flat", "--by", "label"]] {
        let printed = gmon(&place, args);
        assert!(!printed.status.success() && text(&printed).contains("GPROFINJECT_LABEL in its environment"), "{}", text(&printed));
    }
    let own = gmon(&place, &["flat", "--label", "one", "work", "gmon.out"]);
    assert!(text(&own).contains("--label: gmon.out is of one program only"), "{}", text(&own));
}
