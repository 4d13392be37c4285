//! Processes that get the file in which another process of their program has counted.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use gprofinject_tests::family::{Calls, Run, Subject};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, tool};

gprofinject_tests::trials! {
    together:
        nothing_of_the_process_before_is_counted,
        a_child_that_outlives_its_parent_keeps_its_counts,
        a_link_that_was_removed_is_made_again,
        libraries_that_are_left_out_are_asked_about_once,
        a_library_is_left_out_by_its_name,
        libraries_are_overwritten_after_they_were_used;
}

/// What the program has noted of each process: its number, the inode of its file if it has looked for it, and what it has done.
fn processes(run: &Run) -> Vec<(u32, u64, String)> {
    let text = fs::read_to_string(run.path("processes")).unwrap();
    let process = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        (word().parse().unwrap(), word().parse().unwrap(), word().to_owned())
    };
    text.lines().map(process).collect()
}

/// Returns the calls of the processes that have done `what`, each with the inode of its file.
fn calls(run: &Run, what: &str) -> Vec<(u64, Calls)> {
    let all = processes(run).into_iter().filter(|(.., done)| done == what);
    all.map(|(pid, inode, _)| (inode, run.calls(&run.path(&format!("gmon.out.{pid}"))))).collect()
}

fn nothing_of_the_process_before_is_counted() {
    let successors = Subject::new("successors");
    for options in [&["-q"][..], &["-q", "--hooks=entry"], &["-q", "--libs=all"]] {
        let run = successors.same_as_alone(options, &["alternately"], &[]);
        let counted = calls(&run, "count");
        assert!(counted.len() == 4 && counted.iter().all(|(_, calls)| *calls == [3, 7, 0]), "{counted:?}");
        let mut files: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (_, inode, what) in processes(&run) {
            files.entry(inode).or_default().push(what);
        }
        // Otherwise this test shows nothing.
        let has_both = |done: &Vec<String>| done.windows(2).any(|two| two == ["litter", "count"]);
        assert!(!files.contains_key(&0) && files.values().any(has_both), "{options:?}: {files:?}");
    }
}

/// Its parent's file has no other process, as long as it may count there.
fn a_child_that_outlives_its_parent_keeps_its_counts() {
    let successors = Subject::new("successors");
    for way in ["file", "guest"] {
        let run = successors.same_as_alone(&["-q"], &[way], &[]);
        for (what, number, expected) in
            [("parent", 4, [1, 0, 0]), ("child", 4, [0, 0, 11]), ("count", 8, [3, 7, 0])]
        {
            let counted = calls(&run, what);
            assert_eq!(counted.len(), number, "{way} {what}");
            assert!(counted.iter().all(|(_, calls)| *calls == expected), "{way} {what}: {counted:?}");
        }
    }
}

/// A script that cleans up may have removed the names of files that nobody uses.
fn a_link_that_was_removed_is_made_again() {
    let successors = Subject::new("successors");
    let run = successors.same_as_alone(&["-q"], &["removed"], &[]);
    assert!(run.said.is_empty(), "{}", run.said);
    let counted = calls(&run, "count");
    assert!(counted.len() == 4 && counted.iter().all(|(_, calls)| *calls == [3, 7, 0]), "{counted:?}");
}

/// strace shows the questions. The run folder has no more of them if there are more processes, unless libraries are hooked, or the agent
/// samples: then what a process has mapped is noted when it asks.
fn libraries_that_are_left_out_are_asked_about_once() {
    if !skip::have("strace") {
        return skip::skipped("libraries_that_are_left_out_are_asked_about_once", "no strace");
    }
    let folder = tempfile::tempdir().unwrap();
    let questions = |options: &[&str], processes: usize| {
        let trace = folder.path().join("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=sendmsg", "-o"]).arg(&trace).arg(tool::gprofinject().unwrap()).args(options);
        command.args(["sh", "-c", &"/bin/true; ".repeat(processes)]).current_dir(folder.path());
        assert!(command.status().unwrap().success());
        fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("iov_base=\"L\\0")).count()
    };
    for (options, is_once) in
        [(&["-q"][..], true), (&["-q", "--libs=all"], false), (&["-q", "--sampler=timer"], false)]
    {
        let [few, many] = [2, 5].map(|processes| questions(options, processes));
        assert!(few > 0 && (few == many) == is_once, "{options:?}: {few} and {many} questions");
    }
}

/// Makes a folder with a program that loads the library which its argument names and calls its function `called` ten times, with a library
/// that has it, and with that library under another name.
fn loader() -> tempfile::TempDir {
    const LOADER: &str = "#include <dlfcn.h>\nint main(int n, char **names) { void *library = dlopen(names[1], RTLD_NOW);\n\
        int (*called)(int) = (int (*)(int))dlsym(library, \"called\"); int sum = 0;\n\
        for (int i = 0; i < 10; i++) sum += called(i); return sum != 100; }\n";
    const LIBRARY: &str = "int called(int i) { return 2 * i + 1; }\n";
    let folder = tempfile::tempdir().unwrap();
    for (source, text, flags) in
        [("loader.c", LOADER, &["-o", "loader"][..]), ("other.c", LIBRARY, &["-shared", "-fPIC", "-o", "libother.so"])]
    {
        fs::write(folder.path().join(source), text).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", source]).args(flags).current_dir(folder.path());
        compile::compile(gcc).unwrap();
    }
    fs::hard_link(folder.path().join("libother.so"), folder.path().join("libwanted.so")).unwrap();
    folder
}

/// The same file is hooked if a process loads it by another name, which the user wants.
fn a_library_is_left_out_by_its_name() {
    let folder = loader();
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["--no-cache", "--libs=libwanted*", "-o", "out", "sh", "-c"]);
    command.arg("for name in other wanted other wanted; do ./loader ./lib$name.so || exit 1; done");
    let outcome = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{said}");
    let mut gprof = Command::new(tool::gmon().unwrap());
    gprof.args(["gprof", "--program", "loader", "out.pb.gz", "-b", "-p"]).current_dir(folder.path());
    let table = String::from_utf8(gprof.output().unwrap().stdout).unwrap();
    let line = table.lines().find(|line| line.split_whitespace().last() == Some("called"));
    assert!(line.is_some_and(|line| line.split_whitespace().any(|word| word == "20")), "{said}{table}");
}

/// The file of a library may be truncated when its process has ended.
fn libraries_are_overwritten_after_they_were_used() {
    for options in [&["-q", "--no-cache"][..], &["-q", "--count=blocks"], &["-q"]] {
        let folder = loader();
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(options).args(["--libs=all", "-o", "out", "sh", "-c"]);
        command.arg("./loader ./libother.so; : >libother.so; : >loader; exit 3");
        let status = command.env("XDG_CACHE_HOME", folder.path()).current_dir(folder.path()).status().unwrap();
        assert_eq!(status.code(), Some(3), "{options:?}: {status:?}");
    }
}
