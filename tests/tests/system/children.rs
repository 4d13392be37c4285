//! Children and executed programs: they behave as they do alone, and each process has a profile of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::family::{Calls, MODES, Subject, WAYS_TO_EXECUTE, WAYS_TO_FORK};
use gprofinject_tests::place::Place;
use gprofinject_tests::tool;
use serde_json::Value;

gprofinject_tests::trials! {
    together:
        each_process_is_told_apart,
        each_way_to_fork,
        new_namespaces_of_process_numbers,
        children_that_share_memory,
        a_fork_while_other_threads_call,
        many_children,
        children_that_outlive_the_first_process,
        each_way_to_execute,
        programs_that_cannot_be_asked_for,
        shells_and_pipes,
        programs_of_all_kinds_are_executed,
        children_that_are_left_alone_do_not_pay,
        programs_that_are_executed_as_another_user;
}

fn each_way_to_fork() {
    let forks = Subject::new("forks");
    for way in WAYS_TO_FORK {
        forks.check(&[way], &[[3, 7, 0], [5, 0, 0]]);
    }
}

fn new_namespaces_of_process_numbers() {
    let forks = Subject::new("forks");
    for way in ["clone-newpid", "unshare-pid"] {
        if forks.profiled(&["-q"], &[way], &[]).outcome.code() == 99 {
            return skip::skipped("new_namespaces_of_process_numbers", "not permitted here");
        }
        forks.check(&[way], &[[3, 7, 0], [5, 0, 0]]);
    }
}

/// Until such a child executes a program, it is a guest in its parent.
fn children_that_share_memory() {
    let forks = Subject::new("forks");
    forks.check(&["vfork-exit"], &[[5, 7, 0]]);
    forks.check(&["clone-vm-vfork"], &[[8, 7, 0]]);
}

fn a_fork_while_other_threads_call() {
    let forks = Subject::new("forks");
    for mode in MODES {
        for _ in 0..3 {
            let run = forks.same_as_alone(&["-q", mode], &["busy-threads"], &[]);
            let (first, others) = run.files();
            assert!(first && others.len() == usize::from(mode != "--no-follow"), "{mode}: {others:?}");
            assert_eq!(run.calls(&run.path("gmon.out"))[..2], [3, 7], "{mode}");
            for other in others {
                assert_eq!(run.calls(&run.path(&other)), [5, 0, 0], "{mode}");
            }
        }
    }
}

fn many_children() {
    let many = Subject::new("many");
    let family = |children: u64| -> Vec<Calls> {
        [[1, 0, 0]].into_iter().chain((1..=children).map(|i| [i, 0, 0])).collect()
    };
    many.check(&["64", "64"], &family(64));
    for mode in ["--hooks=both", "--sampler=timer"] {
        let run = many.same_as_alone(&["-q", mode], &["300", "3"], &[]);
        run.made(&family(300), mode);
    }
}

fn children_that_outlive_the_first_process() {
    let daemons = Subject::new("daemons");
    daemons.check(&["daemon"], &[[3, 0, 0], [5, 0, 0]]);
    daemons.check(&["double"], &[[3, 0, 0], [5, 0, 0]]);
    daemons.check(&["death"], &[[3, 0, 0], [5, 0, 0]]);
    let ignored: Vec<Calls> = [[3, 0, 0]].into_iter().chain([[5, 0, 0]; 5]).collect();
    daemons.check(&["ignored"], &ignored);
    // Its output comes after gprofinject's end if that does not wait for it.
    for mode in ["--hooks=both", "--hooks=entry", "--sampler=timer"] {
        let run = daemons.profiled(&["-q", mode], &["orphan"], &[]);
        assert_eq!((run.outcome.code(), run.outcome.stdout_text().as_str()), (2, "orphan ends\n"), "{mode}");
        run.made(&[[3, 0, 0], [5, 5, 0]], mode);
    }
    let run = daemons.profiled(&["-q", "--no-follow"], &["orphan"], &[]);
    assert!(run.outcome.code() == 2 && run.outcome.wall.as_millis() < 1000, "waits for the child");
}

