//! Programs that start others: the one that does the work is in the recording and in the summary with its time, also if it is not followed.
//!
//! What processes have taken comes from the kernel: each program says its own CPU time, or its parent's getrusage does.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::tool;
use serde_json::Value;

gprofinject_tests::trials! {
    alone:
        the_program_that_works_comes_first,
        programs_that_are_not_followed_have_their_time,
        no_advice_where_it_would_not_help,
        no_samples_are_lost_beside_many_processes,
        what_go_build_has_executed;
}

/// Works for so many milliseconds of CPU time, and prints how many it has taken.
const BURN: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <time.h>\n\
    __attribute__((noinline)) void work(int n) { for (int i = 0; i < n; i++) asm volatile(\"\"); }\n\
    int main(int c, char **v) { clock_t end = atoi(v[1]) * (CLOCKS_PER_SEC / 1000); int n = 100000; \
    while (clock() < end) work(n += 7); \
    printf(\"burnt %ld\\n\", (long) clock() / (CLOCKS_PER_SEC / 1000)); return 0; }\n";

/// Returns what programs took in the recording, the most first: their names, and seconds.
fn programs(place: &Place) -> Vec<(String, f64)> {
    let mut gmon = Command::new(tool::gmon().unwrap());
    gmon.args(["flat", "--by", "program", "--json"]).current_dir(place.folder.path());
    let printed = gmon.output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let json: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let row = |row: &Value| {
        (row["program"].as_str().unwrap().to_owned(), row["self_ns"].as_u64().unwrap_or(0) as f64 / 1e9)
    };
    json["rows"].as_array().unwrap().iter().map(row).collect()
}

fn of(programs: &[(String, f64)], name: &str) -> f64 {
    programs.iter().filter(|(program, _)| program == name).map(|(_, seconds)| seconds).sum()
}

/// Returns the seconds that programs of [`BURN`] say they have taken.
fn burnt(stdout: &str) -> f64 {
    let numbers = stdout.lines().filter_map(|line| line.strip_prefix("burnt ")?.parse::<f64>().ok());
    numbers.sum::<f64>() / 1e3
}

/// Processes begin and end beside one that works.
fn no_samples_are_lost_beside_many_processes() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    for sampler in [&["--hooks=none"][..], &[]] {
        let script = "./burn 900 & i=0; while [ $i -lt 60 ]; do /bin/true; i=$((i+1)); done; wait";
        let outcome = place.run(&[sampler, &["--sampler=perf", "sh", "-c", script]].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        assert!(!outcome.stderr_text().contains("lost"), "{}", outcome.stderr_text());
        let (found, burnt) = (of(&programs(&place), "burn"), burnt(&outcome.stdout_text()));
        assert!(found > 0.85 * burnt && found < 1.15 * burnt, "{found} s of {burnt} s");
    }
}

fn the_program_that_works_comes_first() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    if skip::can_compile_for("runners::static", "gcc", &["-static"]) {
        place.c("still", BURN, &["-static"]);
    }
    std::fs::write(place.path("Makefile"), "all: a b\na:\n\t./burn 100\nb:\n\t./burn 100\n").unwrap();
    let spawn = "import os; os.waitpid(os.posix_spawn('./burn', ['burn', '150'], os.environ), 0)";
    for command in [
        &["make", "-j2"][..],
        &["perl", "-e", "system('./burn', '100'); print `./burn 50`"],
        &["/usr/bin/python3", "-c", spawn],
        &["xargs", "-n1", "-P2", "-a", "numbers", "./burn"],
        &["env", "-i", "nice", "timeout", "20", "./burn", "150"],
        &["busybox", "sh", "-c", "./burn 100; ./burn 50"],
        &["sh", "-c", "./still 100 || ./burn 100; ./burn 10"],
    ] {
        if !skip::have_for(&format!("runners::{}", command[0]), &command[..1]) {
            continue;
        }
        std::fs::write(place.path("numbers"), "80\n80\n").unwrap();
        let outcome = place.run(command);
        let said = outcome.stderr_text();
        assert_eq!(outcome.code(), 0, "{command:?}: {said}");
        let (programs, burnt) = (programs(&place), burnt(&outcome.stdout_text()));
        let found = of(&programs, "burn") + of(&programs, "still");
        assert!(burnt > 0.09 && (found - burnt).abs() < 0.25 * burnt, "{command:?}: {found} s of {burnt} s");
        let first = said.lines().find(|line| line.contains(" s, ") || line.contains(" ms, ")).unwrap_or_default();
        assert!(first.contains("burn") || first.contains("still"), "{command:?}: {said}");
    }
}

/// What runs as another user is not followed, and the summary says what it took and how it can be seen.
fn programs_that_are_not_followed_have_their_time() {
    const NAME: &str = "programs_that_are_not_followed_have_their_time";
    if !skip::have_for(NAME, &["setpriv"]) {
        return;
    }
    let place = Place::new();
    std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    place.c("burn", BURN, &[]);
    let drop = ["setpriv", "--reuid=65534", "--clear-groups", "./burn", "300"];
    if !Command::new("setpriv").args(&drop[1..]).current_dir(place.folder.path()).output().unwrap().status.success() {
        return skip::skipped(NAME, "no permission to become another user");
    }
    for sampler in ["--sampler=perf", "--sampler=timer"] {
        let outcome = place.run(&[&[sampler][..], &drop].concat());
        let (said, burnt) = (outcome.stderr_text(), burnt(&outcome.stdout_text()));
        let found = of(&programs(&place), "burn");
        assert!((found - burnt).abs() < 0.25 * burnt, "{sampler}: {found} s of {burnt} s: {said}");
        let remark = said.lines().find_map(|line| line.strip_prefix("gprofinject: not followed: burn, "));
        let remark = remark.unwrap_or_else(|| panic!("{sampler}: {said}"));
        assert!(remark.ends_with("): start gprofinject in front of burn, or use --pid"), "{said}");
        assert!(said.contains("burn was not followed: it runs as another user"), "{said}");
    }
    // Each of them helps.
    let ready = Command::new("setpriv").args(&drop[1..4]).arg("5000").current_dir(place.folder.path()).spawn();
    let mut running = ready.unwrap();
    while std::fs::read_link(format!("/proc/{}/exe", running.id())).is_ok_and(|exe| !exe.ends_with("burn")) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = running.id().to_string();
    let outcome = place.run(&["--pid", &pid, "--duration", "0.3"]);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(of(&programs(&place), "burn") > 0.1, "{}", outcome.stderr_text());
    let gprofinject = tool::gprofinject().unwrap();
    let mut inner = Command::new("setpriv");
    inner.args(&drop[1..3]).arg(gprofinject).args(["--no-cache", "./burn", "300"]);
    inner.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    for old in ["gmon.out", "gmon.pb.gz"] {
        let _ = std::fs::remove_file(place.path(old));
    }
    match inner.output() {
        Ok(printed) if printed.status.success() => {
            let said = String::from_utf8_lossy(&printed.stderr);
            assert!(said.contains("work 9") || said.contains("work 100"), "{said}");
        }
        // Other users cannot reach the build folder.
        _ => skip::skipped("runners::as_another_user", "another user cannot execute gprofinject here"),
    }
}

/// A program that cannot be profiled at all is named with its time, and the reason says what helps.
fn no_advice_where_it_would_not_help() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    let linker = "/lib64/ld-linux-x86-64.so.2";
    if !Path::new(linker).exists() {
        return skip::skipped("no_advice_where_it_would_not_help", "no dynamic linker of glibc");
    }
    let outcome = place.run(&["sh", "-c", &format!("{linker} ./burn 200; exit 0")]);
    let (said, burnt) = (outcome.stderr_text(), burnt(&outcome.stdout_text()));
    let found = of(&programs(&place), "ld-linux-x86-64.so.2");
    assert!((found - burnt).abs() < 0.25 * burnt, "{found} s of {burnt} s: {said}");
    let remark = said.lines().find(|line| line.contains("not followed: ld-linux-x86-64.so.2, "));
    assert!(remark.is_some_and(|remark| remark.ends_with("%)")), "{said}");
    // What was left alone on request is no loss.
    let outcome = place.run(&["--no-follow", "sh", "-c", "./burn 200; exit 0"]);
    assert!(!outcome.stderr_text().contains("not followed"), "{}", outcome.stderr_text());
}

