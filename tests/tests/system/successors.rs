//! Processes that get the file in which another process of their program has counted.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use gprofinject_tests::family::{Calls, Run, Subject};
use gprofinject_skip as skip;
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        nothing_of_the_process_before_is_counted,
        a_child_that_outlives_its_parent_keeps_its_counts,
        a_link_that_was_removed_is_made_again,
        libraries_that_are_left_out_are_asked_about_once;
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