fn each_way_to_execute() {
    let execs = Subject::new("execs");
    let own = execs.name().to_owned();
    for way in WAYS_TO_EXECUTE {
        execs.check(&[way, &own, "again", "x"], &[[3, 0, 0], [0, 11, 0]]);
    }
    execs.check(&["bad-pointers", &own], &[[7, 0, 0]]);
    execs.place().c("other.so", "int unused(void) { return 1; }", &["-shared", "-fPIC"]);
    let library = execs.place().path("other.so");
    execs.check(&["preload", library.to_str().unwrap(), &own, "again"], &[[3, 0, 0], [0, 11, 0]]);
}

/// The programs run, and gprofinject reports that it does not follow them.
fn programs_that_cannot_be_asked_for() {
    let execs = Subject::new("execs");
    let own = execs.name().to_owned();
    for way in ["execve-huge", "limit"] {
        execs.check(&[way, &own, "again", "x"], &[[3, 0, 0]]);
        let run = execs.profiled(&[], &[way, &own, "again"], &[]);
        assert!(run.said.contains("some programs that were executed were not followed"), "{}", run.said);
        let run = execs.profiled(&["--no-follow"], &[way, &own, "again"], &[]);
        assert!(!run.said.contains("not followed"), "{}", run.said);
    }
}

fn shells_and_pipes() {
    let execs = Subject::new("execs");
    let path = format!("{}:/usr/bin:/bin", execs.path.parent().unwrap().display());
    for line in [
        "execs again a | cat | wc -c",
        "echo a; execs again b; exit 3",
        "execs again a & wait; execs again b",
        "kill -9 $$",
        "exec execs again 5",
        "nothing-here 2>/dev/null",
        "cd /; for i in 1 2 3; do execs again $i; done",
        "echo 'int main(void) { return 7; }' >a.c; gcc -O2 -o a.out a.c && ./a.out",
        "printf 'a: b c\\nb c:\\n\\tsleep 0.1; echo $@ >$@\\n' >Makefile; make -s -j2; ls b c",
    ] {
        for way in ["system", "popen"] {
            for mode in MODES {
                let run = execs.same_as_alone(&["-q", mode], &[way, line], &[("PATH", &path)]);
                assert_eq!(run.said, run.said_alone, "{mode} {line}");
            }
        }
    }
}