/// Runs what its arguments name, and appends its name and CPU time in microseconds to a file.
const USAGE: &str = "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n#include <sys/wait.h>\n#include <sys/resource.h>\n\
    int main(int c, char **v) { int status; if (!fork()) { execv(v[2], v + 2); _exit(127); } wait(&status); \
    struct rusage u; getrusage(RUSAGE_CHILDREN, &u); FILE *f = fopen(v[1], \"a\"); \
    fprintf(f, \"%s %ld\\n\", strrchr(v[2], '/') + 1, (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000L + u.ru_utime.tv_usec + u.ru_stime.tv_usec); \
    return WEXITSTATUS(status); }\n";

/// Go executes by system calls of its own, from threads of its own.
fn what_go_build_has_executed() {
    if !skip::have_for("runners::what_go_build_has_executed", &["go"]) {
        return;
    }
    let place = Place::new();
    place.c("usage", USAGE, &[]);
    let source = "package main\nimport (\"encoding/json\"; \"go/ast\"; \"text/template\")\n\
        var _ = json.Marshal\nvar _ ast.Node\nvar _ template.Template\nfunc main() {}\n";
    std::fs::write(place.path("main.go"), source).unwrap();
    std::fs::write(place.path("go.mod"), "module x\ngo 1.19\n").unwrap();
    let cache = |name: &str| place.path(name).display().to_string();
    let usage = format!("{} {}", place.path("usage").display(), place.path("usage.txt").display());
    let build = |command: &mut Command, folder: &str| {
        command.env("GOCACHE", cache(folder)).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
        command.current_dir(place.folder.path());
    };
    let mut alone = Command::new("go");
    alone.args(["build", "-a", "-toolexec", &usage, "-o", "x", "encoding/json"]);
    build(&mut alone, "cache1");
    if !alone.output().unwrap().status.success() {
        return skip::skipped("runners::what_go_build_has_executed", "go cannot build its own library");
    }
    let text = std::fs::read_to_string(place.path("usage.txt")).unwrap();
    let spent = |name: &str| {
        let of = text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        of.sum::<f64>() / 1e6
    };
    let mut profiled =
        place.command(&["--hooks=none", "--sampler=perf", "go", "build", "-a", "-o", "x", "encoding/json"]);
    build(&mut profiled, "cache2");
    let outcome = place::finish(profiled);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(!said.contains("lost") && !said.contains("not followed: "), "{said}");
    let found = programs(&place);
    let (compile, wanted) = (of(&found, "compile"), spent("compile "));
    assert!((compile - wanted).abs() < 0.25 * wanted, "{compile} s of {wanted} s: {found:?}: {said}");
    assert_eq!(found[0].0, "compile", "{found:?}");
    assert!(said.contains(": compile ("), "{said}");
}