/// Whatever is executed: it behaves as it does alone, and so does the process that executes it.
fn programs_of_all_kinds_are_executed() {
    const TEST: &str = "programs_of_all_kinds_are_executed";
    const SMALL: &str =
        "#include <stdio.h>\nint main(int c, char **v) { printf(\"small %d\\n\", c); return 9; }";
    let execs = Subject::new("execs");
    let place = execs.place();
    let mode = |name: &str, mode| {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    place.c("dynamic", SMALL, &[]);
    place.c("static", SMALL, &["-static"]);
    place.c("asan", SMALL, &["-fsanitize=address"]);
    place.c("unreadable", SMALL, &[]);
    mode("unreadable", 0o111);
    let mut names = vec!["dynamic", "static", "asan", "unreadable", "folder", "nothing", "text"];
    names.extend(["script", "no-script", "bad-script"]);
    for (name, compiler, flags) in
        [("m32", "gcc", &["-m32"][..]), ("musl", "musl-gcc", &[]), ("musl-static", "musl-gcc", &["-static"])]
    {
        if skip::can_compile_for(&format!("{TEST}, {name}"), compiler, flags) {
            place.compile(compiler, name, SMALL, flags).unwrap();
            names.push(name);
        }
    }
    let changing = place.c("changing", SMALL, &[]);
    match chown(&changing, Some(65534), Some(65534)) {
        Ok(()) => {
            mode("changing", 0o4755);
            names.push("changing");
        }
        Err(_) => skip::skipped(&format!("{TEST}, changing"), "only root can make one of another user"),
    }
    fs::create_dir(place.path("folder")).unwrap();
    fs::write(place.path("text"), "text").unwrap();
    for (name, text) in [
        ("script", "#!/bin/sh\necho script $#\n"),
        ("no-script", "echo no script $#\nexit 3\n"),
        ("bad-script", "#!/nonexistent/x\n"),
    ] {
        fs::write(place.path(name), text).unwrap();
        mode(name, 0o755);
    }
    for name in names {
        let path = place.path(name);
        for way in ["execv", "execvp", "vfork", "spawnp"] {
            for mode in ["--hooks=both", "--sampler=timer"] {
                let run = execs.same_as_alone(&["-q", mode], &[way, path.to_str().unwrap(), "a"], &[]);
                assert_eq!(run.said, run.said_alone, "{name} {way} {mode}");
            }
        }
    }
}

/// A child that is not followed has the program's own text again after its first hooked call.
fn children_that_are_left_alone_do_not_pay() {
    let text = Subject::new("text");
    for mode in ["--hooks=both", "--hooks=entry"] {
        let run = text.profiled(&["-q", mode, "--no-follow"], &[], &[]);
        assert_eq!(run.outcome.stdout_text(), "patched\nas in the file\nin order\n", "{mode}");
        assert_eq!(run.outcome.code(), 0, "{mode}");
        run.made(&[[4, 0, 0]], mode);
    }
}

/// The process that executes the program has capabilities that the program itself will not have, so that the
/// program could not load the agent.
fn programs_that_are_executed_as_another_user() {
    let execs = Subject::new("execs");
    if !skip::have("setpriv")
        || execs
            .profiled(&["-q", "--no-follow"], &["system", "setpriv --reuid=65534 true"], &[])
            .outcome
            .stdout_text()
            != "0\n"
    {
        return skip::skipped("programs_that_are_executed_as_another_user", "not root, or no setpriv");
    }
    let line = "setpriv --reuid=65534 --clear-groups sh -c 'id -u; env | grep -c gprofinject; ls / | wc -l'";
    for mode in MODES {
        let run = execs.same_as_alone(&["-q", mode], &["system", line], &[]);
        assert_eq!(run.said, run.said_alone, "{mode}");
    }
}

/// A shell starts programs, says their numbers, and ends with a status of its own.
fn each_process_is_told_apart() {
    let place = Place::new();
    let work = "#include <stdlib.h>\n__attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x; }\n\
        int main(int c, char **v) { for (int i = atoi(v[1]); i > 0; i--) f(i); return atoi(v[2]); }\n";
    place.c("work", work, &[]);
    let script = "./work 3 0 & echo $!; ./work 40 0 & echo $!; wait; ./work 500 1 & echo $!; wait; echo $$; exit 5";
    let outcome = place.run(&["-q", "sh", "-c", script]);
    assert_eq!(outcome.code(), 5);
    let pids: Vec<u64> = outcome.stdout_text().lines().map(|line| line.parse().unwrap()).collect();
    let [first, second, third, shell] = pids.as_slice() else { panic!("{pids:?}") };
    let mut gmon = Command::new(tool::gmon().unwrap());
    let output = gmon.args(["flat", "--by", "process", "--json"]).current_dir(place.folder.path()).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = value["rows"].as_array().unwrap();
    let row = |pid: &u64, program: &str| {
        let is_it = |row: &&Value| row["pid"] == *pid && row["program"] == program;
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {program} {pid}: {value}"))
    };
    for (pid, calls) in [(first, 3), (second, 40), (third, 500)] {
        let row = row(pid, "work");
        // main, and the functions that the C library's start files have.
        let others = row["calls"].as_u64().unwrap() - calls;
        assert!((1..20).contains(&others), "{row}");
        assert_eq!(row["parent"], *shell, "{row}");
        assert!(row["begin_ns"].as_u64() < row["end_ns"].as_u64(), "{row}");
    }
    // The third one began when the others had ended.
    assert!(row(third, "work")["begin_ns"].as_u64() > row(first, "work")["begin_ns"].as_u64());
    let program = value["programs"].as_array().unwrap()[0]["name"].as_str().unwrap();
    assert_eq!(row(shell, program)["exit_status"], 5);
    let sum: u64 = rows.iter().map(|row| row["calls"].as_u64().unwrap()).sum();
    assert_eq!(value["total"]["calls"], sum);
    assert_eq!(rows.iter().filter(|row| row["program"] == "work").count(), 3);
}
